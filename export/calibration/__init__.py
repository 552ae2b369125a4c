"""A model reads texts, so that its matrices are rounded by what they read."""
