"""Native graphs to which adapters add: a `LowRank` node behind each product that one changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, starmap
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from edgespec.runtime.arrays import ADAPTER_SCALES, ADAPTERS, Array

_LANES = 16  # rows of a matrix that lie together
_MATRICES = 3  # the first input of `BlockLinear` that is a matrix
_MOST_RANGES = 4  # of a `LowRank`
_DOMAIN = "edgespec"
_HEAD = "lm_head.weight"
_WANTED = ".wanted"  # of rows whose logits are wanted alone


@dataclass(frozen=True)
class AdaptedMatrix:
    """What adapters add to a matrix: of each b a, [out, rank] times [rank, in].

    Attributes:
        rank: the largest rank of them all, with which each is stored.
        formats: names of the formats of the tiles of a and b.
        tiles: [bytes] uint8 of a and b, those of all adapters one behind the other.
    """

    rank: int
    formats: tuple[str, str]
    tiles: tuple[Array, Array]


@dataclass(frozen=True)
class AdaptableMatrix:
    """A matrix of a graph to whose products adapters can add.

    Attributes:
        columns: columns of its products, which are rows of the matrix.
        tile_bytes: bytes of a tile of 16 rows.
        format: name of the format of its tiles.
        factor: factor of its products.
    """

    columns: int
    tile_bytes: int
    format: str
    factor: float


@dataclass(frozen=True)
class _Range:
    """Columns of a product that are those of one matrix.

    Attributes:
        name: the matrix's name for adapters.
        start: the first column.
        columns: how many there are.
        format: name of the format of the matrix's tiles.
    """

    name: str
    start: int
    columns: int
    format: str


def adaptable(graph: Path) -> dict[str, AdaptableMatrix]:
    """Returns the matrices of a native graph to which adapters can add, by their names.

    They are those of products of one row each, not of experts, and without a soft cap.
    """
    found = onnx.load(str(graph), load_external_data=False).graph
    sizes = {each.name: each.dims[0] for each in found.initializer if each.dims}
    tables = _tables(found)
    matrices = dict[str, AdaptableMatrix]()
    for node in filter(_is_adaptable, found.node):
        factor = float(_attributes(node).get("factor", 1.0))
        for tiles, each in zip(node.input[_MATRICES:], _ranges(node, tables), strict=True):
            tile_bytes = sizes[tiles] // -(-each.columns // _LANES)
            made = AdaptableMatrix(each.columns, tile_bytes, each.format, factor)
            matrices[each.name] = made
    return matrices


def adapted(
    graph: Path | bytes, matrices: Mapping[str, AdaptedMatrix], adapters: int
) -> tuple[bytes, dict[str, Array]]:
    """Adds to a native graph what adapters add.

    Args:
        graph: the graph, or the content of a part of one.
        matrices: what is added, by the names of matrices; those that a part lacks are left out.
        adapters: number of adapters.

    Returns:
        The content of the graph, which has `ADAPTERS` and `ADAPTER_SCALES` among its inputs, and
        its weights beside the model's, by name.
    """
    if isinstance(graph, bytes):
        model = onnx.ModelProto.FromString(graph)
    else:
        model = onnx.load(str(graph), load_external_data=False)
    found = model.graph
    tables = _tables(found)
    wanted = _of_wanted_rows(found)
    nodes = [
        helper.make_node("Gather", [name, "logit_rows"], [name + _WANTED], axis=0)
        for name in (ADAPTERS, ADAPTER_SCALES)
    ]
    weights = dict[str, Array]()
    for node in found.node:
        nodes.append(node)
        if not _is_adaptable(node):
            continue
        ranges = [each for each in _ranges(node, tables) if each.name in matrices]
        suffix = _WANTED if node.input[0] in wanted else ""
        for start in range(0, len(ranges), _MOST_RANGES):
            some = ranges[start : start + _MOST_RANGES]
            nodes.append(_low_rank(node, nodes[-1], some, matrices, adapters, suffix))
            for each in some:
                weights |= zip(_tiles(each), matrices[each.name].tiles, strict=True)
    held = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del found.node[:]
    found.node.extend(held)
    found.initializer.extend(_outside(name, each.size) for name, each in weights.items())
    for name, kind in ((ADAPTERS, TensorProto.INT32), (ADAPTER_SCALES, TensorProto.FLOAT)):
        found.input.append(helper.make_tensor_value_info(name, kind, ["S", "T"]))
    return bytes(model.SerializeToString()), weights


def _low_rank(
    product: Any,
    last: Any,
    ranges: Sequence[_Range],
    matrices: Mapping[str, AdaptedMatrix],
    adapters: int,
    suffix: str,
) -> Any:
    """Returns the node that adds to ranges of a product's columns, and takes its output's name.

    Args:
        product: the product.
        last: the node that gives it so far, whose output gets another name.
        ranges: the ranges.
        matrices: what is added to them.
        adapters: number of adapters.
        suffix: what the names of inputs by row end with.
    """
    name = last.output[0]
    last.output[0] = f"{name}.{product.input[_MATRICES]}.{ranges[0].start}"
    return helper.make_node(
        "LowRank",
        [
            last.output[0],
            product.input[0],
            ADAPTERS + suffix,
            ADAPTER_SCALES + suffix,
            *(tiles for each in ranges for tiles in _tiles(each)),
        ],
        [name],
        domain=_DOMAIN,
        adapters=adapters,
        formats=" ".join(kind for each in ranges for kind in matrices[each.name].formats),
        columns=[n for each in ranges for n in (matrices[each.name].rank, each.columns)],
        starts=[each.start for each in ranges],
    )


def _is_adaptable(node: Any) -> bool:
    return node.op_type == "BlockLinear" and not _attributes(node).get("soft_cap")


def _ranges(node: Any, tables: Set[str]) -> list[_Range]:
    """Returns the ranges of a product's columns; an embedding's table is the output projection."""
    given = _attributes(node)
    columns = given["columns"]
    formats = given["formats"].decode().split()
    starts = accumulate(columns, initial=0)
    names = [_HEAD if name in tables else name for name in node.input[_MATRICES:]]
    return [*starmap(_Range, zip(names, starts, columns, formats, strict=False))]


def _tables(graph: Any) -> Set[str]:
    """Returns the names of matrices whose rows are read by token."""
    return {node.input[1] for node in graph.node if node.op_type == "BlockEmbedding"}


def _of_wanted_rows(graph: Any) -> Set[str]:
    """Returns the names of values that have rows whose logits are wanted alone."""
    found = {"logit_rows"}
    for node in graph.node:
        if found & set(node.input):
            found |= set(node.output)
    return found


def _attributes(node: Any) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _tiles(each: _Range) -> tuple[str, str]:
    return f"{each.name}.lora_a", f"{each.name}.lora_b"


def _outside(name: str, size: int) -> Any:
    """Returns the declaration of weights that the session is given."""
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.UINT8, dims=[size])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.append(onnx.StringStringEntryProto(key="location", value="adapters"))
    return tensor
