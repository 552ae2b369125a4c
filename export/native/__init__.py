"""The graph of a model for CPUs: few operators of our own, which read weights in tiles."""
