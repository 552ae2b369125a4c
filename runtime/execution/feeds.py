"""The inputs of a call: which rows come, where they stand and what they see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgespec.bundle import Role
from edgespec.runtime.arrays import Array, Floats, Mask
from edgespec.runtime.shapes import COLUMNS, RECENT, ROW_BUCKETS, WINDOW
from edgespec.runtime.trees.tree import TokenTree

START = -1
"""Stands above the rows that follow the committed text."""


@dataclass(frozen=True)
class Rows:
    """New rows of one call.

    Attributes:
        tokens: [n] ids.
        depths: [n] positions, counted from the end of the committed text.
        mask: [n, scratch + n] what each row sees of the scratch rows and of these rows. All see
            the committed text. Narrower than there are scratch rows: none of them is seen.
        parents: [n] the row before each, or `START`: of a draft's rows a scratch row, of a
            verification's one of themselves. Read only where drafts run on the target's own
            stages.
    """

    tokens: Sequence[int] | npt.NDArray[np.int64]
    depths: Sequence[int] | npt.NDArray[np.int64]
    mask: Mask
    parents: Sequence[int] = ()

    @classmethod
    def chain(cls, tokens: Sequence[int] | npt.NDArray[np.int64]) -> Rows:
        """Consecutive tokens, at least one: each sees those before it and itself."""
        n = len(tokens)
        return cls(tokens, range(n), np.tri(n, dtype=np.bool_), [START, *range(n - 1)])

    @classmethod
    def tree(cls, pending: int, tree: TokenTree) -> Rows:
        """Row 0 is the pending token, row i + 1 is node i."""
        return cls(
            [pending, *tree.tokens.tolist()],
            [0, *tree.depths.tolist()],
            tree.ancestor_mask(),
            [START, *(parent + 1 for parent in tree.parents.tolist())],
        )

    @property
    def scratch(self) -> int:
        """Scratch rows that the mask is about."""
        return int(self.mask.shape[1]) - len(self.tokens)


@dataclass(frozen=True)
class FeedSizes:
    """Of the inputs of a call.

    Attributes:
        rows: S.
        capacity: C.
        logit_rows: R.
        scratch: rows behind the text that a call may look at besides its own, as a bucket.
    """

    rows: int
    capacity: int
    logit_rows: int
    scratch: int = 0


class Sight(Protocol):
    """What rows see: the inputs of one form of attention, docs/architecture.md.

    Attributes:
        inputs: by name.
    """

    inputs: dict[str, Array]

    def fill(self, rows: Rows, length: int) -> None:
        """Describe these rows, behind a committed text of so many."""


class SplitSight:
    """Each row sees columns of the cache and of the call: `attention_bias` is [S, C + S].

    Args:
        sizes: of the calls.
        off: what hides a column.
        room: memory for the bias, which other shapes may use, too.
    """

    def __init__(self, sizes: FeedSizes, off: np.float32, room: Floats) -> None:
        rows, self._capacity = sizes.rows, sizes.capacity
        width = self._capacity + rows
        self._off = off
        self._bias = room[: rows * width].reshape(rows, width)
        self.inputs: dict[str, Array] = {
            "attention_bias": self._bias,
            "lengths": np.array([self._capacity, rows], np.int64),
        }

    def fill(self, rows: Rows, length: int) -> None:
        """See `Sight`; rows of padding see themselves, since all-masked rows give NaN."""
        n, capacity, bias, scratch = len(rows.tokens), self._capacity, self._bias, rows.scratch
        bias.fill(self._off)
        bias[:n, :length] = 0
        if scratch:
            np.copyto(bias[:n, length : length + scratch], 0, where=rows.mask[:, :scratch])
        np.copyto(bias[:n, capacity : capacity + n], 0, where=rows.mask[:, scratch:])
        for row in range(n, len(bias)):
            bias[row, capacity + row] = 0


class OrderedSight:
    """Each row's last positions have columns of their own, before those of the cache.

    What a row sees of scratch rows and of the call's are its ancestors and itself. They stand in
    the order of their positions, so that counting from the row itself tells where each one is.

    Args:
        sizes: of the calls.
        off: what hides a column.
        room: memory for the bias, which other shapes may use, too.
    """

    def __init__(self, sizes: FeedSizes, off: np.float32, room: Floats) -> None:
        rows, self._near = sizes.rows, WINDOW + sizes.scratch
        width = COLUMNS + sizes.capacity
        self._off = off
        self._bias = room[: rows * width].reshape(rows, width)
        self._window = np.zeros(self._near, np.int64)
        self._rows = np.zeros((rows, COLUMNS), np.int32)
        self._columns = np.zeros((rows, self._near + rows), np.int32)
        self._mask = np.zeros((rows, sizes.scratch + rows), np.bool_)
        self.inputs: dict[str, Array] = {
            "attention_bias": self._bias,
            "lengths": np.array([COLUMNS, sizes.capacity], np.int64),
            "window_rows": self._window,
            "recent_rows": self._rows,
            "recent_columns": self._columns,
        }

    def fill(self, rows: Rows, length: int) -> None:
        """See `Sight`; rows of padding are as the first behind the text.

        Raises:
            ValueError: if a row has more than `RECENT` tokens behind the text, itself included.
        """
        n, scratch, room, mask = len(rows.tokens), rows.scratch, self._near - WINDOW, self._mask
        mask[:] = False
        mask[:n, :scratch] = rows.mask[:, :scratch]
        mask[:n, room : room + n] = rows.mask[:, scratch:]
        for row in range(n, len(mask)):
            mask[row, room + row] = True
        seen = mask.cumsum(axis=1)
        depths = seen[:, -1:]  # [S, 1] tokens behind the text, the row's own included
        if depths.max() > RECENT:
            raise ValueError(f"a call has {depths.max()} tokens in a row: {RECENT} at most")
        self._point(mask, seen, depths)
        self._window[:WINDOW] = np.arange(length - WINDOW, length).clip(0)
        self._window[WINDOW : WINDOW + scratch] = np.arange(length, length + scratch)
        bias, first = self._bias, COLUMNS - RECENT
        bias.fill(self._off)
        for row, depth in enumerate(depths[:, 0].tolist()):
            bias[row, max(first, COLUMNS - length - depth) : COLUMNS] = 0
            bias[row, COLUMNS : max(COLUMNS, COLUMNS + length + depth - RECENT)] = 0

    def _point(
        self, mask: Mask, seen: npt.NDArray[np.int64], depths: npt.NDArray[np.int64]
    ) -> None:
        """Say which near row each column shows, and which column each near row is.

        Where the text is shorter than the window the bias hides what is pointed at before it.
        """
        shift = COLUMNS - WINDOW
        # A window's row is so many columns further left, the deeper a row stands.
        np.clip(_COLUMN - shift + depths, 0, WINDOW - 1, out=self._rows)
        window = _COLUMN[:WINDOW] + shift - depths
        np.multiply(window, _COLUMN[:WINDOW] >= depths - 1, out=self._columns[:, :WINDOW])
        own = COLUMNS - 1 - depths + seen
        np.multiply(own, mask, out=self._columns[:, WINDOW:])
        row, near = mask.nonzero()
        self._rows[row, own[row, near]] = WINDOW + near


_COLUMN = np.arange(COLUMNS, dtype=np.int64)


class Feeds:
    """Input buffers of one shape, filled for each call.

    Args:
        role: whose.
        rope: its angles.
        sizes: of the calls.
        rooms: memory for a bias of each form of attention that the stages have, see `rooms`.

    Attributes:
        stages: of each stage, its inputs by name, the past left out. All share what `fill` sets;
            `hidden`, [S, D], is each stage's own.
    """

    def __init__(self, role: Role, rope: Rope, sizes: FeedSizes, rooms: Rooms) -> None:
        rows = sizes.rows
        self._rope_table = rope.table(sizes.capacity + rows)
        self._places = np.zeros((2, rows), np.int64)  # ids and positions
        self._rope = np.zeros((2, rows, role.head_dim), np.float32)
        self._logit_rows = np.arange(sizes.logit_rows, dtype=np.int64)
        off = np.float32(role.bias_off)
        self._sights = {ordered: _sight(ordered)(sizes, off, rooms[ordered]) for ordered in rooms}
        shared: dict[str, Array] = {
            "input_ids": self._places[0],
            "rope_cos": self._rope[0],
            "rope_sin": self._rope[1],
            "logit_rows": self._logit_rows,
        }
        self.stages: list[dict[str, Array]] = []
        for stage in role.stages:
            sees = self._sights[stage.ordered].inputs if stage.cached else {}
            inputs = shared | sees
            names = {tensor.name for tensor in stage.inputs}
            mine = {name: array for name, array in inputs.items() if name in names}
            if "hidden" in names:
                mine["hidden"] = np.zeros((rows, role.hidden_size), np.float32)
            self.stages.append(mine)

    def fill(self, rows: Rows, length: int, last_only: bool) -> None:
        """Describe these rows, behind a committed text of so many."""
        n = len(rows.tokens)
        self._places[:, :n] = rows.tokens, rows.depths
        positions = self._places[1] + length
        # Real rows lie within the table; what padding holds there does not matter.
        self._rope_table.take(positions, axis=1, out=self._rope, mode="clip")
        for sight in self._sights.values():
            sight.fill(rows, length)
        self._logit_rows[0] = n - 1 if last_only else 0


Rooms = Mapping[bool, Floats]
"""Memory for biases, of ordered attention and of the other."""


def rooms(role: Role, capacity: int) -> Rooms:
    """Memory for the biases of a role's calls, of any number of rows before such a cache."""
    most = ROW_BUCKETS[-1] * (capacity + ROW_BUCKETS[-1])
    # The system gives it as it is written.
    forms = {stage.ordered for stage in role.stages if stage.cached}
    return {ordered: np.empty(most, np.float32) for ordered in forms}


def _sight(ordered: bool) -> type[OrderedSight] | type[SplitSight]:
    return OrderedSight if ordered else SplitSight


class Rope:
    """Table of cosines and sines by position, float32 [2, positions, hd], grown as texts grow.

    Angles are float64: at position 100,000 float32 angles are off by more than a hundredth. The
    first half of sin is negated, as the graph's rotation expects. Both are scaled by the role's
    `attention_factor`.
    """

    def __init__(self, role: Role) -> None:
        self._inv_freq = np.asarray(role.inv_freq, np.float64)
        self._scale = role.attention_factor
        self._table = np.zeros((2, 0, role.head_dim), np.float32)

    def table(self, positions: int) -> Floats:
        """The table for `positions` positions at least."""
        if positions > self._table.shape[1]:
            angles = np.arange(positions, dtype=np.float64)[:, None] * self._inv_freq
            cos = (self._scale * np.cos(angles)).astype(np.float32)
            sin = (self._scale * np.sin(angles)).astype(np.float32)
            self._table = np.stack([np.hstack([cos, cos]), np.hstack([-sin, sin])])
        return self._table
