"""Portable graphs: standard operators, which read pools and return the new keys and values.

An engine runs a file; what all have in common is here: inputs of native graphs become those of
portable ones, rows are padded to sizes that an engine plans for, and long calls are made in parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from edgespec.bundle import OWN_FEATURES, READS_TARGET, SIGHT, TARGET_FEATURES
from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.engines.portable.engine import CallSlots, Runner
from edgespec.runtime.engines.portable.file import GraphFile, Shape, pool_kind
from edgespec.runtime.engines.portable.places import Cache
from edgespec.runtime.engines.portable.pools import DevicePools, caches_of
from edgespec.runtime.engines.portable.recurrence import RecurrentCall, RecurrentPaths
from edgespec.runtime.engines.portable.visibility import Visibility

_STEP = 8  # of the lengths of paths, where each further one costs an engine a plan


class NativePass(NamedTuple):
    """A pass of a native graph, which calls of an engine make.

    Attributes:
        feeds: inputs by name; those that only some rows have in native graphs have all rows.
        visibility: what the rows see.
        paths: the paths of the rows if there are recurrent layers; else None.
    """

    feeds: Mapping[str, Any]
    visibility: Visibility
    paths: RecurrentPaths | None


class PortableGraph(DevicePools):
    """A portable graph on a device, called like a native one; see `docs/graph.md`.

    Args:
        device: see `DevicePools`.
        file: likewise.
        runner: likewise.
        rows: numbers of rows that calls are rounded up to; longer ones are made in parts. Empty for
            any.
        shape: see `DevicePools`.
    """

    def __init__(
        self,
        device: str,
        file: GraphFile,
        runner: Runner,
        rows: Sequence[int] = (),
        shape: Shape | None = None,
    ) -> None:
        super().__init__(device, file, runner, shape)
        self._rows = rows if shape is None else (shape.rows,)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Floats]:
        """Makes a pass.

        Args:
            feeds: inputs of a native graph by name; pools are those that `resize` made.

        Returns:
            Outputs by name, without padding.

        Raises:
            DeviceError: if the engine fails, or has a fixed shape that is too small.
        """
        whole = self._pass(feeds)
        wanted = whole.feeds["logit_rows"]
        parts = list[dict[str, Floats]]()
        places = list[Array]()
        for part in self._parts(whole):
            chosen = np.flatnonzero((wanted >= part.start) & (wanted < part.stop))
            parts.append(self._run(whole, part, wanted[chosen] - part.start))
            places.append(chosen)
        if len(parts) == 1:
            return parts[0]
        joined = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
        order = np.argsort(np.concatenate(places))
        return {n: each[order] if n in self._file.wanted else each for n, each in joined.items()}

    def _pass(self, feeds: Mapping[str, Any]) -> NativePass:
        """Returns a pass of which these are the inputs."""
        feeds = _spread(feeds)
        paths = None
        if self._file.recurrent:
            paths = RecurrentPaths(feeds, self._file.ways, _STEP if self._rows else 1)
        return NativePass(feeds, Visibility(feeds), paths)

    def _parts(self, whole: NativePass) -> Iterator[slice]:
        """Yields the rows of each call of the engine; a block's are in one, see `SIGHT`."""
        count = len(whole.feeds["input_ids"])
        first = 0
        most = self._rows[-1] if self._rows else self._file.most_rows or count
        sight = whole.feeds.get(SIGHT)
        ends = () if whole.paths is None else [*whole.paths.ends()]
        while first < count:
            end = min(first + most, *(each for each in (*ends, count) if each > first))
            while sight is not None and end < count and sight[end - 1] > 0:
                end -= 1
            yield slice(first, end)
            first = end

    def _run(self, whole: NativePass, part: slice, wanted: Array) -> dict[str, Floats]:
        """Makes one call of the engine; `wanted` are numbers of rows in this part."""
        inputs, slots = self._inputs(whole, part, wanted)
        found = self._runner.run(inputs, self._pools(whole.feeds), slots)
        count = part.stop - part.start
        return {
            name: each[: len(wanted) if name in self._file.wanted else count]
            for name, each in found.items()
        }

    def _inputs(
        self, whole: NativePass, part: slice, wanted: Array
    ) -> tuple[dict[str, Array], CallSlots]:
        """Returns what one call of the engine reads besides pools, and the slots that it writes."""
        feeds, visibility, paths = whole
        pools = self._pools(feeds)
        size = self._size(part.stop - part.start)
        inputs: dict[str, Array] = {
            name: self._typed(name, _padded(feeds[name][part], size)) for name in self._file.by_row
        }
        for name, kind in self._file.biases.items():
            count = _slots(next(each for each in pools.values() if not isinstance(each, Cache)))
            inputs[name] = self._typed(name, visibility.bias(part, size, count, kind))
        # An engine is asked for one row at least.
        asked = wanted if len(wanted) else np.zeros(1, np.int64)
        number = size if self._shape else self._size(len(asked))
        if self._file.in_order:  # rows of layers that this graph leaves out have places, too
            inputs |= self._by_place(whole, part, size)
        if "logit_rows" in self._file.inputs:
            inputs["logit_rows"] = _padded(asked, number)
        slots = CallSlots({"pool": _padded(feeds["write"][part], size)})
        if paths is None:
            return inputs, slots
        call = paths.call(part, size, self._recent_size)
        return inputs | call.inputs, _with_recurrent(slots, call, pools)

    def _pools(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the pools among a pass's inputs."""
        return {name: feeds[name] for name in (*self._file.pools, *self._file.recurrent)}

    def _recent_size(self, count: int) -> int:
        """Returns the number of rows before a call that it reads, at least so many.

        Raises:
            DeviceError: if the shape is fixed, and has too few.
        """
        if self._shape is None:
            return max(8, 1 << (count - 1).bit_length()) if self._rows else count
        if count > self._shape.recent:
            raise DeviceError(
                f"device {self.device}: recurrent layers read {count} rows before a call, and it "
                f"has room for {self._shape.recent}: name it with more rows, or use smaller drafts"
            )
        return self._shape.recent

    def _by_place(self, whole: NativePass, part: slice, size: int) -> dict[str, Array]:
        """Gives rows their places; returns the inputs that say so, and what they see."""
        caches = caches_of(whole.feeds)
        places = caches[0].places
        first = self.appended(caches, whole.feeds["write"][part].astype(np.int64), size)
        rows = first + np.arange(size)
        inputs: dict[str, Array] = {
            "end": np.array([first + size - 1], np.int32),
            "total": np.array([places.count], np.int32),
        }
        if self._file.turns:
            inputs["turn_rows"] = np.concatenate([rows, places.count + rows])[:, None]
        for name, kind in self._file.seen.items():
            bias = whole.visibility.by_place(part, size, places, kind)
            inputs[name] = self._typed(name, bias)[None, None]
        return inputs

    def _typed(self, name: str, array: Array) -> Array:
        """Returns an input with the graph's own kind of numbers."""
        return array.astype(self._file.types[name], copy=False)

    def _size(self, count: int) -> int:
        return self._rows[bisect_left(self._rows, count)] if self._rows else count


def _with_recurrent(slots: CallSlots, call: RecurrentCall, pools: Mapping[str, Any]) -> CallSlots:
    """Returns the slots of a call with those of what recurrent layers keep."""
    read = dict[str, Ids]()
    write = dict(slots.write)
    of_kind = {pool_kind(name): each for name, each in pools.items()}
    states = np.array([[call.read_state], [call.write_state]])
    for kind, own in (("rows", (call.recent, call.write)), ("states", states)):
        if kind in of_kind:
            # The last slot of a device's pool has zeros, and is that of what there is not.
            read[kind], write[kind] = (each % _slots(of_kind[kind]) for each in own)
    return CallSlots(write, read)


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


def _slots(pool: Any) -> int:
    """Returns the capacity of a pool, an array or ONNX Runtime's tensor."""
    shape = pool.shape if isinstance(pool, np.ndarray) else pool.shape()
    return int(shape[2])
