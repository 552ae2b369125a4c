"""`--draft auto`: every round the tree that promises most tokens per second."""

from __future__ import annotations

from edgespec.runtime.planning.planned import PlannedDrafter
from edgespec.runtime.planning.weighed import WeighedModel, WeighedRetrieval, WeighedSource

__all__ = ["PlannedDrafter", "WeighedModel", "WeighedRetrieval", "WeighedSource"]
