"""Draft sources: they propose continuations that the target verifies."""

from __future__ import annotations

from edgespec.runtime.drafters.alignment import Alignment
from edgespec.runtime.drafters.base import (
    CallingDrafter,
    Drafter,
    TreeBudget,
    drafting,
    in_one_step,
)
from edgespec.runtime.drafters.calls import HeadCalls, ModelCalls, SkipCalls, window
from edgespec.runtime.drafters.drafter_state import DrafterState
from edgespec.runtime.drafters.grammar import GrammarDrafter
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.none import NoDrafter
from edgespec.runtime.drafters.parallel import ParallelDrafter
from edgespec.runtime.drafters.predicted import PredictedDrafter, PredictionDrafter
from edgespec.runtime.drafters.prediction import Prediction
from edgespec.runtime.drafters.recycling import RecyclingDrafter
from edgespec.runtime.drafters.translated import RecodedCalls, RecodedDrafter, SharedCalls

__all__ = [
    "Alignment",
    "CallingDrafter",
    "Drafter",
    "DrafterState",
    "GrammarDrafter",
    "HeadCalls",
    "LookupDrafter",
    "ModelCalls",
    "ModelDrafter",
    "NoDrafter",
    "ParallelDrafter",
    "PredictedDrafter",
    "Prediction",
    "PredictionDrafter",
    "RecodedCalls",
    "RecodedDrafter",
    "RecyclingDrafter",
    "SharedCalls",
    "SkipCalls",
    "TreeBudget",
    "drafting",
    "in_one_step",
    "window",
]
