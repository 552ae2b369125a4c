"""The inputs of a call: which rows come, where they stand and what they see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.bundle import Role
from edgespec.runtime.engines import Array

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

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

    @property
    def scratch(self) -> int:
        """Scratch rows that the mask is about."""
        return int(self.mask.shape[1]) - len(self.tokens)


class Feeds:
    """Input buffers of one shape (S rows, capacity C, R rows of logits), filled for each call.

    Args:
        role: whose.
        rope: its angles.
        shape: S, C and R.
        bias: memory for S * (C + S) or more, which buffers of other shapes may use, too.

    Attributes:
        stages: of each stage, its inputs by name, the past left out. All share what `fill` sets;
            `hidden`, [S, D], is each stage's own.
    """

    def __init__(self, role: Role, rope: Rope, shape: tuple[int, int, int], bias: Floats) -> None:
        rows, capacity, logit_rows = shape
        self._capacity = capacity
        self._off = np.float32(role.bias_off)
        self._rope_table = rope.table(capacity + rows)
        self._places = np.zeros((2, rows), np.int64)  # ids and positions
        self._rope = np.zeros((2, rows, role.head_dim), np.float32)
        self._bias = bias[: rows * (capacity + rows)].reshape(rows, capacity + rows)
        self._logit_rows = np.arange(logit_rows, dtype=np.int64)
        shared: dict[str, Array] = {
            "input_ids": self._places[0],
            "rope_cos": self._rope[0],
            "rope_sin": self._rope[1],
            "attention_bias": self._bias,
            "lengths": np.array([capacity, rows], np.int64),
            "logit_rows": self._logit_rows,
        }
        self.stages: list[dict[str, Array]] = []
        for stage in role.stages:
            names = {tensor.name for tensor in stage.inputs}
            mine = {name: array for name, array in shared.items() if name in names}
            if "hidden" in names:
                mine["hidden"] = np.zeros((rows, role.hidden_size), np.float32)
            self.stages.append(mine)

    def fill(self, rows: Rows, length: int, last_only: bool) -> None:
        """Describe these rows; rows of padding see themselves, since all-masked rows give NaN."""
        n, capacity, bias = len(rows.tokens), self._capacity, self._bias
        scratch = rows.scratch
        self._places[:, :n] = rows.tokens, rows.depths
        positions = self._places[1] + length
        # Real rows lie within the table; what padding holds there does not matter.
        self._rope_table.take(positions, axis=1, out=self._rope, mode="clip")
        bias.fill(self._off)
        bias[:n, :length] = 0
        if scratch:
            np.copyto(bias[:n, length : length + scratch], 0, where=rows.mask[:, :scratch])
        np.copyto(bias[:n, capacity : capacity + n], 0, where=rows.mask[:, scratch:])
        for row in range(n, len(bias)):
            bias[row, capacity + row] = 0
        self._logit_rows[0] = n - 1 if last_only else 0


class Rope:
    """Table of cosines and sines by position, float32 [2, positions, hd], grown as texts grow.

    Angles are float64: at position 100,000 float32 angles are off by more than a hundredth. The
    first half of sin is negated, as the graph's rotation expects.
    """

    def __init__(self, role: Role) -> None:
        self._inv_freq = np.asarray(role.inv_freq, np.float64)
        self._table = np.zeros((2, 0, role.head_dim), np.float32)

    def table(self, positions: int) -> Floats:
        """The table for `positions` positions at least."""
        if positions > self._table.shape[1]:
            angles = np.arange(positions, dtype=np.float64)[:, None] * self._inv_freq
            cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
            self._table = np.stack([np.hstack([cos, cos]), np.hstack([-sin, sin])])
        return self._table
