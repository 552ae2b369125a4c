"""Sequences of tokens, the slots that hold their rows, and passes over rows of several of them."""
