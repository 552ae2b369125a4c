"""How the rows of a call attend to the cache and to each other, without a copy of the cache.

Both forms read the past in place, and take who may see what from the caller's bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from onnx import TensorProto

from edgespec.bundle.sublayers import bias_input
from edgespec.export.components.graph import GraphBuilder
from edgespec.models import Attention

FLOAT = TensorProto.FLOAT
INT32, INT64 = TensorProto.INT32, TensorProto.INT64  # WebGPU joins only the former

KeysValues = tuple[str, str]
"""Keys and values, [KV, rows, hd] each."""

Input = Callable[..., str]
"""Declares an input of the stage: its name, ONNX element type and dimensions."""


@dataclass(frozen=True)
class Heads:
    """How many key heads there are, and how many query heads share each."""

    keys: int
    group: int

    @classmethod
    def of(cls, attention: Attention) -> Heads:
        """The heads of a layer."""
        return cls(attention.kv_heads, attention.heads // attention.kv_heads)


class AttentionForm(Protocol):
    """Attention of all layers of a stage; constructing it declares the inputs that it needs."""

    def __init__(self, graph: GraphBuilder, declare: Input, heads: Heads) -> None: ...

    def mix(self, q: str, past: KeysValues, new: KeysValues, mask: str) -> str:
        """Values mixed by attention.

        Args:
            q: [KV, G * S, hd], scaled.
            past: the cache, [KV, C, hd].
            new: of the call's own rows, [KV, S, hd].
            mask: which rows see which, see `edgespec.bundle.sublayers.Sublayer`.

        Returns:
            [KV, G * S, hd].
        """


class SplitAttention:
    """Scores against the past and the new rows, under one softmax; two products of values added.

    The least work. Where a sum is split depends on what the cache holds, so that the last bits of
    a row depend on the call that computes it: for drafts, and for devices that round more anyway.
    """

    def __init__(self, graph: GraphBuilder, declare: Input, heads: Heads) -> None:
        self._graph = graph
        self._bias = _Biases(graph, declare, heads, ("S", "C+S"))
        # Split sizes come from the host: bounds computed inside a graph have gone wrong on GPUs.
        self._lengths = declare("lengths", INT64, 2)

    def mix(self, q: str, past: KeysValues, new: KeysValues, mask: str) -> str:
        """See `AttentionForm`."""
        g = self._graph
        scores = g.op("Concat", _scores(g, q, past[0]), _scores(g, q, new[0]), axis=-1)
        shares = g.op("Softmax", g.op("Add", scores, self._bias[mask]), axis=-1)
        old, own = g.multi_op("Split", shares, self._lengths, outputs=2, axis=-1)
        return g.op("Add", g.op("MatMul", old, past[1]), g.op("MatMul", own, new[1]))


class OrderedAttention:
    """Attention that adds up in an order given by positions alone.

    So a row's result is the same, bit for bit, in whatever call it is computed: alone, in a chunk
    of a prompt, in any tree. Each row has N columns for its last positions, whether the cache or
    the call holds them, before the C columns of the cache, where only older positions count:

    * `window_rows` [W]: the last rows of the cache. Their keys and values, and then those of the
      S new rows, are the W + S *near* rows, in which a row's ancestors stand in the order of their
      positions.
    * `recent_rows` [S, N]: the near row whose score goes to each column.
    * `recent_columns` [S, W + S]: the way back: the column whose share each near row gets. Of those
      that a row must not see it is one that `attention_bias` switches off.

    What it takes for granted, that a product adds up from its first column to its last whatever
    stands beside it, is tried on each machine (`runtime/execution/exactness.py`).
    """

    def __init__(self, graph: GraphBuilder, declare: Input, heads: Heads) -> None:
        self._graph = graph
        self._bias = _Biases(graph, declare, heads, ("S", "N+C"))
        self._lengths = declare("lengths", INT64, 2)
        self._window = declare("window_rows", INT64, "W")
        self._rows = self._for_scores(declare("recent_rows", INT32, "S", "N"), heads)
        self._columns = self._for_scores(declare("recent_columns", INT32, "S", "W+S"), heads)

    def mix(self, q: str, past: KeysValues, new: KeysValues, mask: str) -> str:
        """See `AttentionForm`."""
        g = self._graph
        keys, values = (self._near(old, own) for old, own in zip(past, new, strict=True))
        old = _scores(g, q, past[0])
        recent = g.op("GatherElements", _scores(g, q, keys), self._rows, axis=2)
        scores = g.op("Add", g.op("Concat", recent, old, axis=-1), self._bias[mask])
        shares = g.op("Softmax", scores, axis=-1)
        recent, old = g.multi_op("Split", shares, self._lengths, outputs=2, axis=-1)
        near = g.op("GatherElements", recent, self._columns, axis=2)
        return g.op("Add", g.op("MatMul", old, past[1]), g.op("MatMul", near, values))

    def _near(self, past: str, new: str) -> str:
        """[KV, W + S, hd]: the cache's last rows, and the new ones."""
        window = self._graph.op("Gather", past, self._window, axis=1)
        return self._graph.op("Concat", window, new, axis=1)

    def _for_scores(self, indices: str, heads: Heads) -> str:
        """Indices of rows as those of all heads, [KV, G * S, …]."""
        g = self._graph
        return g.op(
            "Concat",
            *[g.op("Unsqueeze", _for_group(g, indices, heads), g.ints(0))] * heads.keys,
            axis=0,
        )


class _Biases(dict[str, str]):
    """[G * S, columns] for each mask, declared as an input when it is first asked for."""

    def __init__(
        self, graph: GraphBuilder, declare: Input, heads: Heads, shape: tuple[str, str]
    ) -> None:
        super().__init__()
        self._graph, self._declare, self._heads, self._shape = graph, declare, heads, shape

    def __missing__(self, mask: str) -> str:
        declared = self._declare(bias_input(mask), FLOAT, *self._shape)
        self[mask] = _for_group(self._graph, declared, self._heads)
        return self[mask]


def _for_group(graph: GraphBuilder, rows: str, heads: Heads) -> str:
    """[S, …] once for each query head that shares keys: [G * S, …]."""
    return graph.op("Concat", *[rows] * heads.group, axis=0) if heads.group > 1 else rows


def _scores(graph: GraphBuilder, q: str, keys: str) -> str:
    """[KV, G * S, rows of keys]."""
    return graph.op("MatMul", q, graph.op("Transpose", keys, perm=[0, 2, 1]))
