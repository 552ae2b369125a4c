"""Draft sources by name."""

from __future__ import annotations

from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.drafters.calls import ModelCalls, SkipCalls
from edgespec.runtime.drafters.experience import Experience
from edgespec.runtime.drafters.guided import GuidedDrafter
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.none import NoDrafter
from edgespec.runtime.drafters.recycling import RecyclingDrafter

__all__ = [
    "Drafter",
    "Experience",
    "GuidedDrafter",
    "LookupDrafter",
    "ModelCalls",
    "ModelDrafter",
    "NoDrafter",
    "RecyclingDrafter",
    "SkipCalls",
    "TreeBudget",
]
