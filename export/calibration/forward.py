"""A model's own computation in float32, one sublayer after the other, with weights read as needed.

What calibration sees of a model: the graphs that an export writes do not exist yet, and their
numbers are rounded. Long matrices are never in memory together but for those of one sublayer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgespec.errors import CheckpointError
from edgespec.export.formats.blocks import Floats
from edgespec.export.formats.weights import check_range, read_finite
from edgespec.models import Attention, Checkpoint, Linear, Mlp, Norm

Weights = Mapping[str, Floats]
"""Matrices by name, [N, K]; in place of some, others can stand."""

_HIDDEN = np.float32(-1e9)


class Forward:
    """Texts of one length on their way through a decoder.

    Args:
        checkpoint: the model.
        texts: [B, T] token ids.

    Attributes:
        hidden: [B * T, hidden_size] float32, the residual stream, see `add`.
    """

    def __init__(self, checkpoint: Checkpoint, texts: npt.NDArray[np.int64]) -> None:
        self._tensors = checkpoint.tensors
        self._length = texts.shape[1]
        embedding, rope = checkpoint.decoder.embedding, checkpoint.decoder.rope
        ids, places = np.unique(texts, return_inverse=True)
        rows = [read_finite(self._tensors, embedding, id_, id_ + 1) for id_ in ids.tolist()]
        self.hidden: Floats = np.concatenate(rows)[places.ravel()]
        angles = np.outer(np.arange(self._length), rope.inv_freq.astype(np.float64))
        cos, sin = (rope.attention_factor * turn(angles) for turn in (np.cos, np.sin))
        self._cos: Floats = np.concatenate([cos, cos], axis=1).astype(np.float32)[:, None]
        self._sin: Floats = np.concatenate([-sin, sin], axis=1).astype(np.float32)[:, None]
        unseen = np.triu(np.ones((self._length, self._length), np.bool_), 1)
        self._bias = np.where(unseen, _HIDDEN, np.float32(0))

    def weights(self, *layers: Linear) -> dict[str, Floats]:
        """The matrices of linear layers.

        Raises:
            CheckpointError: if one holds infinity or NaN.
            ExportError: if one holds what half precision does not.
        """
        found = {layer.weight: self._read(layer.weight) for layer in layers}
        for name, weight in found.items():
            check_range(self._tensors, name, weight, np.float16)
        return found

    def normed(self, norm: Norm) -> Floats:
        """The residual stream as a sublayer reads it, [B * T, hidden_size]."""
        return self._normed(self.hidden, norm)

    def add(self, update: Floats) -> None:
        """Add a sublayer's contribution, [B * T, hidden_size], to the residual stream.

        Raises:
            CheckpointError: if that gives infinity or NaN.
        """
        self.hidden += update
        if not np.isfinite(self.hidden).all():
            raise CheckpointError(
                f"{self._tensors.folder} computes infinity or NaN from plain text: download the "
                "checkpoint again, or export it without calibration"
            )

    def linear(self, x: Floats, layer: Linear, weights: Weights) -> Floats:
        """[rows, K] times the layer's weight, transposed: [rows, N]."""
        y: Floats = x @ weights[layer.weight].T
        if layer.bias is not None:
            y += self._read(layer.bias)
        return y

    def attended(self, layer: Attention, x: Floats, weights: Weights) -> Floats:
        """What the output projection reads, of whole texts: [rows, heads * head_dim]."""
        q, k, v = (
            self.linear(x, part, weights).reshape(-1, self._length, heads, layer.head_dim)
            for part, heads in (
                (layer.q, layer.heads),
                (layer.k, layer.kv_heads),
                (layer.v, layer.kv_heads),
            )
        )
        q, k = self._turned(q, layer.q_norm), self._turned(k, layer.k_norm)
        q *= np.float32(layer.head_dim**-0.5)
        group = layer.heads // layer.kv_heads
        mixed = np.empty_like(q)
        for head in range(layer.heads):
            keys, values = k[:, :, head // group], v[:, :, head // group]
            scores = q[:, :, head] @ keys.transpose(0, 2, 1) + self._bias
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed[:, :, head] = shares / shares.sum(axis=-1, keepdims=True) @ values
        return mixed.reshape(len(x), -1)

    def gated(self, layer: Mlp, x: Floats, weights: Weights) -> Floats:
        """What the down projection reads: [rows, intermediate_size]."""
        gate = self.linear(x, layer.gate, weights)
        with np.errstate(over="ignore"):  # a gate far below zero is closed
            gate /= 1 + np.exp(-gate)
        gate *= self.linear(x, layer.up, weights)
        return gate

    def _turned(self, x: Floats, norm: Norm | None) -> Floats:
        """[B, T, heads, head_dim] after its norm, if it has one, and RoPE."""
        if norm is not None:
            x = self._normed(x, norm)
        first, second = np.split(x, 2, axis=-1)
        swapped: Floats = np.concatenate([second, first], axis=-1)
        turned: Floats = x * self._cos
        turned += swapped * self._sin
        return turned

    def _normed(self, x: Floats, norm: Norm) -> Floats:
        square = np.square(x).mean(axis=-1, keepdims=True)
        normed: Floats = x / np.sqrt(square + np.float32(norm.eps))
        return normed * self._read(norm.weight)

    def _read(self, name: str) -> Floats:
        return read_finite(self._tensors, name, 0, self._tensors.shape(name)[0])
