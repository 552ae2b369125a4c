"""Engines on the CPU."""
