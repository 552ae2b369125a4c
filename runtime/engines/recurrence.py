"""What recurrent layers hold of a text, in host memory: their last rows, and a state.

A state is that of the last *border*, a multiple of `CHUNK` positions, and the rows are those behind
it. So a text can be cut behind the border by forgetting rows. The state of the border before is
kept, too, for texts that are cut a little further back. A stage reads copies of the rows, laid out
as it computes with them, so that a call need not turn them around again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.bundle.sublayers import CHUNK, RECURRENT_PARTS, RecurrentShape, recurrent_input
from edgespec.runtime.arrays import Array, Floats


def recurrent_bytes(shapes: Sequence[RecurrentShape]) -> int:
    """Returns the bytes that the layers hold of a text, with those of the border before."""
    rows = sum((CHUNK + _before(shapes)) * shape.width for shape in shapes)
    states = sum(int(np.prod(_state(shape))) for shape in shapes if shape.state)
    read = sum(array.size for shape in shapes for array in _inputs(shape).values())
    return 4 * (2 * rows + 2 * states + read)


@dataclass
class _Held:
    """The rows of each layer, [K - 1 + CHUNK, width] float32, and the states of those with one.

    The first rows are those before the border.
    """

    rows: list[Floats]
    states: dict[int, Floats]

    def copy(self) -> _Held:
        states = {number: state.copy() for number, state in self.states.items()}
        return _Held([rows.copy() for rows in self.rows], states)

    def clear(self) -> None:
        for each in (*self.rows, *self.states.values()):
            each[:] = 0

    def take(self, other: _Held) -> None:
        for own, given in zip(self.rows, other.rows, strict=True):
            own[:] = given
        for number, state in self.states.items():
            state[:] = other.states[number]


class Recurrence:
    """What the recurrent layers of a stage hold of one text.

    Args:
        layers: what each of them holds, by the layer's number.

    Attributes:
        views: the stage's inputs by name; the arrays stay the same, with other content.
        border: position of the state.
    """

    def __init__(self, layers: Mapping[int, RecurrentShape]) -> None:
        self._shapes = tuple(layers.values())
        self._before = _before(self._shapes)
        room = self._before + CHUNK  # no call reaches across a border
        self._held = _Held(
            [np.zeros((room, shape.width), np.float32) for shape in self._shapes],
            {
                number: np.zeros(_state(shape), np.float32)
                for number, shape in enumerate(self._shapes)
                if shape.state
            },
        )
        self._earlier: _Held | None = None  # at the border before
        self.border = 0
        self._read = [_inputs(shape) for shape in self._shapes]
        self.views: dict[str, Array] = {}
        for number, layer in enumerate(layers):
            inputs = dict(self._read[number])
            if number in self._held.states:
                inputs["state"] = self._held.states[number]
            self.views |= {recurrent_input(layer, part): each for part, each in inputs.items()}

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, with those of the border before."""
        return recurrent_bytes(self._shapes)

    @property
    def earliest(self) -> int:
        """The smallest length that the text can be cut to, besides 0."""
        return self.border if self._earlier is None else self.border - CHUNK

    def write(self, new_rows: Sequence[Array], rows: Sequence[int], start: int) -> None:
        """Copies the given rows of a call's results to the positions from `start` on."""
        first = self._before + start - self.border
        for own, given in zip(self._held.rows, new_rows, strict=True):
            own[first : first + len(rows)] = given[np.asarray(rows)]
        self._show(start, start + len(rows))

    def settle(self, length: int) -> None:
        """Moves the border, and with it the state, as far as a text of this length allows."""
        old = self.border
        while self.border + CHUNK <= length:
            self._earlier = self._held.copy()
            for number, state in self._held.states.items():
                chunk = self._held.rows[number][self._before : self._before + CHUNK]
                _add(state, chunk, self._shapes[number])
            for rows in self._held.rows:
                rows[: self._before] = rows[CHUNK:].copy()
            self.border += CHUNK
        if self.border > old:
            self._show(self.border, length)

    def cut(self, length: int) -> None:
        """Forgets the positions from `length` on, which is 0 or at least `earliest`."""
        start = length
        if not length:
            self._held.clear()
            self._earlier, self.border = None, 0
        elif length < self.border:
            assert self._earlier is not None
            self._held.take(self._earlier)
            self._earlier, self.border = None, self.border - CHUNK
            start = self.border
        self._show(start, length)

    def copy(self, length: int) -> dict[str, Array]:
        """Returns what is held of the first `length` positions, 0 or at least `earliest`."""
        held = self._held
        if length < self.border and self._earlier is not None:
            held = self._earlier
        if not length:
            return {}
        rows = {f"rows.{number}": each.copy() for number, each in enumerate(held.rows)}
        return rows | {f"state.{number}": each.copy() for number, each in held.states.items()}

    def load(self, copied: Mapping[str, Array], length: int) -> None:
        """Takes over what `copy` has returned for a text of this length."""
        rows = [copied[f"rows.{number}"] for number in range(len(self._shapes))]
        states = {number: copied[f"state.{number}"] for number in self._held.states}
        self._held.take(_Held(rows, states))
        self._earlier, self.border = None, length // CHUNK * CHUNK
        self._show(self.border, length)

    def fits(self, copied: Mapping[str, Array]) -> bool:
        """Whether these arrays, perhaps from a file, are what `load` can take over."""
        own = self.copy(max(self.border, 1))
        return copied.keys() == own.keys() and all(
            copied[name].shape == each.shape and copied[name].dtype == each.dtype
            for name, each in own.items()
        )

    def _show(self, start: int, stop: int) -> None:
        """Copies the rows of positions start to stop, behind which the text ends, to the inputs."""
        first, last = start - self.border, stop - self.border
        for shape, rows, inputs in zip(self._shapes, self._held.rows, self._read, strict=True):
            channels, *sizes = shape.parts
            inputs["rows"][:] = rows[last : last + self._before, :channels]
            new = rows[self._before + first : self._before + last]
            parts = np.split(new, np.cumsum([channels, *sizes])[:-1], axis=1)[1:]
            for name, part in zip(_PARTS[: len(parts)], parts, strict=True):
                shown = inputs[name]
                if shown.ndim == 2:  # [P, heads]
                    shown[first:last] = part
                else:
                    heads, _, size = shown.shape
                    by_head = part.reshape(last - first, heads, size)
                    shown[:, first:last] = by_head.transpose(1, 0, 2)


_PARTS = RECURRENT_PARTS[1:-1]


def _inputs(shape: RecurrentShape) -> dict[str, Floats]:
    """Returns arrays for what a stage reads of a layer besides its state."""
    shapes = {"rows": (shape.kernel - 1, shape.parts[0])}
    by_part: list[tuple[int, ...]] = []
    if shape.state:
        heads, key_heads, key_size, value_size = shape.state
        values = (heads, CHUNK, value_size)
        by_part = [(key_heads, CHUNK, key_size), values, values, (CHUNK, heads), (CHUNK, heads)]
    parts = dict(zip(_PARTS, by_part, strict=False))
    return {name: np.zeros(each, np.float32) for name, each in {**shapes, **parts}.items()}


def _add(state: Floats, rows: Floats, shape: RecurrentShape) -> None:
    """Adds a chunk's rows to a state [value heads, key size, value size], in place.

    With t the sum of decays up to a row, the state becomes exp(t[last]) S plus the sum over rows of
    exp(t[last] - t[row]) k[row] u[row], where u is what the row has added.
    """
    heads, key_heads, key_size, value_size = shape.state
    keys, values = key_heads * key_size, heads * value_size
    ends = np.cumsum([shape.width - keys - 2 * values - 2 * heads, keys, values, values, heads])
    _, key, _, added, _, decay = np.split(rows, ends, axis=1)
    total = decay.cumsum(axis=0)  # [CHUNK, heads]
    left = np.exp(total[-1] - total).T[:, None]  # [heads, 1, CHUNK]
    by_head = key.reshape(CHUNK, key_heads, key_size).transpose(1, 2, 0)
    by_head = by_head.repeat(heads // key_heads, axis=0)
    own = added.reshape(CHUNK, heads, value_size).transpose(1, 0, 2)
    state *= np.exp(total[-1])[:, None, None]
    state += (by_head * left) @ own


def _before(shapes: Sequence[RecurrentShape]) -> int:
    """Returns the rows before the border that a convolution may read."""
    return max(shape.kernel for shape in shapes) - 1


def _state(shape: RecurrentShape) -> tuple[int, int, int]:
    heads, _, key_size, value_size = shape.state
    return heads, key_size, value_size
