"""Rotary position embedding: the inverse frequencies, which is all that differs between types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.models.fields import Fields

DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary position embedding (Su et al., 2021) in the half-split layout of the checkpoints.

    Dimension i turns together with i + head_dim / 2, by position * inv_freq[i] radians.

    Attributes:
        inv_freq: [head_dim / 2] float32, radians per position.
    """

    inv_freq: NDArray[np.float32]


def rope_from_config(fields: Fields, head_dim: int) -> Rope:
    """Read RoPE from a config in the older or the newer spelling.

    Older: `rope_theta` beside `rope_scaling`, which may name its type `type`. Newer (transformers
    5): all in `rope_parameters`. Where both are given `rope_scaling` wins, as in transformers.

    Args:
        fields: The config, with `max_position_embeddings` filled in.
        head_dim: Size of a head, even; all of it is rotated.

    Raises:
        UnsupportedModelError: A type other than default, linear and llama3, partial rotation, or
            parameters per layer type.
        CheckpointError: A parameter is missing or not a positive number.
    """
    scaling = fields.group("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    for name, value in scaling.values.items():
        if isinstance(value, Mapping):
            raise scaling.unsupported(name, "RoPE must be the same in every layer")
    for place in (fields, scaling):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.unsupported("partial_rotary_factor", "only 1.0 is")

    theta = scaling.number("rope_theta", fields.number("rope_theta", DEFAULT_THETA))
    # Rounded where transformers rounds, so that long positions turn by the same angle.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inv_freq = np.float32(1) / (theta ** exponents.astype(np.float64)).astype(np.float32)
    type_name = "rope_type" if scaling.get("rope_type") is not None else "type"
    match scaling.get(type_name):
        case None | "default":
            pass
        case "linear":
            inv_freq = inv_freq / np.float32(scaling.number("factor"))
        case "llama3":
            inv_freq = _llama3(inv_freq, scaling, _original_context(fields, scaling))
        case _:
            raise scaling.unsupported(type_name, "use default, linear or llama3")
    return Rope(inv_freq)


def _original_context(fields: Fields, scaling: Fields) -> int:
    """The context length before scaling; some configs keep it outside the RoPE parameters."""
    name = "original_max_position_embeddings"
    fallback = scaling.integer(name, fields.integer("max_position_embeddings"))
    return fields.integer(name, fallback)


def _llama3(
    inv_freq: NDArray[np.float32], scaling: Fields, original_context: int
) -> NDArray[np.float32]:
    """Llama 3.1's scaling: slow dimensions are divided by the factor, fast ones kept.

    How often a dimension turns within the original context decides: below `low_freq_factor` turns
    it is slow, above `high_freq_factor` fast, in between the two frequencies are blended.
    """
    low = scaling.number("low_freq_factor")
    high = scaling.number("high_freq_factor")
    if high <= low:
        raise scaling.invalid("high_freq_factor", f"must exceed low_freq_factor={low}")
    turns = original_context * inv_freq / (2 * math.pi)
    kept: NDArray[np.float32] = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return inv_freq * (kept + (1.0 - kept) / scaling.number("factor"))
