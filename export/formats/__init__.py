"""Formats of weights: rounding, storage and multiplication."""
