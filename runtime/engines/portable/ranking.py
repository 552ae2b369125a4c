"""The likeliest tokens of rows, found where their logits lie, so that no logits are read back."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

from edgespec.bundle import LOGITS

BEST = "best"
"""Output of ranked rows: [R, 2 K] float32, their K likeliest tokens and the logits of these."""

NEXT = "next"
"""Output of ranked rows: [R] int64, the likeliest token, which another call reads as its tokens."""

_COUNT = 32  # of which ranking looks at no more, see `edgespec.runtime.drafters.acceptance`


def rank_rows(model: Any, columns: int) -> int:
    """Adds to a graph what finds the likeliest tokens of rows with logits.

    Tokens are told as floats, which are exact below 2 ** 24, so that one tensor is read.

    Args:
        model: the graph.
        columns: number of tokens, the first ones, that are looked at.

    Returns:
        K, the number of tokens that are told of a row.
    """
    count = min(_COUNT, columns)
    graph = model.graph
    constants = {"rank.0": 0, "rank.1": 1, "rank.columns": columns, "rank.count": count}
    for name, number in constants.items():
        graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], [number]))
    graph.initializer.append(helper.make_tensor("rank.first", TensorProto.INT64, [], [0]))
    nodes: tuple[tuple[str, list[str], list[str], dict[str, int]], ...] = (
        ("Slice", [LOGITS, "rank.0", "rank.columns", "rank.1"], ["rank.logits"], {}),
        ("TopK", ["rank.logits", "rank.count"], ["rank.best", "rank.tokens"], {"axis": -1}),
        ("Cast", ["rank.tokens"], ["rank.floats"], {"to": TensorProto.FLOAT}),
        ("Concat", ["rank.floats", "rank.best"], [BEST], {"axis": -1}),
        ("Gather", ["rank.tokens", "rank.first"], [NEXT], {"axis": -1}),
    )
    for kind, inputs, outputs, attributes in nodes:
        node = helper.make_node(kind, inputs, outputs, name=f"rank.{kind}", **attributes)
        graph.node.append(node)
    told = ((BEST, TensorProto.FLOAT, ["R", 2 * count]), (NEXT, TensorProto.INT64, ["R"]))
    graph.output.extend(helper.make_tensor_value_info(*each) for each in told)
    return count
