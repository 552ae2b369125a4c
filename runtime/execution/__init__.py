"""A model on its engines, and one text's progress through it."""
