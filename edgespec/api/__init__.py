"""The public API: load a bundle, give it prompts, get text."""
