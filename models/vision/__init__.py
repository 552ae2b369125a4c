"""The parts of checkpoints that read pictures."""
