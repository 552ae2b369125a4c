"""The memory of pools that portable graphs read, on the device where that has its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from edgespec.errors import DeviceError, MemoryLimitError
from edgespec.runtime.arrays import Array, Ids, slots_at, spare_places
from edgespec.runtime.engines.portable.engine import Runner
from edgespec.runtime.engines.portable.file import GraphFile, Shape
from edgespec.runtime.engines.portable.places import Cache, Places
from edgespec.runtime.engines.portable.recurrence import columns_of, strips_of

_STEP = 256  # slots that a pool grows by, at least


class DevicePools:
    """Gives a `KVPool` its memory, see `PoolMemory`.

    Args:
        device: name of the device.
        file: the graph.
        runner: the engine.
        shape: the shape of all calls; None if it is not fixed.

    Attributes:
        device: see above.
        kv: number format of the pools, fp32 or fp16.
    """

    shrinks = False

    def __init__(
        self, device: str, file: GraphFile, runner: Runner, shape: Shape | None = None
    ) -> None:
        self.device = device
        self.kv = file.kv
        self._file = file
        self._runner = runner
        self._shape = shape
        self._numbers: dict[str, int] = {}  # of recurrent layers' pools, in native graphs

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
                has its own number of slots. Or [slots, ...] of what recurrent layers keep.

        Raises:
            DeviceError: if the graph has no such input, or the device no room.
        """
        places = next((each.places for each in caches_of(arrays)), None) or Places()
        for name, (shape, dtype) in shapes.items():
            if name in self._file.recurrent:
                arrays[name] = self._resized(name, shape, arrays.get(name))
                continue
            pair, heads, slots, dim = shape
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
                arrays[name] = self._runner.resized((pair, heads, count, dim), own.dtype, old)
        if caches_of(arrays):
            places.grow(slots)

    def _resized(self, name: str, shape: Sequence[int], old: Any) -> Any:
        """Returns a pool of recurrent layers [1, 1, slots + 1, numbers]; the last slot has zeros.

        Raises:
            DeviceError: if the graph has another input.
        """
        dims = self._file.recurrent[name]
        slots, *own = shape
        self._numbers[name] = prod(own)
        if prod(dims) > prod(own) or (prod(dims) < prod(own) and not self._file.ways.paths):
            raise DeviceError(
                f"{self._file.path}: its input {name} has {list(dims)}, and the bundle {own}: "
                "export it again"
            )
        return self._runner.resized((1, 1, slots + 1, prod(dims)), np.dtype(np.float32), old)

    def read(self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int) -> dict[str, Array]:
        """Returns copies of what slots hold: each array, of these slots alone."""
        found = dict[str, Array]()
        for name, array in arrays.items():
            if isinstance(array, Cache):
                at = array.places.of_slots[slots]
                parts = [_host(each)[0][:, at] for each in (array.keys, array.values)]
                found[name] = np.stack(parts)
            elif name in self._file.recurrent:
                held = _host(array)[0, 0, list(slots)]
                if missing := self._numbers[name] - held.shape[1]:
                    found[name] = np.pad(held, ((0, 0), (0, missing)))
                else:
                    found[name] = strips_of(held.reshape(-1, *self._file.recurrent[name]))
            else:
                found[name] = _host(array)[slots_at(slots, axis)]
        return found

    def write(
        self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int, rows: Mapping[str, Array]
    ) -> None:
        """Lets slots hold what `read` returned."""
        caches = caches_of(arrays)
        at = slots_at(slots, axis)
        if caches:
            places = np.arange(len(slots)) + self.appended(caches, np.array(slots, np.int64))
        for name, array in arrays.items():
            if isinstance(array, Cache):
                for part, new in zip((array.keys, array.values), rows[name], strict=True):
                    _update(part, (slice(None), slice(None), places), new[None])
            elif name in self._file.recurrent:
                held = columns_of(rows[name]).reshape(len(slots), -1)
                held = held[:, : prod(self._file.recurrent[name])]
                _update(array, (0, 0, list(slots)), held)
            else:
                _update(array, at, rows[name])

    def appended(self, caches: Sequence[Cache], slots: Ids, size: int = 0) -> int:
        """Gives slots places behind all others; returns the first.

        Args:
            caches: the pool's.
            slots: the slots.
            size: number of rows that are written there, with those of padding.
        """
        caches[0].places.free(slots)
        self.make_room(caches, max(size, len(slots)))
        return caches[0].places.append(slots)

    def make_room(self, caches: Sequence[Cache], rows: int) -> None:
        """Moves rows together if there are no places for so many behind them."""
        places = caches[0].places
        if places.end + rows > places.count:
            self._runner.move(caches, places.moved_together())


def caches_of(pools: Mapping[str, Any]) -> list[Cache]:
    """Returns the pools whose rows lie in the order in which they were written."""
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
