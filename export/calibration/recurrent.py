"""Recurrent sublayers of whole texts in float32 with numpy, position by position."""

from __future__ import annotations

import numpy as np

from edgespec.export.formats.blocks import Floats

_EPSILON = 1e-6  # of the normalization of queries and keys


def convolved(x: Floats, weight: Floats) -> Floats:
    """Convolves each channel with its last positions: [B, T, D] and [D, 1, K] give [B, T, D]."""
    size = weight.shape[2]
    padded = np.pad(x, ((0, 0), (size - 1, 0), (0, 0)))
    length = x.shape[1]
    taps = (padded[:, tap : tap + length] * weight[:, 0, tap] for tap in range(size))
    found: Floats = sum(taps, np.zeros_like(x))
    return found


def gated_delta(
    queries: Floats, keys: Floats, values: Floats, rates: Floats, decays: Floats
) -> Floats:
    """Runs the gated delta rule, see `edgespec.models.layers.GatedDelta`.

    Args:
        queries: [B, T, key heads, key size].
        keys: the same shape.
        values: [B, T, value heads, value size].
        rates: [B, T, value heads].
        decays: [B, T, value heads].

    Returns:
        [B, T, value heads, value size].
    """
    group = values.shape[2] // keys.shape[2]
    size = np.float32(keys.shape[3] ** -0.5)
    q, k = (_unit(each).repeat(group, axis=2)[..., None] for each in (queries, keys))
    state = np.zeros((len(values), values.shape[2], keys.shape[3], values.shape[3]), np.float32)
    results = np.empty_like(values)
    for t in range(values.shape[1]):
        state *= np.exp(decays[:, t])[..., None, None]
        known = (state * k[:, t]).sum(axis=2)
        error = (values[:, t] - known) * rates[:, t, :, None]
        state += k[:, t] * error[:, :, None]
        results[:, t] = (state * q[:, t]).sum(axis=2) * size
    return results


def _unit(x: Floats) -> Floats:
    found: Floats = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + np.float32(_EPSILON))
    return found
