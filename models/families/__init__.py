"""One file for each architecture."""
