"""Engines on NPUs."""
