"""Computes a model in float32 with numpy, one sublayer at a time, for calibration.

The exported graphs do not exist yet at that time, and their numbers are rounded. Only the matrices
of one sublayer are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.bundle.sublayers import window_of
from edgespec.errors import CheckpointError
from edgespec.export.calibration.functions import (
    ACTIVATIONS,
    clamped_swiglu,
    limited,
    sigmoid,
    silu,
)
from edgespec.export.calibration.recurrent import convolved, gated_delta
from edgespec.export.formats.blocks import Floats
from edgespec.export.formats.products import product
from edgespec.export.formats.weights import check_range, read_finite
from edgespec.models import (
    Attention,
    Checkpoint,
    GatedDelta,
    Injection,
    Linear,
    Mlp,
    Moe,
    Norm,
    Rope,
    ShortConvolution,
    Sublayer,
)
from edgespec.models.layers import (
    ClampedSwiglu,
    Convolution,
    LayerInputs,
    LayerNorm,
    Recurrent,
)

Weights = Mapping[str, Floats]
"""Matrices [N, K] by name; some can be replaced by rounded ones."""

Rows = slice | npt.NDArray[np.int64]
"""Numbers of rows of the residual stream."""

_HIDDEN = np.float32(-1e9)


@dataclass(frozen=True)
class Routed:
    """The rows that choose an expert, of which there may be none.

    Attributes:
        expert: the expert.
        rows: [n] int64, numbers of the rows, ascending.
        shares: [n, 1] float32, the expert's factor in the output of each.
    """

    expert: Mlp
    rows: npt.NDArray[np.int64]
    shares: Floats


class Forward:
    """Runs texts of one length through a decoder.

    Args:
        checkpoint: the model.
        texts: [B, T] token ids.

    Attributes:
        hidden: [B * T, hidden_size] float32, the residual stream, which `add` updates.
    """

    def __init__(self, checkpoint: Checkpoint, texts: npt.NDArray[np.int64]) -> None:
        self._path, self._tensors = checkpoint.path, checkpoint.tensors
        self._length = texts.shape[1]
        decoder = self._decoder = checkpoint.decoder
        ids, places = np.unique(texts, return_inverse=True)
        self._places = places.ravel()
        embedded = self._looked_up(decoder.embedding, ids) * np.float32(decoder.embedding_scale)
        self.hidden: Floats = embedded[self._places]
        self._inputs = self._layer_inputs(decoder.layer_inputs, ids, embedded)
        self._layer = 0
        self._shared: dict[int, tuple[Floats, Floats]] = {}
        self._turns = {name: _turns(rope, self._length) for name, rope in decoder.ropes.items()}
        masks = {each.mask for each in decoder.attentions}
        self._biases = {mask: _bias(window_of(mask), self._length) for mask in masks}

    def layers(self) -> Iterator[tuple[Sublayer, ...]]:
        """Yields the sublayers of each layer, to be computed before those of the next one."""
        for number, sublayers in enumerate(self._decoder.layers):
            self._layer = number
            yield sublayers
            if self._decoder.layer_factors:
                self.hidden *= self._read(self._decoder.layer_factors[self._layer])

    def weights(self, *layers: Linear) -> dict[str, Floats]:
        """Reads the matrices of linear layers.

        Raises:
            CheckpointError: if a matrix contains infinity or NaN.
            ExportError: if it contains numbers that half precision cannot represent.
        """
        found = {layer.weight: self._read(layer.weight) for layer in layers}
        for name, weight in found.items():
            check_range(self._tensors, name, weight, np.float16)
        return found

    def normed(self, x: Floats, norm: Norm | None) -> Floats:
        """Normalizes the last axis of x; without a norm, returns x unchanged."""
        if norm is None:
            return x
        bias: Floats | np.float32 = np.float32(0)
        if isinstance(norm, LayerNorm):
            x = x - x.mean(axis=-1, keepdims=True)
            bias = self._read(norm.bias)
        square = np.square(x).mean(axis=-1, keepdims=True)
        normed: Floats = x / np.sqrt(square + np.float32(norm.eps))
        weight = np.ones(norm.size, np.float32) if not norm.weight else self._read(norm.weight)
        weight = (weight + np.float32(norm.offset)) * np.float32(norm.factor)
        return normed * weight + bias

    def add(self, update: Floats) -> None:
        """Adds a sublayer's output, [B * T, hidden_size], to the residual stream.

        Raises:
            CheckpointError: if the sum contains infinity or NaN.
        """
        self.hidden += update
        if not np.isfinite(self.hidden).all():
            raise CheckpointError(
                f"{self._path} computes infinity or NaN from plain text: download the "
                "checkpoint again, or export it without calibration"
            )

    def linear(self, x: Floats, layer: Linear, weights: Weights) -> Floats:
        """Applies a linear layer to x [rows, K]; returns [rows, N]."""
        y = product(x, weights[layer.weight])
        if layer.bias is not None:
            y += self._read(layer.bias)
        return y

    def contribution(
        self, layer: Attention | Mlp | Injection | Recurrent, mixed: Floats, weights: Weights
    ) -> Floats:
        """Computes what a sublayer adds to the residual stream from what `mixed` gave.

        Args:
            layer: the sublayer.
            mixed: [rows, K], the input of the sublayer's last projection.
            weights: the sublayer's matrices.
        """
        update = self.normed(self.linear(mixed, layer.linears[-1], weights), layer.post_norm)
        return update * np.float32(layer.output_factor)

    def routed(self, layer: Moe, x: Floats) -> tuple[Routed, ...]:
        """Returns each expert of a mixture with the rows that choose it, of x [rows, hidden_size].

        x is the normalized residual stream, which must be as it is before the mixture.
        """
        read = x if layer.router_norm is None else self.normed(self.hidden, layer.router_norm)
        scores = self.linear(
            read, layer.router, {layer.router.weight: self._read(layer.router.weight)}
        )
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : layer.top_k]
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        total = np.take_along_axis(shares, chosen, 1) if layer.normalized else shares
        shares *= np.float32(layer.output_factor) / total.sum(axis=1, keepdims=True)
        if layer.expert_factors is not None:
            shares = shares * self._read(layer.expert_factors)
        found = []
        for number, expert in enumerate(layer.experts):
            rows = np.flatnonzero((chosen == number).any(axis=1))
            found.append(Routed(expert, rows, shares[rows, number, None]))
        return tuple(found)

    def mixture(self, routed: Sequence[Routed], x: Floats) -> Floats:
        """Computes a mixture of experts for x [rows, hidden_size], one expert at a time."""
        found = np.zeros_like(x)
        for each in routed:
            if len(each.rows):
                weights = self.weights(*each.expert.linears)
                mixed = self.mixed(each.expert, x[each.rows], weights)
                found[each.rows] += each.shares * self.linear(mixed, each.expert.down, weights)
        return found

    def mixed(
        self,
        layer: Attention | Mlp | Injection | Recurrent,
        x: Floats,
        weights: Weights,
        rows: Rows | None = None,
    ) -> Floats:
        """Computes the input of a sublayer's last projection, for whole texts.

        Args:
            layer: the sublayer, of the layer that `layers` gave last.
            x: [rows, hidden_size], the sublayer's normalized input.
            weights: the sublayer's matrices.
            rows: the rows that x is of; None: all. Then what other layers read is kept.
        """
        if isinstance(layer, Attention):
            return self._attended(layer, x, weights, rows)
        if isinstance(layer, Injection):
            own = self._inputs[self._places if rows is None else self._places[rows], self._layer]
            gate = ACTIVATIONS[layer.activation](self.linear(x, layer.gate, weights))
            injected: Floats = gate * own
            return injected
        if isinstance(layer, ShortConvolution):
            before, after, value = np.split(self.linear(x, layer.inner, weights), 3, axis=1)
            return after * self._convolved(before * value, layer.convolution)
        if isinstance(layer, GatedDelta):
            return self._remembered(layer, x, weights)
        return self._gated(layer, x, weights)

    def _attended(self, layer: Attention, x: Floats, weights: Weights, rows: Rows | None) -> Floats:
        queries, gate = self.linear(x, layer.q, weights), None
        if layer.gated:
            both = queries.reshape(len(x), layer.heads, 2, layer.head_dim)
            queries, gate = (both[:, :, part].reshape(len(x), -1) for part in (0, 1))
        q = self._turned(queries, layer.q_norm, layer.heads, layer)
        k, v = self._keys_values(layer, x, weights, rows)
        q *= np.float32(layer.scale)
        bias = self._biases[layer.mask]
        group = layer.heads // layer.kv_heads
        none = np.full(layer.heads, -np.inf, np.float32)
        sinks = none if layer.sinks is None else self._read(layer.sinks)
        mixed = np.empty_like(q)
        for head in range(layer.heads):
            keys, values = k[:, :, head // group], v[:, :, head // group]
            scores = limited(q[:, :, head] @ keys.transpose(0, 2, 1), layer.softcap) + bias
            largest = np.maximum(scores.max(axis=-1, keepdims=True), sinks[head])
            shares = np.exp(scores - largest)
            total = shares.sum(axis=-1, keepdims=True) + np.exp(sinks[head] - largest)
            mixed[:, :, head] = shares / total @ values
        joined = mixed.reshape(len(x), -1)
        return joined if gate is None else joined * sigmoid(gate)

    def _keys_values(
        self, layer: Attention, x: Floats, weights: Weights, rows: Rows | None
    ) -> tuple[Floats, Floats]:
        """Computes keys and values [B, T, KV, hd], or takes those of another layer."""
        shape = -1, self._length, layer.kv_heads, layer.head_dim
        if layer.k is None:
            assert layer.source is not None
            both = self._shared[layer.source]
            k, v = (each[slice(None) if rows is None else rows].reshape(shape) for each in both)
            return k, v
        keys = self.linear(x, layer.k, weights)
        values = keys if layer.v is None else self.linear(x, layer.v, weights)
        k = self._turned(keys, layer.k_norm, layer.kv_heads, layer)
        v = self.normed(values.reshape(shape), layer.v_norm)
        if rows is None and self._layer in self._decoder.shared:
            self._shared[self._layer] = k.reshape(len(x), -1), v.reshape(len(x), -1)
        return k, v

    def _layer_inputs(
        self, described: LayerInputs | None, ids: npt.NDArray[np.int64], embedded: Floats
    ) -> Floats:
        """Computes the inputs of all layers by token, [ids, layers, size]; empty without any."""
        if described is None:
            return np.empty((0, 0, 0), np.float32)
        shape = len(ids), -1, described.norm.size
        found = self._looked_up(described.table, ids) * np.float32(described.scale)
        weights = self.weights(described.projection)
        projected = self.linear(embedded, described.projection, weights).reshape(shape)
        inputs: Floats = self.normed(projected, described.norm) + found.reshape(shape)
        return inputs

    def _looked_up(self, name: str, ids: npt.NDArray[np.int64]) -> Floats:
        rows = [read_finite(self._tensors, name, id_, id_ + 1) for id_ in ids.tolist()]
        return np.concatenate(rows)

    def _convolved(self, x: Floats, layer: Convolution) -> Floats:
        by_text = x.reshape(-1, self._length, layer.channels)
        return convolved(by_text, self._read(layer.weight)).reshape(x.shape)

    def _remembered(self, layer: GatedDelta, x: Floats, weights: Weights) -> Floats:
        rates, decays, gate, mixed = (
            self.linear(x, each, weights)
            for each in (layer.rate, layer.decay, layer.gate, layer.mixed)
        )
        keys = layer.key_heads * layer.key_size
        parts = np.split(silu(self._convolved(mixed, layer.convolution)), (keys, 2 * keys), axis=1)
        sizes = layer.key_size, layer.key_size, layer.value_size
        q, k, v = (
            part.reshape(-1, self._length, part.shape[1] // size, size)
            for part, size in zip(parts, sizes, strict=True)
        )
        speed = np.logaddexp(0, decays + self._read(layer.decay_bias))
        decays = -np.exp(self._read(layer.log_decay)) * speed
        by_head = -1, self._length, layer.value_heads
        found = gated_delta(q, k, v, sigmoid(rates).reshape(by_head), decays.reshape(by_head))
        return self.normed(found, layer.result_norm).reshape(len(x), -1) * silu(gate)

    def _gated(self, layer: Mlp, x: Floats, weights: Weights) -> Floats:
        gate, up = self.linear(x, layer.gate, weights), self.linear(x, layer.up, weights)
        if isinstance(layer.activation, ClampedSwiglu):
            return clamped_swiglu(gate, up, layer.activation)
        return ACTIVATIONS[layer.activation](gate) * up

    def _turned(self, x: Floats, norm: Norm | None, heads: int, layer: Attention) -> Floats:
        """Returns heads [B, T, heads, head_dim] after their norm, if there is one, and RoPE."""
        shape = -1, self._length, heads, layer.head_dim
        if norm is not None and norm.size != layer.head_dim:  # a norm over all heads together
            x, norm = self.normed(x, norm), None
        x = x.reshape(shape)
        if layer.norm_after_rope:
            return self.normed(self._rotated(x, layer.rope), norm)
        return self._rotated(self.normed(x, norm), layer.rope)

    def _rotated(self, x: Floats, rope: str) -> Floats:
        """Applies RoPE to heads [B, T, heads, head_dim]; without a table, returns x unchanged."""
        if not rope:
            return x
        cos, sin = self._turns[rope]
        first, second = np.split(x, 2, axis=-1)
        swapped: Floats = np.concatenate([second, first], axis=-1)
        turned: Floats = x * cos
        turned += swapped * sin
        return turned

    def _read(self, name: str) -> Floats:
        return read_finite(self._tensors, name, 0, self._tensors.shape(name)[0])


def _turns(rope: Rope, length: int) -> tuple[Floats, Floats]:
    """Returns cosines and sines for the positions of a text, [T, 1, head_dim] each."""
    angles = np.outer(np.arange(length), rope.inv_freq.astype(np.float64))
    cos, sin = (rope.scales * turn(angles) for turn in (np.cos, np.sin))
    return (
        np.concatenate([cos, cos], axis=1).astype(np.float32)[:, None],
        np.concatenate([-sin, sin], axis=1).astype(np.float32)[:, None],
    )


def _bias(window: int | None, length: int) -> Floats:
    """Returns the attention bias [T, T]: 0 where a row sees a column, else a large negative."""
    seen = np.tri(length, dtype=np.bool_)
    if window is not None:
        seen &= ~np.tri(length, k=-window, dtype=np.bool_)
    return np.where(seen, np.float32(0), _HIDDEN)
