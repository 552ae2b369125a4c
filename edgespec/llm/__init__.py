"""The public API: load a bundle and generate text."""
