"""What graphs of draft heads have in common, for OpenVINO: parts, made of a GGUF file's tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST = 65504.0  # of float16
_GROUP = 32  # weights that share a scale, as in Q8_0


class HeadGraph(ABC):
    """Builds the graph of a head; a form of heads has a class below it, whose `model` does so.

    Args:
        facts: of the head's GGUF file.
        tensors: of that file, in float32.
    """

    def __init__(self, facts: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        from openvino import opset13

        self._ops = opset13
        self._facts = facts
        self._tensors = dict(tensors)
        self._sinks = list[Any]()
        self._heads = self._fact("attention.head_count")
        self._kv_heads = self._fact("attention.head_count_kv")
        self._dims = self._fact("attention.key_length")

    @abstractmethod
    def model(self, ids: Any = None) -> Any:
        """Returns the model; ids are the target's of what it proposes, where these are others."""

    def _fact(self, name: str) -> Any:
        """Returns what the file says of its form of heads."""
        return self._facts[f"{self._facts['general.architecture']}.{name}"]

    def _taps(self) -> list[int]:
        """Returns the layers whose output is taken, which enters the next ones."""
        return [each - 1 for each in self._fact("target_layers")]

    def _words(self) -> int:
        return len(self._facts["tokenizer.ggml.tokens"])

    def _made(self, results: Sequence[Any], inputs: Sequence[Any]) -> Any:
        import openvino

        return openvino.Model(list(results), self._sinks, list(inputs), "head")

    def _input(self, name: str, shape: list[int], dtype: Any = np.int64) -> Any:
        return named(self._ops.parameter(shape, dtype), name)

    def _linear(self, x: Any, name: str) -> Any:
        """Multiplies by a matrix in int8, with a scale for each `_GROUP` of a row."""
        ops = self._ops
        values = self._tensors[f"{name}.weight"]
        groups = values.reshape(len(values), -1, _GROUP)
        scales = np.abs(groups).max(-1, keepdims=True) / 127
        levels = np.rint(groups / np.where(scales, scales, 1)).astype(np.int8)
        weights = ops.multiply(
            ops.convert(ops.constant(levels), np.float16), ops.constant(scales.astype(np.float16))
        )
        whole = ops.reshape(weights, np.array(values.shape), special_zero=False)
        return ops.matmul(x, ops.convert(whole, np.float32), False, True)

    def _norm(self, x: Any, name: str) -> Any:
        ops = self._ops
        eps = self._fact("attention.layer_norm_rms_epsilon")
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(mean, np.float32(eps)))
        scaled = ops.multiply(ops.divide(np.float32(1), root), x)
        return ops.multiply(scaled, self._tensors[f"{name}.weight"].reshape(1, 1, -1))

    def _mlp(self, stream: Any, layer: str) -> Any:
        """Adds what a layer's second half makes of a stream."""
        ops = self._ops
        x = self._norm(stream, f"{layer}.ffn_norm")
        gate, up = (self._linear(x, f"{layer}.ffn_{part}") for part in ("gate", "up"))
        gated = ops.multiply(ops.swish(gate), up)
        return ops.add(stream, self._linear(gated, f"{layer}.ffn_down"))

    def _split(self, x: Any, name: str, heads: int) -> Any:
        """Projects rows to heads, [B, heads, T, dims], and norms these where there is a norm."""
        ops = self._ops
        rows = ops.reshape(self._linear(x, name), np.array([0, 0, heads, self._dims]), True)
        if f"{name}_norm.weight" in self._tensors:
            rows = self._norm(rows, f"{name}_norm")
        return ops.transpose(rows, np.array([0, 2, 1, 3]))

    def _joined(self, x: Any) -> Any:
        """Returns rows of what heads found."""
        ops = self._ops
        rows = ops.transpose(x, np.array([0, 2, 1, 3]))
        return ops.reshape(rows, np.array([0, 0, self._heads * self._dims]), True)

    def _turns(self, positions: Any) -> tuple[Any, Any]:
        """Returns cosines and sines of positions: [B, 1, T, dims]."""
        ops = self._ops
        speeds = self._fact("rope.freq_base") ** -(np.arange(0, self._dims, 2) / self._dims)
        places = ops.unsqueeze(ops.convert(positions, np.float32), np.array([1, 3]))
        angles = ops.multiply(places, np.tile(speeds, 2).astype(np.float32).reshape(1, 1, 1, -1))
        return ops.cos(angles), ops.sin(angles)

    def _turned(self, x: Any, turns: Sequence[Any]) -> Any:
        ops = self._ops
        first, second = ops.split(x, np.int64(3), 2).outputs()
        across = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
        return ops.add(ops.multiply(x, turns[0]), ops.multiply(across, turns[1]))

    def _cached(self, x: Any, name: str, beams: Any) -> Any:
        """Puts rows behind those of before, and keeps them."""
        ops = self._ops
        known = f"past_key_values.{name}"
        batch = ops.gather(ops.shape_of(x), np.array([0]), np.int64(0))
        shape = ops.concat([batch, np.array([self._kv_heads, 0, self._dims])], 0)
        before = ops.read_value(
            ops.broadcast(np.float32(0), shape),
            known,
            np.float32,
            [-1, self._kv_heads, -1, self._dims],
        )
        rows = ops.concat([ops.gather(before, beams, np.int64(0)), x], 2)
        self._sinks.append(ops.assign(rows, known))
        return rows

    def _repeated(self, rows: Any) -> Any:
        """Repeats keys or values for the heads that read them."""
        ops = self._ops
        each = np.array([1, 1, self._heads // self._kv_heads, 1, 1])
        repeated = ops.broadcast(
            ops.unsqueeze(rows, np.array([2])), each, broadcast_spec="BIDIRECTIONAL"
        )
        return ops.reshape(repeated, np.array([0, self._heads, -1, self._dims]), True)


def named(node: Any, name: str) -> Any:
    """Gives a node's output the name by which the library asks for it."""
    node.set_friendly_name(name)
    node.output(0).set_names({name})
    return node
