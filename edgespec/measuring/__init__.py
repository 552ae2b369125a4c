"""Measurements of a bundle: its speed, its equality to plain decoding, its quality."""
