"""The terms of a memory plan."""

from __future__ import annotations

TERMS = ("baseline", "weights", "repacked", "kv", "logits", "workspace")


def total(found):
    return sum(demand.total for demand in found.devices)
