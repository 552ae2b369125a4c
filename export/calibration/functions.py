"""The functions of single numbers that layers apply, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from edgespec.export.formats.blocks import Floats
from edgespec.models.layers import Activation, ClampedSwiglu


def limited(x: Floats, softcap: float | None) -> Floats:
    """Returns `c * tanh(x / c)` for a limit c; without a limit, returns x unchanged."""
    if softcap is None:
        return x
    limit = np.float32(softcap)
    found: Floats = limit * np.tanh(x / limit)
    return found


def sigmoid(x: Floats) -> Floats:
    """Returns 1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        found: Floats = np.float32(1) / (np.float32(1) + np.exp(-x))
    return found


def silu(x: Floats) -> Floats:
    """Returns x * sigmoid(x), in the memory of x."""
    with np.errstate(over="ignore"):  # an overflow gives 0, which is right far below zero
        x /= 1 + np.exp(-x)
    return x


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    found: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return found


def clamped_swiglu(gate: Floats, up: Floats, activation: ClampedSwiglu) -> Floats:
    """Returns the product of a gate and up, see `ClampedSwiglu`."""
    limit = np.float32(activation.limit)
    gate = np.minimum(gate, limit)
    found: Floats = silu(gate * np.float32(activation.alpha)) * (np.clip(up, -limit, limit) + 1)
    return found / np.float32(activation.alpha)


ACTIVATIONS: Mapping[Activation, Callable[[Floats], Floats]] = {
    "silu": silu,
    "gelu_tanh": _gelu_tanh,
}
