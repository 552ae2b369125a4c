"""Checkpoints whose matrices were quantized by others, one file for each format."""
