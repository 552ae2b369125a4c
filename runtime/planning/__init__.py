"""`--draft auto`: chooses in every round the tree that promises the most tokens per second."""

from __future__ import annotations

from edgespec.runtime.planning.planned_drafter import PlannedDrafter
from edgespec.runtime.planning.priced import (
    PricedModel,
    PricedParallel,
    PricedRetriever,
    PricedSource,
)

__all__ = ["PlannedDrafter", "PricedModel", "PricedParallel", "PricedRetriever", "PricedSource"]
