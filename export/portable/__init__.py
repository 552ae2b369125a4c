"""The graph of a model for GPUs and other engines: standard operators, made from a native graph."""

from edgespec.export.portable.graph import DATA, GRAPH, HALVES, VERSION, lower

__all__ = ["DATA", "GRAPH", "HALVES", "VERSION", "lower"]
