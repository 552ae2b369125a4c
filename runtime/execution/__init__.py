"""Models on their engines, and the progress of each text through a model."""
