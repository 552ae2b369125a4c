"""Engines on GPUs."""
