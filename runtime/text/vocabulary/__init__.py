"""Vocabularies: tokens as bytes, what two have in common, and texts of one in tokens of another."""
