"""Where checkpoints come from, and whether what belongs to them fits together."""
