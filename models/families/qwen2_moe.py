"""Qwen1.5-MoE and Qwen2-57B-A14B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.mixture import (
    beside_shared,
    dense_by_list,
    mixture,
    shared_gate,
    unstacked_by_layer,
)
from edgespec.models.families.qwen2 import Qwen2
