"""Rotary position embedding; its types differ in inverse frequencies and a scale."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.bundle.sublayers import DEFAULT_ROPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgespec.bundle.manifest import Growth
    from edgespec.models.fields import ConfigFields

DEFAULT_THETA = 10_000.0

LOCAL_ROPE = "local"
"""The name of the rotation table of layers with a window, where these have their own."""

# Factors for texts within the original context, and for longer ones.
_LONGROPE_FACTORS = ("short_factor", "long_factor")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary position embedding (Su et al., 2021) in the half-split layout of the checkpoints.

    Dimensions i and i + head_dim / 2 are rotated by position * inv_freq[i] radians.

    Attributes:
        inv_freq: [head_dim / 2] float32, radians per position; 0 for two dimensions that are
            neither rotated nor scaled.
        attention_factor: Factor of cosines and sines, so attention scores have its square.
        growth: What cosines and sines grow by with the position; None: they do not.
    """

    inv_freq: NDArray[np.float32]
    attention_factor: float = 1.0
    growth: Growth | None = None

    @property
    def scales(self) -> NDArray[np.float64]:
        """[head_dim / 2] factors of cosines and sines."""
        return np.where(self.inv_freq == 0, 1.0, self.attention_factor)


def rope_from_config(fields: ConfigFields, head_dim: int, layer_type: str | None = None) -> Rope:
    """Reads RoPE from a config in the older or the newer format.

    The older one has `rope_theta` and `rope_scaling`, whose type may be called `type`. The newer
    one (transformers 5) has all in `rope_parameters`. If both exist, `rope_scaling` is used, as in
    transformers.

    In transformers, two types depend on the length of the text, which cached keys cannot follow.
    Here, `longrope` uses one list of factors for all texts: the long one if
    `max_position_embeddings` exceeds the original context. `dynamic` changes nothing up to
    `max_position_embeddings`, and longer texts are not supported here. This is logged.

    Args:
        fields: The config, with `max_position_embeddings` filled in.
        head_dim: Size of a head, even; all dimensions are rotated.
        layer_type: The group of `rope_parameters` to read, if it has one for each type of layer.

    Raises:
        UnsupportedModelError: The type is not default, linear, dynamic, llama3, yarn, longrope or
            proportional, the rotation is partial although it is not proportional, or parameters
            depend on a layer type and none is given.
        CheckpointError: A parameter is missing or has an invalid value.
    """
    scaling = _parameters(fields, layer_type)
    if scaling.get("rope_type") == "proportional":
        return _proportional(fields, scaling, head_dim)
    for place in (fields, scaling):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.unsupported("partial_rotary_factor", "only 1.0 is")
    return _rope(fields, scaling, head_dim)


def partial_rope_from_config(fields: ConfigFields, head_dim: int) -> Rope:
    """Reads RoPE that may rotate only a part of each head, `partial_rotary_factor` of it.

    Pairs of dimensions that are not rotated come last and have the frequency 0. Checkpoints have
    dimensions in another order, see `rotation_order`.

    Args:
        fields: See `rope_from_config`.
        head_dim: Size of a head, even.

    Raises:
        UnsupportedModelError: See `rope_from_config`, or the part that is rotated is odd.
        CheckpointError: A parameter is missing or has an invalid value.
    """
    scaling = _parameters(fields, None)
    rope = _rope(fields, scaling, rotated_dimensions(fields, head_dim))
    still = head_dim // 2 - len(rope.inv_freq)
    return replace(rope, inv_freq=np.pad(rope.inv_freq, (0, still)))


def rotated_dimensions(fields: ConfigFields, head_dim: int) -> int:
    """Returns how many dimensions of a head are rotated, by `partial_rotary_factor`."""
    name = "partial_rotary_factor"
    scaling = _parameters(fields, None)
    place = fields if scaling.get(name) is None else scaling
    factor = place.number(name, 1.0)
    if factor > 1:
        raise place.invalid(name, "must be 1 or less")
    rotated = int(head_dim * factor)
    if rotated < 2 or rotated % 2:
        raise place.unsupported(
            name, f"it must rotate an even number of a head's {head_dim} dimensions, not {rotated}"
        )
    return rotated


def rotation_order(head_dim: int, rotated: int, interleaved: bool) -> NDArray[np.int64]:
    """Returns the order of a head's dimensions in which `Rope` rotates the right pairs.

    If queries and keys have their dimensions in the same order, attention scores do not depend on
    it.

    Args:
        head_dim: Size of a head.
        rotated: Number of its first dimensions that are rotated.
        interleaved: Whether dimensions 2i and 2i + 1 are a pair, instead of i and i + rotated / 2.

    Returns:
        [head_dim] int64, the checkpoint's number of each dimension.
    """
    turned = np.arange(rotated)
    still = np.arange(rotated, head_dim)
    pairs = turned.reshape(-1, 2).T if interleaved else turned.reshape(2, -1)
    return np.concatenate([pairs, still.reshape(2, -1)], axis=1).ravel()


def _parameters(fields: ConfigFields, layer_type: str | None) -> ConfigFields:
    """Returns the group with RoPE's parameters, for a type of layer if it has one for each."""
    scaling = fields.group("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    if layer_type is not None and layer_type in scaling.values:
        scaling = scaling.group(layer_type)
    for name, value in scaling.values.items():
        if isinstance(value, Mapping):
            raise scaling.unsupported(name, "RoPE must be the same in every layer")
    return scaling


def _rope(fields: ConfigFields, scaling: ConfigFields, head_dim: int) -> Rope:
    """Returns a rotation of `head_dim` dimensions by these parameters."""
    theta = scaling.number("rope_theta", fields.number("rope_theta", DEFAULT_THETA))
    # Rounded where transformers rounds, so that angles of large positions are the same.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    wavelengths = (theta ** exponents.astype(np.float64)).astype(np.float32)
    inv_freq = np.float32(1) / wavelengths
    type_name = "rope_type" if scaling.get("rope_type") is not None else "type"
    match scaling.get(type_name):
        case None | "default":
            return Rope(inv_freq)
        case "linear":
            return Rope(inv_freq / np.float32(scaling.number("factor")))
        case "dynamic":
            _log.warning(
                "%s: %s='dynamic' would only affect texts longer than max_position_embeddings, "
                "which are refused; texts of up to %d tokens are not affected",
                scaling.source,
                type_name,
                fields.integer("max_position_embeddings"),
            )
            return Rope(inv_freq)
        case "llama3":
            return Rope(_llama3(inv_freq, scaling, original_context(fields, scaling)))
        case "yarn":
            return _yarn(inv_freq, theta, fields, scaling)
        case "longrope":
            return _longrope(wavelengths, fields, scaling)
        case _:
            raise scaling.unsupported(
                type_name, "use default, linear, dynamic, llama3, yarn, longrope or proportional"
            )


def ropes_by_layer_type(fields: ConfigFields, head_dim: int, local_theta: float) -> dict[str, Rope]:
    """Reads the rotation tables of a model whose layers with a window have their own.

    `rope_parameters` has a group for each type of layer. In the older format, `rope_theta` and
    `rope_scaling` are those of layers without a window.

    Args:
        fields: The config, with `max_position_embeddings` filled in.
        head_dim: Size of a head, even.
        local_theta: Theta of layers with a window in the older format; nothing else scales them.

    Returns:
        The tables `DEFAULT_ROPE` and `LOCAL_ROPE`.

    Raises:
        UnsupportedModelError, CheckpointError: See `rope_from_config`.
    """
    windowed = fields.changed(rope_theta=local_theta, rope_scaling=None)
    return {
        DEFAULT_ROPE: rope_from_config(fields, head_dim, "full_attention"),
        LOCAL_ROPE: rope_from_config(windowed, head_dim, "sliding_attention"),
    }


def original_context(fields: ConfigFields, scaling: ConfigFields) -> int:
    """Returns the context length before scaling; it may be outside of the RoPE parameters.

    Args:
        fields: The config, with `max_position_embeddings` filled in.
        scaling: Its RoPE parameters.

    Raises:
        CheckpointError: It is no positive integer.
    """
    name = "original_max_position_embeddings"
    fallback = scaling.integer(name, fields.integer("max_position_embeddings"))
    return fields.integer(name, fallback)


def _llama3(
    inv_freq: NDArray[np.float32], scaling: ConfigFields, original_context: int
) -> NDArray[np.float32]:
    """Scales frequencies like Llama 3.1: slow ones are divided by the factor, fast ones kept.

    A frequency is slow below `low_freq_factor` turns within the original context, and fast above
    `high_freq_factor` turns. In between, both results are blended.
    """
    if scaling.get("factors") is not None:  # what the rest comes to, as GGUF files have it
        factors = np.array(scaling.numbers("factors", len(inv_freq)), np.float32)
        return np.divide(inv_freq, factors, dtype=np.float32)
    low = scaling.number("low_freq_factor")
    high = scaling.number("high_freq_factor")
    if high <= low:
        raise scaling.invalid("high_freq_factor", f"must exceed low_freq_factor={low}")
    turns = original_context * inv_freq / (2 * math.pi)
    kept: NDArray[np.float32] = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return inv_freq * (kept + (1.0 - kept) / scaling.number("factor"))


def _proportional(fields: ConfigFields, scaling: ConfigFields, head_dim: int) -> Rope:
    """Rotates the first pairs of dimensions as if all were rotated, and no others (Gemma 4)."""
    share = scaling.number("partial_rotary_factor", 1.0)
    if share > 1:
        raise scaling.invalid("partial_rotary_factor", "must be 1 or less")
    linear = {**scaling.values, "rope_type": "linear", "factor": scaling.number("factor", 1.0)}
    inv_freq = _rope(fields, replace(scaling, values=linear), head_dim).inv_freq
    inv_freq[int(share * head_dim // 2) :] = 0
    return Rope(inv_freq)


def _yarn(
    inv_freq: NDArray[np.float32], theta: float, fields: ConfigFields, scaling: ConfigFields
) -> Rope:
    """YaRN (Peng et al., 2023): as in Llama 3.1, but blended by the dimension's number.

    The dimensions between which frequencies are blended turn `beta_fast` and `beta_slow` times
    within the original context.
    """
    if theta <= 1:
        place = fields if scaling.get("rope_theta") is None else scaling
        raise place.invalid("rope_theta", "must exceed 1 for YaRN")
    original = original_context(fields, scaling)
    factor = _stretch(fields, scaling)
    fast = scaling.number("beta_fast", 32.0) if scaling.get("beta_fast") else 32.0
    slow = scaling.number("beta_slow", 1.0) if scaling.get("beta_slow") else 1.0
    if fast < slow:
        raise scaling.invalid("beta_fast", f"must be at least beta_slow={slow}")

    head_dim = 2 * len(inv_freq)
    low, high = (
        head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (fast, slow)
    )
    if scaling.get("truncate") is None or scaling.flag("truncate"):
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, head_dim - 1)
    width = high - low or 0.001
    divided = np.clip((np.arange(len(inv_freq), dtype=np.float32) - low) / width, 0.0, 1.0)
    blended = inv_freq * (1 - divided + divided / np.float32(factor))
    return Rope(blended.astype(np.float32), _yarn_attention_factor(scaling, factor))


def _yarn_attention_factor(scaling: ConfigFields, factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return scaling.number("attention_factor")
    if not (scaling.get("mscale") and scaling.get("mscale_all_dim")):  # 0 stands for neither
        return _mscale(factor, 1.0)
    mscales = (scaling.number(name) for name in ("mscale", "mscale_all_dim"))
    above, below = (_mscale(factor, mscale) for mscale in mscales)
    return above / below


def scores_factor(fields: ConfigFields) -> float:
    """Returns the factor of attention scores of models with latents, by RoPE's `mscale_all_dim`.

    Raises:
        CheckpointError: A parameter has an invalid value.
    """
    scaling = _parameters(fields, None)
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind in (None, "default") or not scaling.get("mscale_all_dim"):
        return 1.0
    return _mscale(scaling.number("factor"), scaling.number("mscale_all_dim")) ** 2


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(
    wavelengths: NDArray[np.float32], fields: ConfigFields, scaling: ConfigFields
) -> Rope:
    """LongRoPE (Ding et al., 2024): a factor for each dimension, from one of two lists."""
    original = original_context(fields, scaling)
    factor = _stretch(fields, scaling)
    if original < 2:
        raise scaling.invalid("original_max_position_embeddings", "must be 2 or more")
    lists = {name: scaling.numbers(name, len(wavelengths)) for name in _LONGROPE_FACTORS}
    context = fields.integer("max_position_embeddings")
    name = _LONGROPE_FACTORS[context > original]
    _log.warning(
        "%s: %s is used for all texts, since max_position_embeddings=%d %s "
        "original_max_position_embeddings=%d",
        scaling.source,
        name,
        context,
        "exceeds" if context > original else "is within",
        original,
    )
    if scaling.get("attention_factor") is not None:
        attention_factor = scaling.number("attention_factor")
    else:
        attention_factor = math.sqrt(1 + max(math.log(factor), 0.0) / math.log(original))
    factors = np.array(lists[name], np.float32)
    return Rope(np.float32(1) / (factors * wavelengths), attention_factor)


def _stretch(fields: ConfigFields, scaling: ConfigFields) -> float:
    """Returns the factor of context extension: the config's, or that of its two lengths."""
    context = fields.integer("max_position_embeddings")
    return scaling.number("factor", context / original_context(fields, scaling))
