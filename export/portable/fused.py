"""Attention in one operator of ONNX Runtime's, GroupQueryAttention, which writes its own rows.

It was made for texts that grow at their end. A tree fits it in this way: rows are written behind
all rows that are there, wherever they stand in their text; they are rotated by cosines and sines
that lie at the same places; and a bias hides what a row does not see.
"""

from __future__ import annotations

from collections import Counter

from onnx import GraphProto, TensorProto

from edgespec.export.graph_builder import CONTRIB, Shape
from edgespec.export.portable.attention import StandardAttention
from edgespec.export.portable.lowering import FLOAT, Lowering, dims_of


def fusible_pools(low: Lowering, graph: GraphProto, whole: GraphProto) -> set[str]:
    """Returns the names of the pools of layers that the device computes in one operator.

    Args:
        low: the portable graph.
        graph: the native one.
        whole: what that is a part of, since other parts may have the same pools.
    """
    own, every = (
        [node for node in each.node if node.op_type == "TreeAttention"] for each in (graph, whole)
    )
    readers = Counter(node.input[3] for node in every)
    return {
        node.input[3]
        for node in own
        if readers[node.input[3]] == 1 and FusedAttention(low, node).fits()
    }


class FusedAttention(StandardAttention):
    """See `StandardAttention`; its pool lies in the order in which rows were written."""

    def fits(self) -> bool:
        """Whether the device computes all that this attention has."""
        kind, _ = self._kind_and_shape()
        wanted = {"float32" if kind == FLOAT else "float16"}
        if self._own["soft_cap"]:
            wanted.add("soft_cap")
        if self._names.get("sinks"):
            wanted.add("sinks")
        others = self._own["source"] == "other" or self._names.get("sight")
        return self._low.form.fuses(*wanted) and not others

    def emitted(self) -> str:
        """See `StandardAttention`."""
        g = self._graph
        kind, (*_, size) = self._kind_and_shape()
        dim = int(size)
        gate = ""
        if self._is_plain():
            packed = self._low.value(self._names["qkv"])
        else:
            *parts, gate = self._turned()
            packed = self._padded(g.op("Concat", *parts, axis=1), 3, dim)
        packed = g.op("Reshape", packed, g.ints(1, -1, (self._heads + 2 * self._kv) * dim))
        layer = self._names["pool"].removeprefix("pool.")
        caches = [
            g.input(f"{each}.{layer}", kind, [1, self._kv, "P", dim]) for each in ("keys", "values")
        ]
        y, *after = g.multi_op(
            "GroupQueryAttention",
            *self._queries_keys_values(self._cast(packed, kind)),
            *caches,
            *self._low.once("end", self._end),
            *self._further(kind),
            outputs=3,
            domain=CONTRIB,
            num_heads=self._heads,
            kv_num_heads=self._kv,
            do_rotary=int(self._rotates),
            scale=self._own["scale"],
            softcap=self._own["soft_cap"],
            qk_norm_epsilon=self._own.get("q_eps") or 1e-6,
        )
        for name, value in zip(caches, after, strict=True):
            g.output_in_place(value, f"{name}.after", kind, [1, self._kv, "P", dim])
        y = self._cast(y, FLOAT, kind)
        if dim != self._size:
            y = g.op("Reshape", y, g.ints(-1, self._heads, dim))
            y = g.op("Slice", y, g.ints(0), g.ints(self._size), g.ints(2))
        y = g.op("Reshape", y, g.ints(-1, self._heads * self._size))
        return g.op("Mul", y, g.op("Sigmoid", gate)) if gate else y

    def _queries_keys_values(self, packed: str) -> list[str]:
        """Inputs of the operator, which takes them side by side unless it normalizes some."""
        if not self._norms_inside:
            return [packed, "", ""]
        sizes = [each * self._size for each in (self._heads, self._kv, self._kv)]
        return self._graph.multi_op("Split", packed, self._graph.ints(*sizes), outputs=3, axis=-1)

    @property
    def _norms_inside(self) -> bool:
        """Whether the operator normalizes queries and keys."""
        return bool(self._own.get("q_eps")) and self._is_plain()

    @property
    def _rotates(self) -> bool:
        """Whether the operator rotates rows."""
        return bool(self._names["cos"]) and self._is_plain()

    def _is_plain(self) -> bool:
        """Whether the operator takes queries, keys and values as they are."""
        own = self._own
        cos = self._names["cos"]
        whole = not cos or 2 * int(dims_of(self._low.inputs[cos])[-1]) == self._size
        _, (*_, dim) = self._kind_and_shape()
        if (
            dim != self._size
            or not whole
            or own["source"] != "own"
            or own["gated"]
            or own.get("v_eps")
        ):
            return False
        if not own.get("q_eps") and not own.get("k_eps"):
            return True
        sizes = {self._low.sizes.get(self._names[each]) for each in ("q_norm", "k_norm")}
        by_head = sizes == {self._size} and own.get("q_eps") == own.get("k_eps")
        return by_head and not own["norm_after_rope"] and self._low.form.fuses("norms")

    def _further(self, kind: int) -> list[str]:
        """Inputs of the operator behind those that say where rows lie."""
        tables = ["", ""]
        if self._rotates:
            key = "tables", self._names["cos"], kind
            tables = self._low.once(key, lambda: self._tables_by_place(kind))
        name = self._named("seen")
        dims: Shape = [1, 1, "S", "P"]
        found = [
            *tables,
            "",
            self._low.once((name, kind), lambda: self._graph.input(name, kind, dims)),
        ]
        weights = [self._names.get("sinks", ""), "", ""]
        weights += [
            self._names[each] if self._norms_inside else "" for each in ("q_norm", "k_norm")
        ]
        found += [self._low.constant(each, kind) if each else "" for each in weights]
        while not found[-1]:
            found.pop()
        return found

    def _tables_by_place(self, kind: int) -> list[str]:
        """Cosines and sines by the place of their row, those of this call's rows among them."""
        g = self._graph
        cos, sin = self._names["cos"], self._names["sin"]
        half = int(dims_of(self._low.inputs[cos])[-1])
        table = g.input(f"turns.{cos}", kind, ["2P", half])
        places = self._low.once(
            "turn_rows", lambda: g.input("turn_rows", TensorProto.INT64, ["2S", 1])
        )
        new = self._cast(g.op("Concat", cos, sin, axis=0), kind)
        after = g.op("ScatterND", table, places, new)
        after = g.output_in_place(after, f"{table}.after", kind, ["2P", half])
        return g.multi_op("Split", after, outputs=2, axis=0, num_outputs=2)

    def _end(self) -> list[str]:
        """The last place in use, and how many places the bias tells of."""
        g = self._graph
        return [g.input(name, TensorProto.INT32, [1]) for name in ("end", "total")]

    def _cast(self, value: str, kind: int, known: int = FLOAT) -> str:
        """Emits other numbers of a value, unless it has them."""
        return value if kind == known else self._graph.op("Cast", value, to=kind)
