"""A model: passes over rows of several sequences, each with a tree below its last slot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgespec.bundle import FEATURES, LAST_HIDDEN, LOGITS
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.sequences import sequence as sequences
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.prefixes import PrefixTree
from edgespec.runtime.sequences.rope import Rope

Graph = Callable[[Mapping[str, Array]], Mapping[str, Floats]]
"""Makes a pass: inputs by name, to outputs by name. `logits` are [R, V] float32; `features`, which
draft heads read and few graphs have, [S, F]."""

NATIVE = "cpu:native"
"""Name of the engine whose rows have the same bits in any company."""

AFTER = -1
"""Parent of the rows directly behind a sequence's last slot."""


@dataclass(eq=False, slots=True)
class Rows:
    """Rows of one sequence in a pass: tokens that follow it, as a tree.

    Attributes:
        sequence: what they follow.
        tokens: token of each row.
        parents: number of the row that each follows, an earlier one; `AFTER`: the sequence, and
            its `branch`.
        wanted: numbers of the rows whose logits are wanted.
        branch: slots of rows that follow the sequence and are not part of it (yet).
        slots: after the pass, the slot of each row, which the caller owns.
        features: after the pass, [n, F] float32 of each row; None if the graph gives none.
        reads: further inputs of the graph, [n, ...] each, the same ones for all rows of a pass.
        certain: how many of the first rows, a chain that the others follow, are accepted whatever
            the pass finds; recurrent layers keep less of them. 0 with a branch.
    """

    sequence: sequences.Sequence
    tokens: list[int]
    parents: list[int]
    wanted: list[int]
    branch: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    features: Floats | None = None
    reads: Mapping[str, Floats] = field(default_factory=dict)
    certain: int = 0

    def accept(self, rows: Sequence[int]) -> None:
        """Appends these rows to the sequence, a path from its end; frees the others."""
        slots = self.slots
        if len(rows) == len(slots):
            self.sequence.append(slots)
            return
        kept = [slots[row] for row in rows]
        self.sequence.append(kept)
        inside = set(kept)
        self.sequence.pool.free([slot for slot in slots if slot not in inside])


class Model:
    """A model whose passes take rows of any number of sequences.

    A row's logits have the same bits in any company: they depend on the tokens before it alone.

    Args:
        graph: makes passes.
        pool: the cache.
        ropes: rotation tables in use.
        prefixes: see below; None for a new tree, of a pool that no other model has.
        device: name of the engine or device that runs it.

    Attributes:
        pool: see above.
        prefixes: what its sequences leave for others that begin alike.
        device: see above.
        seconds: time inside the graph so far.
    """

    def __init__(
        self,
        graph: Graph,
        pool: KVPool,
        ropes: Sequence[Rope],
        prefixes: PrefixTree | None = None,
        device: str = NATIVE,
    ) -> None:
        self.pool = pool
        self.device = device
        self.prefixes = PrefixTree(pool, pool.recurrent is None) if prefixes is None else prefixes
        self.seconds = 0.0
        self._graph = graph
        self._ropes = ropes

    def sequence(self, tokens: list[int]) -> sequences.Sequence:
        """Returns a sequence of these tokens, of which the model has read none."""
        return sequences.Sequence(self.pool, tokens)

    def forward(self, batch: Sequence[Rows]) -> list[Floats]:
        """Makes a pass, and gives the rows their slots.

        Args:
            batch: rows of at least one sequence.

        Returns:
            For each part of the batch [wanted rows, V] float32; of a model that makes embeddings
            [wanted rows, hidden_size].

        Raises:
            MemoryLimitError: if the pool has no room for the rows.
            DeviceError: if the graph fails.
        """
        feeds, positions = _inputs(batch)
        slots = self.pool.take(len(positions))
        feeds["write"] = np.array(slots, np.int32)
        last = max(positions)
        for rope in self._ropes:
            cos, sin = rope.inputs
            feeds[cos], feeds[sin] = rope.at(positions, last)
        feeds.update(self.pool.arrays)
        recurrent = self.pool.recurrent
        if recurrent is not None:
            feeds.update(recurrent.inputs(batch, slots))
        begin = time.perf_counter()
        try:
            outputs = self._graph(feeds)
        except BaseException:
            self.pool.free(slots)
            if recurrent is not None:  # some layers' states may be new, and others old
                for each in batch:
                    each.sequence.free()
            raise
        self.seconds += time.perf_counter() - begin
        logits = outputs[LOGITS if LOGITS in outputs else LAST_HIDDEN]
        features = outputs.get(FEATURES)
        parts, row, wanted = [], 0, 0
        for each in batch:
            own = slice(row, row + len(each.tokens))
            each.slots = slots[own]
            each.features = None if features is None else features[own]
            parts.append(logits[wanted : wanted + len(each.wanted)])
            row, wanted = own.stop, wanted + len(each.wanted)
        return parts


def _inputs(batch: Sequence[Rows]) -> tuple[dict[str, Array], list[int]]:
    """Returns a graph's inputs but for slots and rotations, and the rows' positions."""
    tokens: list[int] = []
    parents: list[int] = []
    owners: list[int] = []
    wanted: list[int] = []
    positions: list[int] = []
    contexts: list[sequences.Slots] = []
    starts = [0]
    for number, rows in enumerate(batch):
        first = len(tokens)
        length = rows.sequence.length + len(rows.branch)
        tokens += rows.tokens
        owners += [number] * len(rows.tokens)
        for parent in rows.parents:
            parents.append(parent if parent < 0 else parent + first)
            positions.append(length if parent < 0 else positions[parent + first] + 1)
        wanted += [row + first for row in rows.wanted]
        contexts.append(rows.sequence.slots)
        if rows.branch:
            contexts.append(np.array(rows.branch, np.int32))
        starts.append(starts[-1] + length)
    feeds: dict[str, Array] = {
        "input_ids": np.array(tokens, np.int64),
        "parent": np.array(parents, np.int32),
        "sequence": np.array(owners, np.int32),
        "context": contexts[0] if len(contexts) == 1 else np.concatenate(contexts),
        "starts": np.array(starts, np.int32),
        "logit_rows": np.array(wanted, np.int64),
    }
    for name in batch[0].reads:
        feeds[name] = np.concatenate([rows.reads[name] for rows in batch])
    return feeds, positions
