"""Qwen1.5-MoE and Qwen2-57B-A14B."""

from __future__ import annotations
