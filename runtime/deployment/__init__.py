"""Chooses engines, shapes, context and memory for a bundle, given a user's options."""
