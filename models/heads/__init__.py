"""Feature-level draft heads: drafters that read hidden rows of their target."""
