"""Runs a bundle: engines, cache, drafters, token trees, sampling, verification, text."""
