"""Adds a feature-level draft head to a bundle: outputs for the target's features, and the head."""
