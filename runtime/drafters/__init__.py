"""Draft sources by name."""

from __future__ import annotations

from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.none import NoDrafter

__all__ = ["Drafter", "LookupDrafter", "ModelDrafter", "NoDrafter", "TreeBudget"]
