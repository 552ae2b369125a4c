"""How weights are rounded, stored and multiplied."""
