"""The file of a portable graph: what it reads and returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from edgespec.bundle import CHUNKS, RECURRENT_ROWS, SIGHT
from edgespec.errors import DeviceError
from edgespec.runtime.engines.portable.ranking import BEST, NEXT, rank_rows
from edgespec.runtime.engines.portable.visibility import Bias
from edgespec.runtime.engines.portable.weights import GIVEN, take_weights

# Beginnings of the names of inputs that are not of the rows.
_KNOWN = (
    *("pool.", "keys.", "values.", "bias", "seen", "turn", "end", "total", "logit_rows"),
    *("rows.", "states.", "lines", "unseen", "trail.", "paths.", "real.", "places.", GIVEN),
)
_VIEWS = ("Reshape", "Identity", "Shape", "Squeeze", "Unsqueeze")
_NUMBERS = {np.dtype(np.float32): "fp32", np.dtype(np.float16): "fp16"}


class Shape(NamedTuple):
    """The shape of all calls where it is fixed.

    Attributes:
        rows: S, which are also the rows with logits.
        capacity: C, the slots of the pool.
    """

    rows: int
    capacity: int

    @property
    def recent(self) -> int:
        """Q, rows before a call that recurrent layers read, and a row of zeros."""
        return 64 + self.rows


class PoolInput(NamedTuple):
    """Inputs of keys and of values, [1, heads, slots, dim] each.

    Attributes:
        heads: number of key and value heads.
        dim: width of a head.
        dtype: float32 or float16.
        in_order: whether rows lie in the order in which they were written, see `Cache`.
    """

    heads: int
    dim: int
    dtype: np.dtype[Any]
    in_order: bool = False


class Ways(NamedTuple):
    """What a graph is told of the paths that lead to rows, see `docs/graph.md`.

    Attributes:
        lines: which rows the state of each row has.
        trails: the last rows on each path, of convolutions over these numbers of rows.
        paths: all paths as a batch, of layers with convolutions over these numbers of rows.
    """

    lines: bool
    trails: Sequence[int] = ()
    paths: Sequence[int] = ()


class GraphFile:
    """What the ONNX file of a portable graph reads and returns.

    Args:
        path: the file, beside that of its weights.
        columns: rows are ranked on the device by these first columns of their logits, see
            `ranking.py`; None: they are not.
        apart: whether its weights are inputs, of the graph of one layer.

    Attributes:
        path: see above.
        model: its content without the weights.
        weights: those that are inputs, by name.
        ranked: number of tokens that are told of a row; 0 if rows are not ranked.
        inputs: dimensions of each input, numbers or sums of S, R and C.
        pools: the inputs that hold keys and values.
        recurrent: dimensions of what recurrent layers read: `rows.L` [Q, width], and `states.L`
            of one sequence.
        ways: what they are told of the paths of rows.
        biases: what each bias says, by its name.
        seen: likewise, of layers whose rows lie in order.
        turns: the tables of these layers' rotations, with their widths.
        types: types of the inputs' numbers.
        by_row: inputs with one entry for each row.
        written: names of the pools that calls write to, all but those of another model.
        outputs: dimensions of each output but new keys and values and what ranks rows, all of them
            float32.
        wanted: outputs of the rows that are asked for; the others have all rows.

    Raises:
        DeviceError: if it is not a portable graph.
    """

    def __init__(self, path: Path, columns: int | None = None, apart: bool = False) -> None:
        self.path = path
        try:
            self.model = onnx.load(str(path), load_external_data=False)
        except Exception as error:  # its exceptions have no narrower base class
            raise DeviceError(f"{path} cannot be read ({error}): export it again") from error
        self.ranked = 0 if columns is None else rank_rows(self.model, columns)
        self.weights = take_weights(self.model, path.parent) if apart else {}
        self.inputs = {each.name: _dimensions(each) for each in self.model.graph.input}
        self.types = {each.name: _dtype(each) for each in self.model.graph.input}
        self.pools = {
            f"pool.{name.split('.')[1]}": PoolInput(
                int(size[1]), int(size[3]), self.types[name], name.startswith("keys.")
            )
            for name, size in self.inputs.items()
            if name.startswith("keys.") or (name.startswith("pool.") and name.endswith(".keys"))
        }
        self.recurrent = {
            name: tuple(int(each) for each in size if each != "Q")
            for name, size in self.inputs.items()
            if name.startswith(("rows.", "states."))
        }
        self.ways = Ways("lines" in self.inputs, self._numbers("trail."), self._numbers("paths."))
        self.biases = self._of_kind("bias")
        self.seen = self._of_kind("seen")
        self.turns = {n: int(size[1]) for n, size in self.inputs.items() if n.startswith("turns.")}
        held = (*self.pools, *self.recurrent)
        if not held:
            raise DeviceError(f"{path}: it is no portable graph: export it again")
        rest = {name for name in self.inputs if not name.startswith(_KNOWN)}
        self.by_row = sorted(name for name in rest if self.inputs[name][0] == "S")
        if unknown := sorted(rest - set(self.by_row)):
            raise DeviceError(f"{path}: its input {unknown[0]} is not known: export it again")
        outputs = {each.name: _dimensions(each) for each in self.model.graph.output}
        self.written = [name for name in held if returned(name) in outputs]
        self.outputs = {
            name: size
            for name, size in outputs.items()
            if not name.startswith("new.") and not name.endswith(".after")
            if name not in (BEST, NEXT)
        }
        self.wanted = {name for name, size in self.outputs.items() if size[0] == "R"}

    @property
    def most_rows(self) -> int | None:
        """Rows of the largest call; None: any number."""
        return RECURRENT_ROWS if self.ways.lines else None

    @property
    def source(self) -> Path | bytes:
        """What a session is opened from."""
        changed = self.ranked or self.weights
        return bytes(self.model.SerializeToString()) if changed else self.path

    @property
    def in_order(self) -> list[str]:
        """Names of the pools whose rows lie in the order in which they were written."""
        return [name for name, each in self.pools.items() if each.in_order]

    def _numbers(self, kind: str) -> list[int]:
        return sorted(int(n.removeprefix(kind)) for n in self.inputs if n.startswith(kind))

    def _of_kind(self, kind: str) -> dict[str, Bias]:
        return {n: _bias(n, size) for n, size in self.inputs.items() if n.startswith(kind)}

    @property
    def kv(self) -> str:
        """Number format of keys and values, fp32 or fp16."""
        dtypes = [each.dtype for each in self.pools.values()]
        return _NUMBERS[dtypes[0]] if dtypes else "fp32"

    def sizes(self, shape: Shape) -> dict[str, int]:
        """Returns the size of each symbolic dimension of the inputs, for calls of one shape."""
        known = {"S": shape.rows, "R": shape.rows, "C": shape.capacity, "1": 1}
        known["Q"] = shape.recent
        symbols = {each for size in self.inputs.values() for each in size if isinstance(each, str)}
        return {each: sum(known[part] for part in each.split("+")) for each in symbols}


def computing_nodes(path: Path) -> int:
    """Returns the number of nodes in a graph that launch something, all but other views of data.

    Raises:
        OSError: if it cannot be read.
    """
    graph = onnx.load(str(path), load_external_data=False).graph
    return sum(node.op_type not in _VIEWS for node in graph.node)


def pool_kind(name: str) -> str:
    """Returns the beginning of a pool's name, which says what is in it."""
    return name.partition(".")[0]


def returned(name: str) -> str:
    """Returns the name of the output that is written to a pool."""
    return f"new.{name.removeprefix('pool.')}"


def _bias(name: str, size: Sequence[int | str]) -> Bias:
    _, *parts = name.split(".")
    window = next((int(part) for part in parts if part.isdecimal()), None)
    return Bias(window, SIGHT in parts, size[1] != "C", CHUNKS in parts)


def _dimensions(tensor: Any) -> list[int | str]:
    dimensions = tensor.type.tensor_type.shape.dim
    return [each.dim_param or each.dim_value for each in dimensions]


def _dtype(tensor: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(tensor.type.tensor_type.elem_type)
    return found
