"""Qwen3 (dense models)."""

from __future__ import annotations

from edgespec.models.families.llama import Llama
from edgespec.models.families.qwen2 import Qwen2


class Qwen3(Llama):
    """Llama with a configurable head size and normalized query and key heads."""

    defaults = Qwen2.but(head_dim=128)
    norms_of_heads = ("q_norm", "k_norm")
