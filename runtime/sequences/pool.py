"""The cache of a model: slots for keys and values, counted by reference, and sequences of them.

A slot holds the keys and values of one row in all layers. Nothing is ever moved: sequences are
lists of slots, and share a beginning by sharing its slots (vLLM's paged attention with pages of one
row: Kwon et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from edgespec.errors import MemoryLimitError
from edgespec.runtime.arrays import Array, resized, slots_at

if TYPE_CHECKING:
    from edgespec.bundle import PoolShape
    from edgespec.runtime.sequences.adapters import Adapters
    from edgespec.runtime.sequences.pictures import Pictures
    from edgespec.runtime.sequences.recurrent import RecurrentPool, RecurrentState

Slots = npt.NDArray[np.int32]
"""Slots of consecutive rows, in order."""

Shapes = Mapping[str, tuple[tuple[int, ...], type[np.number[Any]]]]
"""Dimensions and types of arrays by name."""

_CHUNK = 1024  # slots that a pool grows by, at least
_TYPES: dict[str, type[np.number[Any]]] = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}


class PoolMemory(Protocol):
    """Where the arrays of a pool lie: in a device's memory, or in the host's."""

    @property
    def shrinks(self) -> bool:
        """Whether `resize` can put a smaller array in place of a larger one."""

    def capacity(self, before: int, needed: int) -> int:
        """Returns the number of slots of a pool that had `before` and needs `needed`."""

    def resize(self, arrays: dict[str, Any], shapes: Shapes) -> None:
        """Puts an array of each shape in place of another one, or where there was none.

        Args:
            arrays: what is there, by name; new slots are zeros.
            shapes: dimensions and type by the name of a graph's input.
        """

    def read(self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int) -> dict[str, Array]:
        """Returns copies of what slots hold: each array, of these slots alone."""

    def write(
        self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int, rows: Mapping[str, Array]
    ) -> None:
        """Lets slots hold what `read` returned."""


class HostMemory:
    """The host's memory, which is not touched before it is written."""

    shrinks = True

    def capacity(self, before: int, needed: int) -> int:
        """See `PoolMemory`."""
        return _in_chunks(before, needed, _CHUNK)

    def resize(self, arrays: dict[str, Any], shapes: Shapes) -> None:
        """See `PoolMemory`."""
        for name, (shape, dtype) in shapes.items():
            arrays[name] = resized(arrays.get(name), shape, dtype)

    def read(self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int) -> dict[str, Array]:
        """See `PoolMemory`."""
        at = slots_at(slots, axis)
        return {name: array[at] for name, array in arrays.items()}

    def write(
        self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int, rows: Mapping[str, Array]
    ) -> None:
        """See `PoolMemory`."""
        at = slots_at(slots, axis)
        for name, array in arrays.items():
            array[at] = rows[name]


class ChunkedMemory:
    """A memory for another kind of pool, which grows by other numbers of slots.

    Args:
        memory: where arrays lie.
        chunk: number of slots that a pool grows by, at least.
    """

    def __init__(self, memory: PoolMemory, chunk: int) -> None:
        self.resize, self.read, self.write = memory.resize, memory.read, memory.write
        self.shrinks = memory.shrinks
        self._chunk = chunk

    def capacity(self, before: int, needed: int) -> int:
        """See `PoolMemory`."""
        return _in_chunks(before, needed, self._chunk)


Parts = dict[str, tuple[tuple[int, ...], tuple[int, ...], type[np.number[Any]]]]
"""Arrays by name: their dimensions before and behind the slots, and their type."""


class Pool:
    """Slots, counted by reference.

    Args:
        parts: the arrays that hold what is in the slots.
        memory: where arrays lie.
        limit: largest number of slots; None for any.

    Attributes:
        arrays: by name; a graph's inputs. New ones whenever the pool grows or shrinks. They are
            numpy's, or what `memory` made.
        capacity: number of slots.
        limit: see above.
        evict: is asked to free at least so many slots before the limit would be exceeded.
    """

    def __init__(self, parts: Parts, memory: PoolMemory, limit: int | None = None) -> None:
        self.limit = limit
        self.evict: Callable[[int], None] = _nothing
        self._memory = memory
        self._parts = parts
        self._axis = max((len(heads) for heads, _, _ in parts.values()), default=0)
        self.arrays: dict[str, Any] = {}
        self.reset()

    @property
    def used(self) -> int:
        """Number of slots that are in use."""
        return self.capacity - len(self._free)

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return self.capacity * _slot_bytes(self._parts)

    def reset(self) -> None:
        """Begins with new arrays, whoever had slots of the old ones."""
        self.arrays.clear()
        self.capacity = 0
        self._counts: list[int] = []  # by slot: references to it
        self._free: list[int] = []  # the next one last
        self._grow(1)

    def close(self) -> None:
        """Frees the arrays, and their memory's owner; nothing can be computed with them then."""
        self.arrays.clear()
        self._memory = HostMemory()

    def take(self, count: int) -> list[int]:
        """Returns free slots, each with one reference; the pool grows if there are too few.

        Raises:
            MemoryLimitError: if it must not grow so far.
        """
        if self.limit is not None and self.used + count > self.limit:
            self.evict(self.used + count - self.limit)
        if count > len(self._free):
            self._grow(count - len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for slot in taken:
            self._counts[slot] = 1
        return taken

    def share(self, slots: Iterable[int]) -> None:
        """Adds a reference to each slot."""
        for slot in slots:
            self._counts[slot] += 1

    def free(self, slots: Sequence[int]) -> None:
        """Drops a reference to each slot; those without any are free again."""
        counts = self._counts
        for slot in reversed(slots):  # so that they are taken in the same order again
            counts[slot] -= 1
            if not counts[slot]:
                self._free.append(slot)

    def references(self, slot: int) -> int:
        """Returns the number of references to a slot; 0 if it is free."""
        return self._counts[slot]

    def read(self, slots: Sequence[int]) -> dict[str, Array]:
        """Returns copies of what these slots hold: the arrays, of these slots alone."""
        return self._memory.read(self.arrays, slots, self._axis)

    def write(self, slots: Sequence[int], rows: Mapping[str, Array]) -> None:
        """Lets slots hold what `read` returned.

        Raises:
            ValueError: if the rows are those of another kind of pool, or of another number.
        """
        for name, (heads, width, kind) in self._parts.items():
            array = rows.get(name)
            shape = (*heads, len(slots), *width)
            if array is None or array.dtype != kind or array.shape != shape:
                raise ValueError(f"{name} does not fit")
        self._memory.write(self.arrays, slots, self._axis, rows)

    def _grow(self, more: int) -> None:
        before = self.capacity
        after = self._memory.capacity(before, before + more)
        if self.limit is not None:
            after = min(after, self.limit)
        if after < before + more:
            raise MemoryLimitError(
                f"the KV cache has room for {self.limit} rows, and {before + more} are needed: "
                "raise --memory, lower --context, or make fewer texts at once"
            )
        self._resize(after)
        self._counts += [0] * (after - before)
        # The lowest first: rows of a sequence lie together, and untouched memory stays untouched.
        self._free[:0] = range(after - 1, before - 1, -1)

    def shrink(self) -> None:
        """Gives back the memory of free slots behind the last one in use, where that is the host's.

        As many slots stay as a new pool has, at least.
        """
        held = len(self._counts)
        while held > 1 and not self._counts[held - 1]:
            held -= 1
        after = min(self._memory.capacity(0, held), self.capacity)
        if after < self.capacity and self._memory.shrinks:
            self._resize(after)
            del self._counts[after:]
            self._free = [slot for slot in self._free if slot < after]

    def _resize(self, capacity: int) -> None:
        shapes = {
            name: ((*heads, capacity, *width), kind)
            for name, (heads, width, kind) in self._parts.items()
        }
        self._memory.resize(self.arrays, shapes)
        self.capacity = capacity


def _in_chunks(before: int, needed: int, chunk: int) -> int:
    """Returns a capacity that grows by whole chunks, and by half at least."""
    chunks = -(-(needed - before) // chunk)
    return before + max(chunks, before // 2 // chunk) * chunk


def _nothing(_: int) -> None:
    """Evicts nothing."""


class KVPool(Pool):
    """Slots for keys and values of rows of any number of sequences.

    Its arrays are `pool.L` [2, kv_heads, capacity, dim] for each layer L, and `scales.L`
    [2, kv_heads, capacity] float32 of int8.

    Args:
        shapes: the layers that keep keys and values.
        kv: number format, fp32, fp16 or int8; by layer where it is not the same of all.
        limit: largest number of slots; None for any.
        memory: where arrays lie; None: where numpy has them.
        recurrent: what recurrent layers hold of the same sequences; None if there are none.

    Attributes:
        recurrent: see above.
    """

    def __init__(
        self,
        shapes: Sequence[PoolShape],
        kv: str | Mapping[int, str],
        limit: int | None = None,
        memory: PoolMemory | None = None,
        recurrent: RecurrentPool | None = None,
    ) -> None:
        self.recurrent = recurrent
        super().__init__(_parts(shapes, kv), HostMemory() if memory is None else memory, limit)

    def reset(self) -> None:
        """See `Pool`."""
        super().reset()
        if self.recurrent is not None:
            self.recurrent.reset()

    def shrink(self) -> None:
        """See `Pool`; what recurrent layers hold shrinks, too."""
        super().shrink()
        if self.recurrent is not None:
            self.recurrent.rows.shrink()
            self.recurrent.states.shrink()

    def close(self) -> None:
        """See `Pool`."""
        super().close()
        if self.recurrent is not None:
            self.recurrent.rows.close()
            self.recurrent.states.close()

    @staticmethod
    def slot_bytes(shapes: Sequence[PoolShape], kv: str | Mapping[int, str]) -> int:
        """Returns the bytes of a slot in all layers."""
        return _slot_bytes(_parts(shapes, kv))

    def free(self, slots: Sequence[int]) -> None:
        """See `Pool`; of rows that no sequence has taken, drops what recurrent layers hold, too."""
        if self.recurrent is not None:
            self.recurrent.drop(slots)
        super().free(slots)


def _slot_bytes(parts: Parts) -> int:
    sizes = parts.values()
    return sum(prod(heads + width) * np.dtype(kind).itemsize for heads, width, kind in sizes)


def _parts(shapes: Sequence[PoolShape], kv: str | Mapping[int, str]) -> Parts:
    parts = Parts()
    for each in shapes:
        number = kv if isinstance(kv, str) else kv[each.layer]
        parts[f"pool.{each.layer}"] = (2, each.kv_heads), (each.dim,), _TYPES[number]
        if number == "int8":
            parts[f"scales.{each.layer}"] = (2, each.kv_heads), (), np.float32
    return parts


class TokenSequence:
    """Tokens, and the slots of those that a model has read.

    Accepting appends slots, rolling back cuts the list, a fork shares slots. Sequences of several
    models may have the same tokens.

    Args:
        pool: pool of the model.
        tokens: its tokens, which whoever owns them may extend at any time.

    Attributes:
        pool: see above.
        tokens: see above.
        length: number of tokens that the model has read, the first ones.
        recurrence: what recurrent layers hold of them; None if the model has none.
        salt: it shares slots with sequences of the same salt alone.
        adapters: numbers and scales of the adapters that add to the model as it reads the tokens;
            sequences with others have another salt.
        pictures: what is read in place of embeddings of some tokens; None if nothing is.
    """

    __slots__ = (
        "_slots", "adapters", "length", "pictures", "pool", "recurrence", "salt", "tokens",
    )  # fmt: skip

    def __init__(self, pool: KVPool, tokens: list[int]) -> None:
        self.pool = pool
        self.tokens = tokens
        self.salt = ""
        self.adapters: Adapters = ()
        self.pictures: Pictures | None = None
        self.recurrence: RecurrentState | None
        self.length: int
        self._slots: Slots = np.empty(64, np.int32)
        self.reset()

    @property
    def slots(self) -> Slots:
        """[length] int32: the slots of the tokens' rows, in order."""
        return self._slots[: self.length]

    @property
    def keys(self) -> list[int]:
        """By what sequences share slots: the tokens, or in their places what pictures show."""
        return self.tokens if self.pictures is None else self.pictures.keyed(self.tokens)

    @property
    def unread(self) -> list[int]:
        """The tokens that the model has not read."""
        return self.tokens[self.length :]

    def append(self, slots: list[int]) -> None:
        """Takes over the slots of the next tokens' rows, with the caller's references to them."""
        self._extend(slots)
        if self.recurrence is not None:
            self.recurrence.append(slots)
            self.cut(self.length)  # certain rows that were not accepted are in the state

    def _extend(self, slots: list[int]) -> None:
        end = self.length + len(slots)
        if end > self._slots.size:
            grown = np.empty(max(end, 2 * self._slots.size), np.int32)
            grown[: self.length] = self.slots
            self._slots = grown
        self._slots[self.length : end] = slots
        self.length = end

    def exchange(self, slots: list[int]) -> None:
        """Takes over other slots with the same rows for those of the first tokens."""
        self.pool.free(self._slots[: len(slots)].tolist())
        self._slots[: len(slots)] = slots

    def cut(self, length: int) -> None:
        """Drops the slots of all but the first `length` tokens; the tokens stay.

        Where recurrent layers have a state of more tokens, all slots are dropped: the model reads
        the sequence again. As far back as the last pass that read it began, its certain rows apart,
        a cut costs nothing. To go further back, keep a fork from where the sequence was shorter.
        Pictures whose rows see each other are dropped wholly.
        """
        if self.pictures is not None:
            length = self.pictures.begun(length)
        if self.recurrence is not None:
            length = self.recurrence.cut(length)
        if length < self.length:
            self.pool.free(self._slots[length : self.length].tolist())
            self.length = length

    def fork(self, length: int | None = None) -> TokenSequence:
        """Returns a new sequence of the same first tokens, which shares their slots.

        It shares none where `cut` would drop all.

        Args:
            length: number of tokens; None for as many as the model has read.
        """
        length = self.length if length is None else min(length, self.length)
        other = TokenSequence(self.pool, self.tokens[:length])
        other.salt = self.salt
        other.adapters = self.adapters
        other.pictures = self.pictures
        other.become(self, length)
        return other

    def become(self, other: TokenSequence, length: int) -> None:
        """Drops its slots, and shares those of another one that begins with the same tokens."""
        self.free()
        if other.recurrence is not None:
            self.recurrence = other.recurrence.fork(length)
            length = self.recurrence.length
        shared = other.slots[:length].tolist()
        self.pool.share(shared)
        self._extend(shared)

    def read(self) -> dict[str, Array]:
        """Returns copies of all that the model keeps of the tokens that it has read, by name."""
        held = self.pool.read(self.slots.tolist())
        return held if self.recurrence is None else {**held, **self.recurrence.read()}

    def write(self, held: Mapping[str, Array]) -> None:
        """Lets the model, which has read nothing, know of all tokens what `read` returned.

        Raises:
            KeyError: if an array is missing.
            MemoryLimitError: if the pool has no room.
            ValueError: if one does not fit.
        """
        self._extend(self.pool.take(len(self.tokens)))
        try:
            self.pool.write(self.slots.tolist(), held)
            if self.pool.recurrent is not None:
                self.recurrence = self.pool.recurrent.restored(held, self.length)
        except (KeyError, ValueError):
            self.free()
            raise

    def free(self) -> None:
        """Drops all slots."""
        self.cut(0)

    def reset(self) -> None:
        """Forgets all slots, which the pool gives to others or has given them already."""
        self.length = 0
        self.recurrence = None if self.pool.recurrent is None else self.pool.recurrent.begin()
