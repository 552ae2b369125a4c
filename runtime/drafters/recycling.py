"""Token recycling: drafts from what the target once held likely after the same tokens.

A pass computes logits for every row of a tree, also for rejected ones. Their likeliest tokens,
stored by the tokens before them, are drafts that need no model: Luo et al., Token Recycling, 2024,
where one token is the key. Here two tokens are the key, because they say more; the last token alone
is the fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from edgespec.errors import InputError
from edgespec.runtime.arrays import Ids
from edgespec.runtime.drafters.acceptance import Acceptances
from edgespec.runtime.drafters.memory_files import DAMAGED, read_memory, write_memory
from edgespec.runtime.sampling.truncation import likeliest_tokens
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT

WIDTH = 8
"""Number of successors of each key."""

CAPACITY = 100_000
"""Default number of keys: about 15 MB."""

_ALONE = -2  # previous token in keys of a single token; -1 marks the beginning of a sequence

_PRIORS = {2: 0.4, 1: 0.25}  # prior acceptance of the likeliest successor, by matched tokens
_COUNTED = 4  # successors whose acceptance is counted; the priors of the others are small
_APART = 8  # salts whose tables are kept, each with an eighth of the default number of keys

_Queued = tuple[float, int, int, Sequence[int], Sequence[float]]


class Successors:
    """The likeliest next tokens by the last two tokens, and by the last one.

    A full table drops the key that was inserted first. Learning a key again replaces its
    successors, but not its place in that order.

    Args:
        vocab_size: Number of token ids.
        capacity: Largest number of keys, at least 2. Each learned row takes two keys.
    """

    def __init__(self, vocab_size: int, capacity: int = CAPACITY) -> None:
        self._vocab_size = vocab_size
        self._capacity = capacity
        # A ring buffer of slots in the order of insertion, with one key and one row each.
        self._keys: list[int] = []
        self._rows = np.zeros((capacity, WIDTH), dtype=np.int32)
        self._slots: dict[int, int] = {}
        self._oldest = 0

    def __len__(self) -> int:
        """Number of keys in the table."""
        return len(self._keys)

    def learn(self, previous: Sequence[int], tokens: Sequence[int], top_ids: Ids) -> None:
        """Stores what the target expects after n tokens; a later row replaces an earlier one.

        Args:
            previous: [n] the token before each token, -1 at the beginning of a sequence.
            tokens: [n] the tokens.
            top_ids: [n, 8] int64, the likeliest tokens after each, best first (see
                `likeliest_tokens`). A smaller vocabulary gives fewer columns; the last is then
                repeated.
        """
        lacking = WIDTH - top_ids.shape[1]
        if lacking:
            top_ids = np.pad(top_ids, ((0, 0), (0, lacking)), "edge")
        slots = []
        for before, token in zip(previous, tokens, strict=True):
            slots.append(self._slot(self._key(before, token)))
            slots.append(self._slot(self._key(_ALONE, token)))
        # If a slot occurs twice, numpy keeps the later row.
        self._rows[slots] = np.repeat(top_ids, 2, axis=0)

    def after(self, previous: int, token: int) -> tuple[Sequence[int], int]:
        """Returns what the target may expect after two tokens.

        Args:
            previous: The token before `token`, -1 at the beginning of a sequence.
            token: The last token.

        Returns:
            [8] ids, best first, and the number of tokens of the key that was found: 2, 1, or 0 with
            no ids.
        """
        slot = self._slots.get(self._key(previous, token))
        matched = 2
        if slot is None:
            slot = self._slots.get(self._key(_ALONE, token))
            matched = 1
            if slot is None:
                return (), 0
        return self._rows[slot].tolist(), matched

    def save(self, path: Path, fingerprint: str) -> None:
        """Writes the table to a file, which is replaced as a whole or not at all.

        Args:
            path: Path of the file; its folder exists.
            fingerprint: What the table was learned from, in one line: the bundle's digest.

        Raises:
            InputError: If the file cannot be written.
        """
        order = np.roll(np.arange(len(self)), -self._oldest)
        keys = np.array(self._keys, dtype=np.int64)[order]
        entries = np.empty((len(self), 2 + WIDTH), dtype="<i4")
        entries[:, 0] = keys // self._vocab_size + _ALONE
        entries[:, 1] = keys % self._vocab_size
        entries[:, 2:] = self._rows[order]
        write_memory(path, fingerprint, entries.tobytes())

    @classmethod
    def load(
        cls, path: Path, fingerprint: str, vocab_size: int, capacity: int = CAPACITY
    ) -> Successors:
        """Reads a table that `save` has written; of more than `capacity` keys the latest.

        Raises:
            InputError: If the file cannot be read, is damaged, has another version, was learned
                from another bundle, or holds ids outside the vocabulary.
        """
        content = read_memory(path, fingerprint)
        width = 2 + WIDTH
        if len(content) % (4 * width):
            raise InputError(f"{path} ends inside an entry: {DAMAGED}")
        entries = np.frombuffer(content, dtype="<i4").reshape(-1, width)
        previous = entries[:, :1]
        rest = entries[:, 1:]
        for ids, least in ((previous, _ALONE), (rest, 0)):
            if ids.size and not (least <= ids.min() and ids.max() < vocab_size):
                raise InputError(
                    f"{path} holds token ids from {ids.min()} to {ids.max()}, the vocabulary has "
                    f"{vocab_size}: {DAMAGED}"
                )
        table = cls(vocab_size, capacity)
        kept = entries[-capacity:]
        keys = (kept[:, 0].astype(np.int64) - _ALONE) * vocab_size + kept[:, 1]
        table._keys = keys.tolist()
        table._slots = {key: slot for slot, key in enumerate(table._keys)}
        if len(table._slots) < len(table):
            raise InputError(f"{path} holds a key twice: {DAMAGED}")
        table._rows[: len(table)] = kept[:, 2:]
        return table

    def _key(self, previous: int, token: int) -> int:
        return (previous - _ALONE) * self._vocab_size + token

    def _slot(self, key: int) -> int:
        """Returns the slot of a key; a new key in a full table replaces the oldest."""
        slot = self._slots.get(key)
        if slot is None:
            if len(self._keys) < self._capacity:
                slot = len(self._keys)
                self._keys.append(key)
            else:
                slot = self._oldest
                del self._slots[self._keys[slot]]
                self._keys[slot] = key
                self._oldest = (slot + 1) % self._capacity
            self._slots[key] = slot
        return slot


class RecyclingDrafter:
    """Grows trees from a table of successors, which every verified row of the target updates.

    Luo et al., Token Recycling, 2024. Rejected rows teach as much as accepted ones. The acceptance
    of each rank is counted at every token of a sequence, drafted or not. Sequences with a salt have
    a table with those of the same salt alone.

    Args:
        first: gives the table to begin with, which may hold what was learned before.

    Attributes:
        successors: the table of sequences without a salt; a new one after `forget`.
    """

    name = "recycling"

    def __init__(self, first: Callable[[], Successors]) -> None:
        self._first = first
        self.forget()

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`."""
        return generation.drafts_by(self.name)

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`. Branches grow below all nodes that are there."""
        for part in plan.drafting:
            if self in part.generation.drafters:
                self._grow(part, plan.least_value)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`."""
        rows = reading.rows
        known = generation.tokens
        last = len(known) - len(reading.tokens) - 1  # place of the last token that was read
        previous = known[last - 1] if last else -1
        table = self._table(generation)
        token = rows.tokens[rows.wanted[0]]
        last_tokens = _LastTokens(table, previous, token)
        self._acceptances.of(generation).count(reading.tokens, last_tokens)
        tokens = [rows.tokens[row] for row in rows.wanted]
        parents = [rows.parents[row] for row in rows.wanted]
        before = [previous, *[rows.tokens[parent] for parent in parents[1:]]]
        vocab_size = generation.request.sampler.vocab_size
        best = likeliest_tokens(reading.logits, vocab_size, min(WIDTH, vocab_size))
        table.learn(before, tokens, best)

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""

    def forget(self) -> None:
        """See `Drafter`."""
        self.successors = self._first()
        self._apart = dict[str, Successors]()  # by salt, the latest one last
        self._acceptances = Acceptances()

    def _table(self, generation: Generation) -> Successors:
        """Returns the table of a generation's salt."""
        salt = generation.sequence.salt
        vocab_size = generation.request.sampler.vocab_size
        if not salt:
            return self.successors
        self._apart[salt] = table = self._apart.pop(salt, None) or Successors(
            vocab_size, CAPACITY // _APART
        )
        if len(self._apart) > _APART:
            del self._apart[next(iter(self._apart))]
        return table

    def _grow(self, part: PassPart, least: float) -> None:
        """Adds the likeliest branches, the best first.

        Of each node only its next successor is in the queue. One is worth less beside children of
        another source, because most often both are right at once.
        """
        proposal = part.proposal
        limits = part.generation.request.limits
        table = self._table(part.generation)
        acceptances = self._acceptances.of(part.generation)
        text = part.generation.tokens
        edges = {
            matched: [
                acceptances.acceptance(matched * WIDTH + rank, prior / (rank + 1) ** 1.5)
                for rank in range(min(limits.width, WIDTH))
            ]
            for matched, prior in _PRIORS.items()
        }
        queue: list[_Queued] = []
        depths: list[int] = []

        def push(node: int) -> None:
            """Finds what may follow a node."""
            if depths[node + 1] == part.depth:
                return
            if node == ROOT:
                previous = text[-2] if len(text) > 1 else -1
                token = text[-1]
            else:
                parent = proposal.parents[node]
                token = proposal.tokens[node]
                previous = text[-1] if parent == ROOT else proposal.tokens[parent]
            successors, matched = table.after(previous, token)
            if matched:
                share = proposal.room(node)
                offer(node, 0, successors, [share * edge for edge in edges[matched]])

        def offer(node: int, rank: int, tokens: Sequence[int], values: Sequence[float]) -> None:
            if rank < len(values) and values[rank] >= least:
                heappush(queue, (-values[rank], node, rank, tokens, values))

        for node in range(ROOT, len(proposal)):
            depths.append(0 if node == ROOT else depths[proposal.parents[node] + 1] + 1)
            push(node)
        most = len(proposal) + part.most_nodes
        while queue and len(proposal) < most:
            _, parent, rank, tokens, values = heappop(queue)
            node = len(proposal)
            if proposal.add(parent, tokens[rank], values[rank], self.name) == node:
                depths.append(depths[parent + 1] + 1)
                push(node)
            offer(parent, rank + 1, tokens, values)


@dataclass
class _LastTokens:
    """The last two tokens of a sequence, behind which successors are expected.

    Attributes:
        table: the successors.
        previous: the token before the last one, -1 at the beginning of a sequence.
        token: the last one.
    """

    table: Successors
    previous: int
    token: int

    def edges(self) -> list[tuple[int, int]]:
        """See `Expectation`."""
        successors, matched = self.table.after(self.previous, self.token)
        first = matched * WIDTH
        return list(zip(successors, range(first, first + _COUNTED), strict=False))

    def follow(self, token: int) -> bool:
        """See `Expectation`."""
        self.previous = self.token
        self.token = token
        return True
