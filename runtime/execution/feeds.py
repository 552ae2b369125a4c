"""The inputs of a call: its rows, their positions and what they attend to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgespec.bundle import Role, RopeTable
from edgespec.bundle.caches import TEXT_PLACES, TEXT_ROWS
from edgespec.bundle.sublayers import (
    CAUSAL,
    CHUNK,
    RecurrentShape,
    bias_input,
    mask_input,
    rope_inputs,
    window_of,
)
from edgespec.runtime.arrays import Array, Floats, Mask
from edgespec.runtime.engines import Held
from edgespec.runtime.shapes import COLUMNS, RECENT, ROW_BUCKETS, WINDOW, kept_rows
from edgespec.runtime.trees.tree import TokenTree

START = -1
"""Parent of the rows that directly follow the committed text."""


@dataclass(frozen=True)
class Rows:
    """The new rows of one call.

    Attributes:
        tokens: [n] token ids.
        depths: [n] positions, counted from the end of the committed text.
        mask: [n, scratch + n] which scratch rows and which of these rows each row sees. All rows
            see the committed text. A mask with no scratch columns means that no scratch row is
            seen.
        parents: [n] the row before each, or `START`. For rows of a draft these are scratch rows,
            for rows of a verification they are rows of the same call. Read only if drafts run on
            the target's own stages, and by recurrent sublayers.
        last_only: whether logits are wanted for the last row only.
    """

    tokens: Sequence[int] | npt.NDArray[np.int64]
    depths: Sequence[int] | npt.NDArray[np.int64]
    mask: Mask
    parents: Sequence[int] = ()
    last_only: bool = False

    @classmethod
    def chain(cls, tokens: Sequence[int] | npt.NDArray[np.int64], last_only: bool = False) -> Rows:
        """Returns rows of consecutive tokens, at least one; each sees itself and all before."""
        n = len(tokens)
        return cls(tokens, range(n), np.tri(n, dtype=np.bool_), [START, *range(n - 1)], last_only)

    @classmethod
    def tree(cls, pending: int, tree: TokenTree) -> Rows:
        """Returns the rows of a tree: row 0 is the pending token, row i + 1 is node i."""
        return cls(
            [pending, *tree.tokens.tolist()],
            [0, *tree.depths.tolist()],
            tree.ancestor_mask(),
            [START, *(parent + 1 for parent in tree.parents.tolist())],
        )

    @property
    def is_chain(self) -> bool:
        """Whether each row follows the one before it."""
        first = int(self.depths[0])
        return [*self.depths] == [*range(first, first + len(self.depths))]

    @property
    def scratch(self) -> int:
        """Number of scratch rows that the mask has columns for."""
        return int(self.mask.shape[1]) - len(self.tokens)

    @property
    def logits(self) -> int:
        """Number of rows that logits are wanted for."""
        return min(1, len(self.tokens)) if self.last_only else len(self.tokens)


@dataclass(frozen=True)
class FeedSizes:
    """Sizes of the inputs of a call.

    Attributes:
        rows: S, the number of rows.
        capacity: C, the number of cache rows.
        logit_rows: R, the number of rows that logits are computed for.
        scratch: number of scratch rows that a call can see, rounded up to a bucket.
        texts: T, the number of texts.
        text_rows: L, the most rows of a text; 0 stands for `rows`, as all are those of one text.
    """

    rows: int
    capacity: int
    logit_rows: int
    scratch: int = 0
    texts: int = 1
    text_rows: int = 0

    @property
    def most_rows(self) -> int:
        """L, the most rows of a text."""
        return self.text_rows or self.rows


class AttentionInputs(Protocol):
    """The inputs that tell one form of attention what rows see (docs/graph.md).

    Attributes:
        inputs: the inputs by name, of a stage for one text; among them a bias for each mask.
        of_texts: the same for a stage whose calls hold several: what tells texts apart has a first
            dimension of texts.
    """

    inputs: dict[str, Array]
    of_texts: dict[str, Array]

    def fill(self, rows: Rows, length: int, text: int = 0) -> None:
        """Set the inputs for a text's rows, after a committed text of `length` rows."""


class SplitAttentionInputs:
    """Inputs of attention over columns of the cache and of the call: `attention_bias` [S, C + S].

    Calls over several texts have [T, L, C + L], with columns for each text's own rows.

    Args:
        sizes: sizes of the calls.
        off: bias that masks a column.
        memory: memory for the bias of each mask, which inputs of other shapes may share.
        rings: windows of layers that keep little more than these, by their masks.
    """

    def __init__(
        self,
        sizes: FeedSizes,
        off: np.float32,
        memory: Mapping[str, Floats],
        rings: Mapping[str, int],
    ) -> None:
        self._off = off
        self._held = {mask: Held(rings.get(mask)) for mask in memory}
        self._biases = _biases(memory, sizes, sizes.most_rows, rings)
        self.of_texts: dict[str, Array] = {
            bias_input(mask): bias for mask, bias in self._biases.items()
        }
        self.inputs = {name: each[0] for name, each in self.of_texts.items()}
        for mask in (CAUSAL, *rings):
            kept = kept_rows(sizes.capacity, rings.get(mask))
            lengths = np.array([kept, sizes.most_rows], np.int64)
            name = mask_input("lengths", mask)
            self.inputs[name] = self.of_texts[name] = lengths

    def fill(self, rows: Rows, length: int, text: int = 0) -> None:
        """See `AttentionInputs`. Padding rows see themselves, since fully masked rows give NaN."""
        for mask, biases in self._biases.items():
            self._fill(mask, biases[text], rows, length)

    def _fill(self, mask: str, bias: Floats, rows: Rows, length: int) -> None:
        n, scratch, window, held = len(rows.tokens), rows.scratch, window_of(mask), self._held[mask]
        seen = rows.mask if window is None else _within(rows.mask, window)
        own = bias.shape[1] - len(bias)  # the first column of the call's own rows
        bias.fill(self._off)
        for row, depth in enumerate(rows.depths):
            first = 0 if window is None else max(0, length + int(depth) + 1 - window)
            for columns in held.slices(first, length):
                bias[row, columns] = 0
        if scratch:
            places = held.places(length, scratch)
            bias[:n, places] = np.where(seen[:, :scratch], 0, self._off)
        np.copyto(bias[:n, own : own + n], 0, where=seen[:, scratch:])
        for row in range(n, len(bias)):
            bias[row, own + row] = 0


class OrderedAttentionInputs:
    """Inputs of attention that has columns for a row's last positions, before those of the cache.

    The scratch rows and rows of the call that a row sees are its ancestors and itself. They stand
    in the order of their positions, so each one's position follows from counting back from the row
    itself.

    Args:
        sizes: sizes of the calls.
        off: bias that masks a column.
        memory: memory for the bias of each mask, which inputs of other shapes may share.
        rings: windows of layers that keep little more than these, by their masks.
    """

    def __init__(
        self,
        sizes: FeedSizes,
        off: np.float32,
        memory: Mapping[str, Floats],
        rings: Mapping[str, int],
    ) -> None:
        texts, rows, self._near = sizes.texts, sizes.most_rows, WINDOW + sizes.scratch
        self._off = off
        self._held = {mask: Held(rings.get(mask)) for mask in (CAUSAL, *memory)}
        self._biases = _biases(memory, sizes, COLUMNS, rings)
        self._windows = {mask: np.zeros((texts, self._near), np.int64) for mask in (CAUSAL, *rings)}
        self._rows = np.zeros((texts, rows, COLUMNS), np.int32)
        self._columns = np.zeros((texts, rows, self._near + rows), np.int32)
        self._mask = np.zeros((rows, sizes.scratch + rows), np.bool_)
        self.of_texts: dict[str, Array] = {
            **{bias_input(mask): bias for mask, bias in self._biases.items()},
            **{mask_input("window_rows", mask): last for mask, last in self._windows.items()},
            "recent_rows": self._rows,
            "recent_columns": self._columns,
        }
        self.inputs = {name: each[0] for name, each in self.of_texts.items()}
        for mask in self._windows:
            kept = kept_rows(sizes.capacity, rings.get(mask))
            lengths = np.array([COLUMNS, kept], np.int64)
            self.inputs[mask_input("lengths", mask)] = lengths
            self.of_texts[mask_input("lengths", mask)] = lengths

    def fill(self, rows: Rows, length: int, text: int = 0) -> None:
        """See `AttentionInputs`. Padding rows are like the first row after the text.

        Raises:
            ValueError: if a row has more than `RECENT` tokens after the text, itself included.
        """
        n, scratch, room, mask = len(rows.tokens), rows.scratch, self._near - WINDOW, self._mask
        mask[:] = False
        mask[:n, :scratch] = rows.mask[:, :scratch]
        mask[:n, room : room + n] = rows.mask[:, scratch:]
        for row in range(n, len(mask)):
            mask[row, room + row] = True
        seen = mask.cumsum(axis=1)
        depths = seen[:, -1:]  # [S, 1] tokens after the committed text, up to the row's own
        if depths.max() > RECENT:
            raise ValueError(f"a call has {depths.max()} consecutive tokens: {RECENT} at most")
        self._point(mask, seen, depths, text)
        for name, windows in self._windows.items():
            last = windows[text]
            held, before = self._held[name], max(length - WINDOW, 0)
            last[: WINDOW - length + before] = held.place(0)
            last[WINDOW - length + before : WINDOW] = held.places(before, length - before)
            last[WINDOW : WINDOW + scratch] = held.places(length, scratch)
        for name, biases in self._biases.items():
            self._hide(biases[text], name, (length + depths[:, 0]).tolist())

    def _hide(self, bias: Floats, mask: str, counts: Sequence[int]) -> None:
        """Set a bias so that each row sees the positions it may see.

        Args:
            bias: [S, N + C].
            mask: name of the mask.
            counts: number of positions up to each row, itself included.
        """
        bias.fill(self._off)
        window, held, cached = window_of(mask), self._held[mask], bias[:, COLUMNS:]
        for row, count in enumerate(counts):
            first = 0 if window is None else max(0, count - window)
            old = max(0, count - RECENT)  # positions without a column of their own
            bias[row, COLUMNS - count + max(first, old) : COLUMNS] = 0
            for columns in held.slices(first, old):
                cached[row, columns] = 0

    def _point(
        self, mask: Mask, seen: npt.NDArray[np.int64], depths: npt.NDArray[np.int64], text: int
    ) -> None:
        """Set which nearby row each column shows, and which column shows each nearby row.

        If the text is shorter than the window, the bias masks the columns before its beginning.
        """
        shift, rows, columns = COLUMNS - WINDOW, self._rows[text], self._columns[text]
        # The deeper a row is, the further left it sees the rows of the window.
        np.clip(_COLUMN - shift + depths, 0, WINDOW - 1, out=rows)
        window = _COLUMN[:WINDOW] + shift - depths
        np.multiply(window, _COLUMN[:WINDOW] >= depths - 1, out=columns[:, :WINDOW])
        own = COLUMNS - 1 - depths + seen
        np.multiply(own, mask, out=columns[:, WINDOW:])
        row, near = mask.nonzero()
        rows[row, own[row, near]] = WINDOW + near


def _biases(
    memory: Mapping[str, Floats], sizes: FeedSizes, more: int, rings: Mapping[str, int]
) -> dict[str, Floats]:
    """Returns a view [T, L, kept rows of the cache + more] of the memory of each mask."""
    found = {}
    for mask, each in memory.items():
        shape = sizes.texts, sizes.most_rows, kept_rows(sizes.capacity, rings.get(mask)) + more
        found[mask] = each[: math.prod(shape)].reshape(shape)
    return found


def _within(mask: Mask, window: int) -> Mask:
    """Returns a mask that is limited to the last `window` positions of each row."""
    seen = mask.cumsum(axis=1)
    near: Mask = mask & (seen[:, -1:] - seen < window)
    return near


_COLUMN = np.arange(COLUMNS, dtype=np.int64)


class RecurrenceInputs:
    """Inputs that tell recurrent sublayers each row's ancestors (docs/graph.md).

    Args:
        shapes: what the sublayers hold of a text.
        rows: S, the number of rows.
    """

    def __init__(self, shapes: Sequence[RecurrentShape], rows: int) -> None:
        self._trail = np.zeros((max(shape.kernel for shape in shapes), rows), np.int64)
        near = CHUNK + rows
        self._ancestors = np.zeros((near, near), np.float32)
        self._halves = np.zeros((CHUNK.bit_length(), near, near), np.float32)
        self._places = np.zeros(near, np.int64)  # behind the border
        self.inputs: dict[str, Array] = {
            "trail": self._trail,
            "ancestors": self._ancestors,
            "own_rows": np.arange(CHUNK, near),
            "halves": self._halves,
            "unit": np.eye(near, dtype=np.float32),
        }

    def fill(self, rows: Rows, length: int) -> None:
        """Set the inputs for rows with `parents`, after a committed text of `length` rows."""
        n = len(rows.tokens)
        last = length % CHUNK  # the near row behind the committed ones
        before = len(self._trail) - 1
        for row, parent in enumerate(rows.parents):
            self._trail[-1, row] = before + row
            if parent == START:
                self._trail[:-1, row] = np.arange(before)
            else:
                self._trail[:-1, row] = self._trail[1:, parent]
        self._trail[:, n:] = 0
        self._ancestors[:] = 0
        self._ancestors[:last, :last] = np.tri(last, k=-1)
        own = slice(CHUNK, CHUNK + n)
        self._ancestors[own, :last] = 1
        self._ancestors[own, own] = rows.mask[:, rows.scratch :] & ~np.eye(n, dtype=np.bool_)
        self._places[:last] = np.arange(last)
        self._places[own] = np.add(rows.depths, last)
        for level, halves in enumerate(self._halves):
            half = self._places >> level
            # The row's half is the second one, and the ancestor's the one before.
            linked = (half[:, None] & 1 == 1) & (half[:, None] == half[None] + 1)
            np.multiply(linked, self._ancestors, out=halves)


class Feeds:
    """Input buffers of one shape, filled for each call.

    Args:
        role: the role whose stages are called.
        ropes: its rotation tables, by name.
        sizes: sizes of the calls.
        biases: memory for the biases of each form of attention, see `bias_buffers`.

    Attributes:
        stages: inputs of each stage by name, without the past. All stages share what `fill` sets;
            `hidden`, [S, D] or for a head's fusion [S, features], is each stage's own.
    """

    def __init__(
        self, role: Role, ropes: Mapping[str, Rope], sizes: FeedSizes, biases: BiasBuffers
    ) -> None:
        rows = sizes.rows
        self._ids_and_positions = np.zeros((2, rows), np.int64)
        self._rotations = [
            (rope.table(sizes.capacity + rows), np.zeros((2, rows, rope.width), np.float32))
            for rope in ropes.values()
        ]
        self._logit_rows = np.arange(sizes.logit_rows, dtype=np.int64)
        self._fewer = False  # whether logits were not wanted for all rows of the last call
        off = np.float32(role.bias_off)
        self._attention_inputs = {
            ordered: _inputs_class(ordered)(sizes, off, by_mask, role.rings)
            for ordered, by_mask in biases.items()
        }
        held = role.layout.recurrent(range(role.layout.head))
        self._recurrence = RecurrenceInputs(tuple(held.values()), rows) if held else None
        shared: dict[str, Array] = {
            "input_ids": self._ids_and_positions[0],
            "logit_rows": self._logit_rows,
        }
        self._several = any(stage.several_texts for stage in role.stages)
        if self._several:
            # A single text has all rows, in their order.
            self._text_places = np.arange(rows)
            self._text_rows = np.tile(np.arange(sizes.most_rows), (sizes.texts, 1))
            shared |= {TEXT_ROWS: self._text_rows, TEXT_PLACES: self._text_places}
        if self._recurrence is not None:
            shared |= self._recurrence.inputs
        for name, (_, rotation) in zip(ropes, self._rotations, strict=True):
            shared |= dict(zip(rope_inputs(name), rotation, strict=True))
        self.stages: list[dict[str, Array]] = []
        for stage in role.stages:
            inputs = shared
            if stage.attends:
                attention = self._attention_inputs[stage.ordered]
                inputs = shared | (attention.of_texts if stage.several_texts else attention.inputs)
            shapes = {tensor.name: tensor.shape for tensor in stage.inputs}
            mine = {name: array for name, array in inputs.items() if name in shapes}
            if "hidden" in shapes:
                mine["hidden"] = np.zeros((rows, int(shapes["hidden"][-1])), np.float32)
            self.stages.append(mine)

    def fill(self, rows: Rows, length: int) -> None:
        """Set the inputs for rows of one text, after a committed text of `length` rows.

        Args:
            rows: the rows of the call.
            length: number of committed rows.
        """
        self.fill_texts([(rows, length)])
        if self._recurrence is not None:
            self._recurrence.fill(rows, length)

    def fill_texts(self, texts: Sequence[tuple[Rows, int]]) -> None:
        """Set the inputs for rows of several texts, which follow one another.

        Args:
            texts: rows of each text, perhaps none, and the number of its committed rows.
        """
        first = wanted = 0
        positions, logit_rows = self._ids_and_positions[1], self._logit_rows
        if self._fewer:
            logit_rows[:], self._fewer = range(len(logit_rows)), False
        for text, (rows, length) in enumerate(texts):
            last = first + len(rows.tokens)
            self._ids_and_positions[0, first:last] = rows.tokens
            positions[first:last] = np.add(rows.depths, length)
            for each in self._attention_inputs.values():
                each.fill(rows, length, text)
            if self._several and len(texts) > 1:
                self._place(text, first, last)
            logits = rows.logits
            if last - logits != wanted:
                logit_rows[wanted : wanted + logits], self._fewer = range(last - logits, last), True
            first, wanted = last, wanted + logits
        positions[first:] = positions[first - 1]
        for table, rotation in self._rotations:
            # Rows of drafts may lie beyond the table, but their values do not matter.
            table.take(positions, axis=1, out=rotation, mode="clip")

    def _place(self, text: int, first: int, last: int) -> None:
        """Set where a text's rows go, from `first` up to but not including `last`."""
        places = self._text_rows[text]
        places[:] = min(first, len(self._text_places) - 1)
        places[: last - first] = np.arange(first, last)
        start = text * len(places)
        self._text_places[first:last] = np.arange(start, start + last - first)
        self._text_places[last:] = start


BiasBuffers = Mapping[bool, Mapping[str, Floats]]
"""Memory for the bias of each mask, by whether attention is ordered."""


def bias_buffers(role: Role, capacity: int, rows: int = ROW_BUCKETS[-1]) -> BiasBuffers:
    """Returns memory for the biases of a role's calls.

    It suffices for calls of up to this number of rows, or places of several texts, with caches of
    this capacity.
    """
    most = rows * (capacity + ROW_BUCKETS[-1])
    # The system allocates the pages when they are first written.
    forms = {stage.ordered for stage in role.stages if stage.attends}
    masks = role.layout.masks
    return {ordered: {mask: np.empty(most, np.float32) for mask in masks} for ordered in forms}


def _inputs_class(ordered: bool) -> type[OrderedAttentionInputs] | type[SplitAttentionInputs]:
    return OrderedAttentionInputs if ordered else SplitAttentionInputs


class Rope:
    """Table of cosines and sines by position, float32 [2, positions, hd], grown as texts grow.

    Angles are float64: at position 100,000 float32 angles are off by more than a hundredth. The
    first half of sin is negated, as the graph's rotation expects.
    """

    def __init__(self, table: RopeTable) -> None:
        self._inv_freq = np.asarray(table.inv_freq, np.float64)
        # A frequency of zero is for dimensions that are neither rotated nor scaled.
        self._scale = np.where(self._inv_freq == 0, 1.0, table.attention_factor)
        self._table = np.zeros((2, 0, 2 * len(self._inv_freq)), np.float32)

    @property
    def width(self) -> int:
        """Width of a head, hd."""
        return 2 * len(self._inv_freq)

    def table(self, positions: int) -> Floats:
        """Returns the table for at least `positions` positions."""
        if positions > self._table.shape[1]:
            angles = np.arange(positions, dtype=np.float64)[:, None] * self._inv_freq
            cos = (self._scale * np.cos(angles)).astype(np.float32)
            sin = (self._scale * np.sin(angles)).astype(np.float32)
            self._table = np.stack([np.hstack([cos, cos]), np.hstack([-sin, sin])])
        return self._table
