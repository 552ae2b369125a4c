"""Portable graphs: standard operators, which read pools and return the new keys and values.

An engine runs a file; what all have in common is here: inputs of native graphs become those of
portable ones, rows are padded to sizes that an engine plans for, and long calls are made in parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx
from onnx import helper

from edgespec.bundle import OWN_FEATURES, READS_TARGET, SIGHT, TARGET_FEATURES
from edgespec.errors import DeviceError, MemoryLimitError
from edgespec.runtime.arrays import Array, Floats, Ids, slots_at, spare_places
from edgespec.runtime.engines.portable.places import Cache, Places
from edgespec.runtime.engines.portable.visibility import Bias, Visibility

FEW_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
"""Numbers of rows of a call where each further number costs an engine a plan."""

_STEP = 256  # slots that a pool grows by, at least
# Beginnings of the names of inputs that are not of the rows.
_KNOWN = ("pool.", "keys.", "values.", "bias", "seen", "turn", "end", "total", "logit_rows")
_RECURRENT = ("recent", "carry", "rows.", "states.")  # beginnings of the names of their inputs
_NUMBERS = {np.dtype(np.float32): "fp32", np.dtype(np.float16): "fp16"}


class Shape(NamedTuple):
    """The shape of all calls where it is fixed.

    Attributes:
        rows: S, which are also the rows with logits.
        capacity: C, the slots of the pool.
    """

    rows: int
    capacity: int


class PoolInput(NamedTuple):
    """An input of keys and values, [2, heads, slots, dim].

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


class GraphFile:
    """What the ONNX file of a portable graph reads and returns.

    Args:
        path: the file, beside that of its weights.

    Attributes:
        path: see above.
        model: its content without the weights.
        inputs: dimensions of each input, numbers or sums of S, R and C.
        pools: the inputs that hold keys and values.
        biases: what each bias says, by its name.
        seen: likewise, of layers whose rows lie in order.
        turns: the tables of these layers' rotations, with their widths.
        types: types of the inputs' numbers.
        by_row: inputs with one entry for each row.
        written: names of the pools that rows are written to, all but those of another model.
        outputs: dimensions of each output but new keys and values, all of them float32.
        wanted: outputs of the rows that are asked for; the others have all rows.

    Raises:
        DeviceError: if it is not a portable graph.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.model = onnx.load(str(path), load_external_data=False)
        except Exception as error:  # its exceptions have no narrower base class
            raise DeviceError(f"{path} cannot be read ({error}): export it again") from error
        self.inputs = {each.name: _dimensions(each) for each in self.model.graph.input}
        self.types = {each.name: _dtype(each) for each in self.model.graph.input}
        self.pools = {
            name.replace("keys.", "pool."): PoolInput(
                int(size[1]), int(size[3]), self.types[name], name.startswith("keys.")
            )
            for name, size in self.inputs.items()
            if name.startswith(("pool.", "keys."))
        }
        self.biases = self._of_kind("bias")
        self.seen = self._of_kind("seen")
        self.turns = {n: int(size[1]) for n, size in self.inputs.items() if n.startswith("turns.")}
        if not self.pools:
            raise DeviceError(f"{path}: it is no portable graph: export it again")
        rest = {name for name in self.inputs if not name.startswith(_KNOWN)}
        if recurrent := sorted(name for name in rest if name.startswith(_RECURRENT)):
            raise DeviceError(
                f"{path}: recurrent layers ({recurrent[0]}) need edgespec's own operators: use "
                "--device cpu, and install a C++ compiler if they are missing"
            )
        self.by_row = sorted(name for name in rest if self.inputs[name][0] == "S")
        if unknown := sorted(rest - set(self.by_row)):
            raise DeviceError(f"{path}: its input {unknown[0]} is not known: export it again")
        outputs = {each.name: _dimensions(each) for each in self.model.graph.output}
        self.written = [name for name in self.pools if name.replace("pool.", "new.") in outputs]
        self.outputs = {
            name: size
            for name, size in outputs.items()
            if not name.startswith("new.") and not name.endswith(".after")
        }
        self.wanted = {name for name, size in self.outputs.items() if size[0] == "R"}

    @property
    def in_order(self) -> list[str]:
        """Names of the pools whose rows lie in the order in which they were written."""
        return [name for name, each in self.pools.items() if each.in_order]

    def _of_kind(self, kind: str) -> dict[str, Bias]:
        return {n: _bias(n, size) for n, size in self.inputs.items() if n.startswith(kind)}

    @property
    def kv(self) -> str:
        """Number format of the pools, fp32 or fp16."""
        return _NUMBERS[next(iter(self.pools.values())).dtype]

    def sizes(self, shape: Shape) -> dict[str, int]:
        """Returns the size of each symbolic dimension of the inputs, for calls of one shape."""
        known = {"S": shape.rows, "R": shape.rows, "C": shape.capacity}
        symbols = {each for size in self.inputs.values() for each in size if isinstance(each, str)}
        return {each: sum(known[part] for part in each.split("+")) for each in symbols}


class Runner(Protocol):
    """An engine with a file."""

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: Array
    ) -> Mapping[str, Floats]:
        """Makes a pass, and writes its keys and values to slots of the pools.

        Args:
            inputs: all inputs but the pools.
            pools: the pools, as `resized` made them.
            slots: [S] slot of each row; rows of padding repeat the last one.

        Returns:
            The other outputs, which the next pass may overwrite.

        Raises:
            DeviceError: if the engine fails.
        """

    def resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        """Returns a pool of zeros that begins with the slots of `old`; None has none."""

    def move(self, caches: Sequence[Cache], order: Ids) -> None:
        """Moves rows of caches: at each place is then the row that was at that of `order`."""


class GraphEngine(Protocol):
    """A device of this machine.

    Attributes:
        name: its full name.
        hardware: its product's name.
        version: version of the library that runs it.
        own_bytes: free bytes of its own memory; None: it uses the host's.
        rows: numbers of rows that calls are rounded up to; empty for any.
        shape: the shape of all calls where none is named; None: they may have any.
        half: whether its graphs have all weights in half precision; None: where that is exact;
            False: it has no numbers in half precision.
        fused: what fused operators do there, see `edgespec.export.portable.lower`; None: its
            graphs have standard operators.
        fused_rows: rows of the largest call that fused attention is right in; None: any.
    """

    name: str
    hardware: str
    version: str
    own_bytes: int | None
    rows: tuple[int, ...]
    shape: Shape | None
    half: bool | None
    fused: frozenset[str] | None
    fused_rows: int | None

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> Runner:
        """Opens a graph.

        Args:
            file: the graph.
            threads: number of threads, on the CPU.
            shape: the shape of all calls; None if it is not fixed.

        Raises:
            DeviceError: if the engine refuses the graph.
        """


class PortableGraph:
    """A portable graph on a device, called like a native one; see `docs/graph.md`.

    It also gives a `KVPool` its memory, on the device where that has its own.

    Args:
        device: name of the device.
        file: the graph.
        runner: the engine.
        rows: numbers of rows that calls are rounded up to; longer ones are made in parts. Empty for
            any.
        shape: the shape of all calls; None if it is not fixed.

    Attributes:
        device: see above.
        kv: number format of the pools, fp32 or fp16.
    """

    def __init__(
        self,
        device: str,
        file: GraphFile,
        runner: Runner,
        rows: Sequence[int] = (),
        shape: Shape | None = None,
    ) -> None:
        self.device = device
        self.kv = file.kv
        self._file = file
        self._runner = runner
        self._shape = shape
        self._rows = rows if shape is None else (shape.rows,)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Floats]:
        """Makes a pass.

        Args:
            feeds: inputs of a native graph by name; pools are those that `resized` gave.

        Returns:
            Outputs by name, without padding.

        Raises:
            DeviceError: if the engine fails.
        """
        feeds = _spread(feeds)
        visibility = Visibility(feeds)
        wanted = feeds["logit_rows"]
        parts = list[dict[str, Floats]]()
        places = list[Array]()
        for part in self._parts(feeds):
            first = part.start
            chosen = np.flatnonzero((wanted >= part.start) & (wanted < part.stop))
            parts.append(self._run(feeds, visibility, part, wanted[chosen] - first))
            places.append(chosen)
        if len(parts) == 1:
            return parts[0]
        joined = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
        order = np.argsort(np.concatenate(places))
        return {n: each[order] if n in self._file.wanted else each for n, each in joined.items()}

    def _parts(self, feeds: Mapping[str, Array]) -> Iterator[slice]:
        """Yields the rows of each call of the engine; a block's are in one, see `SIGHT`."""
        count = len(feeds["input_ids"])
        first = 0
        most = self._rows[-1] if self._rows else count
        sight = feeds.get(SIGHT)
        while first < count:
            end = min(first + most, count)
            while sight is not None and end < count and sight[end - 1] > 0:
                end -= 1
            yield slice(first, end)
            first = end

    def capacity(self, before: int, needed: int) -> int:
        """Returns the number of slots of a pool that had `before` and needs `needed`.

        Attention reads all slots, so at most a quarter of them is idle beyond 1024.

        Raises:
            MemoryLimitError: if the shape is fixed, and has too few.
        """
        if self._shape is None:
            step = max(_STEP, (1 << needed.bit_length()) >> 3)
            return -(-needed // step) * step
        if needed > self._shape.capacity:
            raise MemoryLimitError(
                f"device {self.device}: its KV cache has room for {self._shape.capacity} rows, and "
                f"{needed} are needed: name the device {self.device.partition('#')[0]}"
                f"#{self._shape.rows}x{2 * self._shape.capacity}, or lower --context"
            )
        return self._shape.capacity

    def resize(self, arrays: dict[str, Any], shapes: Mapping[str, tuple[Any, type[Any]]]) -> None:
        """Puts a pool of each shape in place of the smaller one, or where there was none.

        Args:
            arrays: what is there, by the name of the graph's input.
            shapes: [2, kv_heads, slots, dim] and type of the numbers, that of `kv`; a fixed shape
                has its own number of slots.

        Raises:
            DeviceError: if the graph has no such input, or the device no room.
        """
        places = next((each.places for each in _caches(arrays)), None) or Places()
        for name, ((pair, heads, slots, dim), dtype) in shapes.items():
            own = self._file.pools.get(name)
            if own is None or own[:3] != (heads, dim, np.dtype(dtype)):
                raise DeviceError(
                    f"{self._file.path}: its input {name} is {own}, and the bundle has {heads} "
                    f"heads of {dim} in {np.dtype(dtype)}: export it again"
                )
            old = arrays.get(name)
            if own.in_order:
                count = slots + spare_places(slots)
                keys, values = (None, None) if old is None else (old.keys, old.values)
                made = [
                    self._runner.resized((1, heads, count, dim), own.dtype, each)
                    for each in (keys, values)
                ]
                arrays[name] = Cache(made[0], made[1], places)
            else:
                count = slots if self._shape is None else self._shape.capacity
                shape = (pair, heads, count, dim)
                arrays[name] = self._runner.resized(shape, own.dtype, old)
        if _caches(arrays):
            places.grow(slots)

    def read(self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int) -> dict[str, Array]:
        """Returns copies of what slots hold: each array, of these slots alone."""
        found = dict[str, Array]()
        for name, array in arrays.items():
            if isinstance(array, Cache):
                at = array.places.of_slots[slots]
                parts = [_host(each)[0][:, at] for each in (array.keys, array.values)]
                found[name] = np.stack(parts)
            else:
                found[name] = _host(array)[slots_at(slots, axis)]
        return found

    def write(
        self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int, rows: Mapping[str, Array]
    ) -> None:
        """Lets slots hold what `read` returned."""
        caches = _caches(arrays)
        at = slots_at(slots, axis)
        if caches:
            places = np.arange(len(slots)) + self._appended(caches, np.array(slots, np.int64))
        for name, array in arrays.items():
            if isinstance(array, Cache):
                for part, new in zip((array.keys, array.values), rows[name], strict=True):
                    _update(part, (slice(None), slice(None), places), new[None])
            else:
                _update(array, at, rows[name])

    def _appended(self, caches: Sequence[Cache], slots: Ids, size: int = 0) -> int:
        """Gives slots places behind all others; returns the first.

        Args:
            caches: the pool's.
            slots: the slots.
            size: number of rows that are written there, with those of padding.
        """
        places = caches[0].places
        places.free(slots)
        if places.end + max(size, len(slots)) > places.count:
            self._runner.move(caches, places.moved_together())
        return places.append(slots)

    def _run(
        self, feeds: Mapping[str, Any], visibility: Visibility, part: slice, wanted: Array
    ) -> dict[str, Floats]:
        """Makes one call of the engine; `wanted` are numbers of rows in this part."""
        count = part.stop - part.start
        size = self._size(count)
        pools = {name: feeds[name] for name in self._file.pools}
        inputs: dict[str, Array] = {
            name: _padded(feeds[name][part], size) for name in self._file.by_row
        }
        for name, kind in self._file.biases.items():
            slots = _slots(next(each for each in pools.values() if not isinstance(each, Cache)))
            inputs[name] = visibility.bias(part, size, slots, kind)
        # An engine is asked for one row at least.
        asked = wanted if len(wanted) else np.zeros(1, np.int64)
        number = size if self._shape else self._size(len(asked))
        if caches := _caches(pools):
            inputs |= self._by_place(feeds, visibility, part, size, caches)
        if "logit_rows" in self._file.inputs:
            inputs["logit_rows"] = _padded(asked, number)
        found = self._runner.run(inputs, pools, _padded(feeds["write"][part], size))
        return {
            name: each[: len(wanted) if name in self._file.wanted else count]
            for name, each in found.items()
        }

    def _by_place(
        self,
        feeds: Mapping[str, Any],
        visibility: Visibility,
        part: slice,
        size: int,
        caches: Sequence[Cache],
    ) -> dict[str, Array]:
        """Gives rows their places; returns the inputs that say so, and what they see."""
        places = caches[0].places
        first = self._appended(caches, feeds["write"][part].astype(np.int64), size)
        rows = first + np.arange(size)
        inputs: dict[str, Array] = {
            "end": np.array([first + size - 1], np.int32),
            "total": np.array([places.count], np.int32),
        }
        if self._file.turns:
            inputs["turn_rows"] = np.concatenate([rows, places.count + rows])[:, None]
        for name, kind in self._file.seen.items():
            bias = visibility.by_place(part, size, places, kind)
            inputs[name] = bias.astype(self._file.types[name], copy=False)[None, None]
        return inputs

    def _size(self, count: int) -> int:
        return self._rows[bisect_left(self._rows, count)] if self._rows else count


def _spread(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a call's inputs where those of some rows, see `TARGET_FEATURES`, have all rows."""
    if TARGET_FEATURES not in feeds:
        return feeds
    count = len(feeds["input_ids"])
    sight = feeds.get(SIGHT)
    first = np.arange(count) < len(feeds[TARGET_FEATURES])
    of_target: Array = first if sight is None else sight < 0
    spread = {READS_TARGET: of_target}
    for name, rows in ((TARGET_FEATURES, of_target), (OWN_FEATURES, ~of_target)):
        if name in feeds:
            spread[name] = np.zeros((count, feeds[name].shape[1]), np.float32)
            spread[name][rows] = feeds[name]
    return {**feeds, **spread}


def _padded(rows: Array, size: int) -> Array:
    """Returns rows of a call, with the last one repeated.

    So rows of padding compute what the last row does, and may write where it does.
    """
    if len(rows) == size:
        return rows
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])


def _bias(name: str, size: Sequence[int | str]) -> Bias:
    _, *parts = name.split(".")
    window = next((int(part) for part in parts if part != SIGHT), None)
    return Bias(window, SIGHT in parts, size[1] != "C")


def _caches(pools: Mapping[str, Any]) -> list[Cache]:
    return [each for each in pools.values() if isinstance(each, Cache)]


def _host(array: Any) -> Array:
    """Returns an array itself, or what a tensor of a device holds."""
    held: Array = array if isinstance(array, np.ndarray) else array.numpy()
    return held


def _update(array: Any, at: tuple[Any, ...], rows: Array) -> None:
    """Writes rows into an array, or into a tensor of a device."""
    whole = _host(array)
    whole[at] = rows
    if whole is not array:
        array.update_inplace(whole)


def _slots(pool: Any) -> int:
    """Returns the capacity of a pool, an array or ONNX Runtime's tensor."""
    shape = pool.shape if isinstance(pool, np.ndarray) else pool.shape()
    return int(shape[2])


def _dimensions(tensor: Any) -> list[int | str]:
    dimensions = tensor.type.tensor_type.shape.dim
    return [each.dim_param or each.dim_value for each in dimensions]


def _dtype(tensor: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(tensor.type.tensor_type.elem_type)
    return found
