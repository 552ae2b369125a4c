"""Who is in a pass: sequences that decode, chunks of prompts, and what waits for memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import MemoryLimitError
from edgespec.runtime.sequences.model import Model
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.speculation.tree import Proposal

if TYPE_CHECKING:
    from edgespec.runtime.drafters.base import SequenceStore

_CHUNK = 64  # rows of prompts in a pass that other sequences wait for
_LONG_CHUNK = 128  # and in one of prompts alone; twice as many are read little faster
_OLDEST_EVERY = 4  # passes: in one of so many the oldest prompt comes first
_WORTH_WAITING = 16  # equal tokens that one sequence reads and another then shares
_AGAIN = 16  # tokens that a head may not have read at the end of a text
_MOST_UNREAD = 16  # rounds by which a generation may be ahead of its reader


@dataclass(eq=False)
class PassPart:
    """A sequence's part of a pass.

    Attributes:
        generation: whose sequence.
        reading: tokens that the target reads, the last committed one or a chunk of the prompt.
        complete: whether these are all tokens, so that there will be a new one.
        depth: largest depth of a node; 0 if there must be no tree.
        is_prompt: whether these are tokens of the prompt.
        proposal: nodes that drafters propose, and in the end those that are verified.
        begun: whether its draft was begun during the pass before.
    """

    generation: Generation
    reading: list[int]
    complete: bool
    depth: int
    is_prompt: bool = False
    proposal: Proposal = field(default_factory=Proposal)
    begun: bool = False

    @property
    def most_nodes(self) -> int:
        """Largest number of nodes."""
        return self.generation.request.limits.max_nodes


class Schedule:
    """The generations of an engine, and their order.

    Args:
        target: the model.
        store: see `SequenceStore`; None if there is none.

    Attributes:
        waiting: generations that wait for memory, first come first served.
        running: generations that have it, the oldest first.
    """

    def __init__(self, target: Model, store: SequenceStore | None) -> None:
        self.waiting = deque[Generation]()
        self.running: list[Generation] = []
        self._target = target
        self._store = store
        self._prompt_passes = 0

    def add(self, generation: Generation) -> None:
        """Lets a generation wait.

        Raises:
            MemoryLimitError: if it may need more slots than the pool can ever have.
        """
        needed = generation.further_slots
        limit = self._target.pool.limit
        if limit is not None and needed > limit:
            raise MemoryLimitError(
                f"the text may need {needed} rows of the KV cache, which has room for {limit}: "
                "shorten the prompt, lower max_new_tokens, or raise --memory"
            )
        self.waiting.append(generation)

    def admit(self) -> list[Generation]:
        """Lets those run, in their order, for whose longest text there are slots; returns them."""
        admitted = []
        while self.waiting and self._has_slots(self.waiting[0]):
            generation = self.waiting[0]
            if self._store is not None:
                generation.reused += self._store.begin(generation.sequence)
            self.running.append(generation)
            self.waiting.popleft()  # last, since other threads look for it
            admitted.append(generation)
        return admitted

    def remove(self, generation: Generation) -> None:
        """Removes a generation, whether it waits or runs."""
        runs = generation in self.running
        (self.running if runs else self.waiting).remove(generation)

    def parts(self) -> list[PassPart]:
        """Returns the parts of the next pass; none only if nothing runs.

        Of prompts it is a chunk, of the shortest ones, so that the first tokens come early on
        average. Who does not read his rounds is left out, unless he holds up what waits for memory.
        """
        ready = [each for each in self.running if len(each.rounds) < _MOST_UNREAD] or self.running
        parts = [_decoding(generation) for generation in ready if not generation.is_new]
        long = self._target.long_passes
        room = _CHUNK if parts else _LONG_CHUNK if long is None else long.chunk
        for generation in self._prompts(ready):
            if not room:
                break
            self._share(generation)
            if any(_reads_alike(part, generation) for part in parts if part.is_prompt):
                continue
            self._read_again(generation)
            unread = generation.sequence.unread
            length = generation.sequence.length
            ends = (end - length for end in generation.request.turns if end > length)
            most = room if long is None or room < long.least else _even(room, len(unread))
            count = min(most, next(ends, most), len(unread))
            if (pictures := generation.sequence.pictures) is not None:
                count = pictures.following(length, count)
            reading = unread[:count]
            room = max(room - count, 0)
            complete = len(reading) == len(unread)
            parts.append(PassPart(generation, reading, complete, 0, is_prompt=True))
        return parts

    def _prompts(self, ready: Sequence[Generation]) -> list[Generation]:
        """Returns those that read their prompts, in the order in which they may."""
        new = [generation for generation in ready if generation.is_new]
        self._prompt_passes += bool(new)
        order = sorted(new, key=_unread)
        if new and self._prompt_passes % _OLDEST_EVERY == 0:
            order.remove(new[0])
            order.insert(0, new[0])
        return order

    def _share(self, generation: Generation) -> None:
        most = len(generation.request.prompt) - 1  # the last token's logits are wanted
        sequence = generation.sequence
        before = sequence.length
        self._target.prefixes.extend(sequence, most)
        if sequence.pictures is not None:
            sequence.cut(sequence.length)  # to where no picture is begun
        generation.reused += sequence.length - before

    def _read_again(self, generation: Generation) -> None:
        """Lets the last shared tokens be read again if a head is to draft, for their features.

        A head shares its own rows, too, but for those that it had not read of the earlier text.
        """
        sequence = generation.sequence
        target = self._target
        again = min(sequence.length - generation.features.stop, _AGAIN)
        if target.gives_features and generation.drafts and sequence.recurrence is None and again:
            sequence.cut(sequence.length - again)
            generation.reused -= again

    def _has_slots(self, generation: Generation) -> bool:
        """Whether there are slots for a generation; evicts what is in its way."""
        self._share(generation)
        pool = self._target.pool
        everyone = [*self.running, generation]
        if pool.limit is None:
            return True
        further = sum(each.further_slots for each in everyone)
        held = np.unique(np.concatenate([each.sequence.slots for each in everyone]))
        if held.size + further > pool.limit:
            generation.sequence.free()
            generation.reused = 0
            return False
        pool.evict(pool.used + further - pool.limit)
        return True


def _even(most: int, unread: int) -> int:
    """Returns the rows of a chunk where all are about as long, and so the last one, too."""
    return -(-unread // -(-unread // most))


def _decoding(generation: Generation) -> PassPart:
    depth = min(generation.remaining - 1, generation.request.limits.max_nodes)
    return PassPart(generation, generation.sequence.unread, True, depth)


def _unread(generation: Generation) -> int:
    return len(generation.request.prompt) - generation.sequence.length


def _reads_alike(part: PassPart, generation: Generation) -> bool:
    """Whether a part reads what another generation will share when it waits for that."""
    mine = generation.sequence
    other = part.generation.sequence
    if mine.salt != other.salt:
        return False
    if mine.recurrence is not None:  # it can share the whole prompt alone
        return mine.length <= other.length and mine.keys == other.keys
    begin = mine.length
    end = other.length + min(len(part.reading), _WORTH_WAITING)
    reading = other.keys[other.length : end]
    return (
        begin == other.length
        and mine.slots[-1:].tolist() == other.slots[-1:].tolist()  # after the same beginning
        and len(reading) == _WORTH_WAITING
        and mine.keys[begin : begin + _WORTH_WAITING] == reading
    )
