"""Models of this machine's user: what is no bundle is made into one, once, and kept."""
