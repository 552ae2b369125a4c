"""Attention in the portable graph: one softmax over the scores of the pool and of the new rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto

from edgespec.bundle import CHUNKS, PICTURED, SIGHT
from edgespec.bundle.sublayers import pool_parts
from edgespec.export.graph_builder import Shape
from edgespec.export.portable.lowering import FLOAT, Lowering, attributes, dims_of

_HALF = TensorProto.FLOAT16
_INPUTS = (
    "qkv", "cos", "sin", "pool", "scales", "write", "parent", "sequence", "context", "starts",
    "q_norm", "k_norm", "sinks", "key_scale", "sight",
)  # fmt: skip
_END = (1 << 63) - 1  # of any axis
_DEFAULTS = {
    "scale": 1.0,
    "soft_cap": 0.0,
    "window": 0,
    "chunked": 0,
    "gated": 0,
    "norm_after_rope": 0,
}


class _KeysAndValues(NamedTuple):
    """Keys and values of the pool and of the new rows, each [1, kv_heads, rows, dim] float32."""

    dim: int
    old_keys: str
    old_values: str
    new_keys: str = ""
    new_values: str = ""


class StandardAttention:
    """An attention: the heads of a group are rows of one product with their keys.

    Args:
        low: receives the nodes.
        node: a `TreeAttention`, see `runtime/kernels/tree_attention.cc` for all that it can have.
    """

    def __init__(self, low: Lowering, node: NodeProto) -> None:
        self._low = low
        self._graph = low.graph
        self._names = dict(zip(_INPUTS, node.input, strict=False))
        self._own = own = _DEFAULTS | attributes(node)
        self._heads = own["heads"]
        self._kv = own["kv_heads"]
        self._size = own["head_dim"]
        self._group = self._heads // self._kv
        low.widths[node.output[0]] = self._heads * self._size

    def emitted(self) -> str:
        """Emits all nodes.

        Returns:
            [S, heads * head_dim].
        """
        g = self._graph
        q, k, v, gate = self._turned()
        if k:
            self._keep(k, v)
        # Of an assistant's graph it is the target's alone.
        known = self._low.once(("pool", self._names["pool"]), self._known)
        mixed = self._mixed(self._queries(q, known.dim), known)
        mixed = g.op("Reshape", mixed, g.ints(self._heads, -1, known.dim))
        mixed = g.op("Transpose", mixed, perm=[1, 0, 2])
        if known.dim != self._size:
            mixed = g.op("Slice", mixed, g.ints(0), g.ints(self._size), g.ints(2))
        mixed = g.op("Reshape", mixed, g.ints(-1, self._heads * self._size))
        return g.op("Mul", mixed, g.op("Sigmoid", gate)) if gate else mixed

    def _turned(self) -> tuple[str, str, str, str]:
        """Emits norms and rotation.

        Returns:
            Queries [S, heads, head_dim]; keys and values [S, kv_heads, head_dim], which are empty
            if they are another layer's; the gate [S, heads * head_dim], which may be empty.
        """
        g = self._graph
        own = self._own
        heads = self._heads
        kv = self._kv
        x = g.op("Reshape", self._low.value(self._names["qkv"]), g.ints(0, -1, self._size))
        early = not own["norm_after_rope"]
        if own["source"] == "other":
            q, gate = self._without_gate(x)
            q = self._rotated(self._norm("q", q) if early else q)
            return q if early else self._norm("q", q), "", "", gate
        gate = ""
        if self._rotated_as_it_is:
            both, v = self._split(x, heads + kv, kv)
            q, k = self._split(self._rotated(both), heads, kv)
        else:
            values = kv if own["source"] == "own" else 0
            q, k, v = self._split(x, heads * (1 + own["gated"]), kv, values)
            q, gate = self._without_gate(q)
            v = v or k
            if early:
                q = self._norm("q", q)
                k = self._norm("k", k)
            if self._names["cos"]:  # in one
                q, k = self._split(self._rotated(g.op("Concat", q, k, axis=1)), heads, kv)
        if not early:
            q = self._norm("q", q)
            k = self._norm("k", k)
        return q, k, self._norm("v", v), gate

    @property
    def _rotated_as_it_is(self) -> bool:
        """Whether queries and keys are rotated as they come, side by side."""
        own = self._own
        normed = own.get("q_eps") or own.get("k_eps")
        if own["source"] != "own" or own["gated"] or (normed and not own["norm_after_rope"]):
            return False
        return bool(self._names["cos"])

    def _split(self, x: str, *heads: int) -> list[str]:
        """Parts of the heads of x [S, n, head_dim]; empty names of parts without any."""
        sizes = [count for count in heads if count]
        parts = iter(
            self._graph.multi_op("Split", x, self._graph.ints(*sizes), outputs=len(sizes), axis=1)
        )
        return [next(parts) if count else "" for count in heads]

    def _without_gate(self, asked: str) -> tuple[str, str]:
        """Parts queries from the gates that lie between them."""
        g = self._graph
        if not self._own["gated"]:
            return asked, ""
        pairs = g.op("Reshape", asked, g.ints(0, self._heads, 2 * self._size))
        q, gate = g.multi_op("Split", pairs, outputs=2, axis=-1, num_outputs=2)
        return q, g.op("Reshape", gate, g.ints(0, self._heads * self._size))

    def _norm(self, part: str, x: str) -> str:
        """Normalizes heads of x [S, n, head_dim], each on its own or all as one vector."""
        g = self._graph
        eps = self._own.get(f"{part}_eps")
        if not eps:
            return x
        weight = self._low.value(self._names.get(f"{part}_norm", ""))
        if not weight:
            weight = g.constant(np.ones(self._size), np.float32)
        elif self._low.sizes[weight] != self._size:
            x = g.op("Reshape", x, g.ints(0, self._low.sizes[weight]))
        x = g.op("RMSNormalization", x, weight, axis=-1, epsilon=eps)
        return g.op("Reshape", x, g.ints(0, -1, self._size))

    def _rotated(self, x: str) -> str:
        """Rotates heads of x [S, n, head_dim]."""
        g = self._graph
        if not self._names["cos"]:
            return x
        cos, sin = self._low.once(("rope", self._names["cos"]), self._tables)
        half = int(dims_of(self._low.inputs[self._names["cos"]])[-1])
        rest = ""
        if 2 * half < self._size:
            sizes = g.ints(2 * half, self._size - 2 * half)
            x, rest = g.multi_op("Split", x, sizes, outputs=2, axis=-1)
        first, second = g.multi_op("Split", x, outputs=2, axis=-1, num_outputs=2)
        turned = g.op("Mul", g.op("Concat", second, first, axis=-1), sin)
        turned = g.op("Add", g.op("Mul", x, cos), turned)
        return g.op("Concat", turned, rest, axis=-1) if rest else turned

    def _tables(self) -> tuple[str, str]:
        """Cosines and sines of both halves, [S, 1, 2 * half]; the first sines are negated."""
        g = self._graph
        sin = self._names["sin"]
        both = (self._names["cos"],) * 2, (g.op("Neg", sin), sin)
        cos, sin = (g.op("Concat", *each, axis=-1) for each in both)
        return g.op("Unsqueeze", cos, g.ints(1)), g.op("Unsqueeze", sin, g.ints(1))

    def _keep(self, keys: str, values: str) -> None:
        """Emits new keys and values [S, kv_heads, head_dim] for the pool and for later nodes."""
        g = self._graph
        name = self._names["pool"]
        kind, (*_, dim) = self._kind_and_shape()
        both = g.op("Concat", keys, values, axis=1)
        both = g.op("Reshape", both, g.ints(-1, 2, self._kv, self._size))
        new = g.op("Transpose", both, perm=[1, 2, 0, 3])
        new = self._padded(new, 4, int(dim))
        if kind != FLOAT:
            new = g.op("Cast", new, to=kind)
        layer = name.removeprefix("pool.")
        g.output(f"new.{layer}", new, kind, [2, self._kv, "S", dim])
        self._low.shared["pool", name] = self._known(new)

    def _kind_and_shape(self) -> tuple[int, Shape]:
        """The type of a pool's numbers, and its dimensions."""
        pool = self._low.inputs[self._names["pool"]]
        half = pool.type.tensor_type.elem_type != FLOAT and self._low.form.half is not False
        return _HALF if half else FLOAT, dims_of(pool)

    def _known(self, *new: str) -> _KeysAndValues:
        """Parts keys and values [2, kv_heads, rows, dim] of new rows, if any, and adds the pool's.

        Those of the pool are inputs of their own, since to part them would copy the pool.
        """
        g = self._graph
        kind, (_, *shape) = self._kind_and_shape()
        parts = [g.input(name, kind, [1, *shape]) for name in pool_parts(self._names["pool"])]
        for both in new:
            parts += g.multi_op("Split", both, outputs=2, axis=0, num_outputs=2)
        if kind != FLOAT:
            parts = [g.op("Cast", part, to=FLOAT) for part in parts]
        return _KeysAndValues(int(shape[-1]), *parts)

    def _queries(self, q: str, dim: int) -> str:
        """Queries as rows of the keys' heads, [1, kv_heads, group * S, dim], scaled."""
        g = self._graph
        cap = self._own["soft_cap"]
        q = g.op("Transpose", q, perm=[1, 0, 2])
        q = g.op("Mul", q, g.constant(self._own["scale"] / (cap or 1.0), np.float32))
        return g.op("Reshape", self._padded(q, 3, dim), g.ints(1, self._kv, -1, dim))

    def _padded(self, x: str, rank: int, dim: int) -> str:
        """Fills the last of `rank` axes with zeros up to the size of the pool's rows."""
        missing = dim - self._size
        if not missing:
            return x
        # With the input `axes`, ONNX Runtime 1.31 mistakes the pads where it moves a Transpose.
        return self._graph.op("Pad", x, self._graph.ints(*[0] * (2 * rank - 1), missing))

    def _mixed(self, q: str, known: _KeysAndValues) -> str:
        """Emits scores, shares, and values by their shares, [1, kv_heads, group * S, dim]."""
        g = self._graph
        cap = self._own["soft_cap"]
        all_keys = (known.old_keys, known.new_keys) if known.new_keys else (known.old_keys,)
        scores = [
            g.op("MatMul", q, g.op("Transpose", keys, perm=[0, 1, 3, 2])) for keys in all_keys
        ]
        both = g.op("Concat", *scores, axis=-1) if known.new_keys else scores[0]
        if cap:
            both = g.op("Mul", g.op("Tanh", both), g.constant(cap, np.float32))
        key = self._named("bias"), self._group
        bias = self._low.once(key, lambda: self._group_bias(bool(known.new_keys)))
        both = g.op("Add", both, bias)
        sinks = self._sinks()
        if not known.new_keys:  # assistants have no sinks
            return g.op("MatMul", g.op("Softmax", both, axis=-1), known.old_values)
        if sinks:
            both = g.op("Concat", both, sinks, axis=-1)
        slots = self._low.once("slots", self._slots)
        shares = g.op("Softmax", both, axis=-1)
        # A Split wants both lengths in one list, which devices would compute and upload themselves.
        old = g.op("Slice", shares, g.ints(0), slots, g.ints(3))
        new = g.op("Slice", shares, slots, g.ints(-1 if sinks else _END), g.ints(3))
        return g.op(
            "Add", g.op("MatMul", old, known.old_values), g.op("MatMul", new, known.new_values)
        )

    @property
    def _sight(self) -> bool:
        """Whether rows see others than their ancestors; nobody shows pictures to this graph."""
        return bool(self._names.get("sight")) and PICTURED not in self._low.inputs

    def _group_bias(self, new: bool) -> str:
        """The bias of all heads of a group, [group * S, C + S], or [group * S, C] without new rows.

        Its name says what it is, see `GraphFile`.
        """
        name = self._named("bias")
        dims = ["S", "C+S" if new else "C"]
        bias = self._low.once(name, lambda: self._graph.input(name, FLOAT, dims))
        if self._group == 1:
            return bias
        return self._graph.op("Concat", *[bias] * self._group, axis=0)

    def _named(self, kind: str) -> str:
        """The name of what tells which others rows see."""
        own = self._own
        parts = {SIGHT: self._sight, CHUNKS: own["chunked"], str(own["window"]): own["window"]}
        return ".".join([kind, *(name for name, told in parts.items() if told)])

    def _slots(self) -> str:
        """How many columns of shares are those of the pool."""
        return self._graph.op("Shape", pool_parts(self._names["pool"])[0], start=2, end=3)

    def _rows(self) -> str:
        return self._graph.op("Shape", self._low.value(self._names["qkv"]), start=0, end=1)

    def _sinks(self) -> str:
        """Scores that have no value, [1, kv_heads, group * S, 1]; empty if there are none."""
        g = self._graph
        sinks = self._low.value(self._names.get("sinks", ""))
        if not sinks:
            return ""
        sinks = g.op("Reshape", sinks, g.ints(self._kv, self._group, 1))
        shape = g.op("Concat", g.ints(self._kv, self._group), self._rows(), axis=0)
        return g.op("Reshape", g.op("Expand", sinks, shape), g.ints(1, self._kv, -1, 1))
