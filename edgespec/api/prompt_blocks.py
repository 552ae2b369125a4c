"""Blocks of a text in the prompt cache, and what a text goes on from behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgespec.api.snapshots import cache_name, features_name, states_in
from edgespec.bundle import TARGET, Role
from edgespec.runtime.arrays import Array
from edgespec.runtime.execution.features import FEATURE_ROWS
from edgespec.runtime.execution.snapshot import Snapshot

BLOCK = 128
"""Tokens of a block: no fewer than a call has, and a multiple of `CHUNK`, where recurrent layers
have a state. What a prompt has behind its last whole block is computed again."""


class JoinedBlocks:
    """What a target goes on from behind some blocks, put together one block after the other.

    Layers with a window need the rows that they see only, recurrent ones the state of the last
    block, and draft heads the last features. No more is read.

    Args:
        role: the target.
        blocks: number of blocks.
    """

    def __init__(self, role: Role, blocks: int) -> None:
        self._length = blocks * BLOCK
        windows = (group.window for stage in role.stages for group in stage.cache_groups)
        # The first position that is needed of each group; at least one is.
        self._firsts = [
            0 if each is None else max(0, self._length - max(each - 1, 1)) for each in windows
        ]
        self._caches: dict[int, Array] = {}
        self._features: list[Array] = []
        self._states: list[dict[str, Array]] = []

    def needs(self, number: int, name: str) -> bool:
        """Whether an array of a block is needed."""
        stop = (number + 1) * BLOCK
        if name == features_name(TARGET):
            return stop > self._length - FEATURE_ROWS
        caches = (cache_name(TARGET, group) for group in range(len(self._firsts)))
        for cache, first in zip(caches, self._firsts, strict=True):
            if name == cache:
                return first < stop
        return stop == self._length

    def add(self, number: int, arrays: Mapping[str, Array]) -> None:
        """Adds the arrays of the next block that are needed.

        Raises:
            KeyError: if an array is missing.
            ValueError: if one has another shape than those before.
        """
        stop = (number + 1) * BLOCK
        for group, first in enumerate(self._firsts):
            begin = max(first, stop - BLOCK)
            if begin < stop:
                rows = arrays[cache_name(TARGET, group)]
                layers, parts, heads, held, width = rows.shape
                if group not in self._caches:
                    shape = (layers, parts, heads, self._length - first, width)
                    self._caches[group] = np.empty(shape, rows.dtype)
                needed = rows[:, :, :, max(0, held - (stop - begin)) :]
                self._caches[group][:, :, :, begin - first : stop - first] = needed
        features = arrays.get(features_name(TARGET))
        if features is not None:
            # They end with the block; where its beginning is missing, nothing before is of use.
            self._features = [*self._features * (len(features) == BLOCK), features]
        if stop == self._length:
            self._states = states_in(arrays, TARGET)

    def snapshot(self, tokens: Sequence[int]) -> Snapshot:
        """Returns all of it, once all blocks were added.

        Args:
            tokens: those of the blocks.
        """
        caches = [self._caches[group] for group in range(len(self._firsts))]
        features = np.concatenate(self._features) if self._features else None
        return Snapshot(tokens, caches, features, self._states)
