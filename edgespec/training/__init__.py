"""Training of feature-level draft heads (EAGLE-3) for a bundle's target, with PyTorch."""
