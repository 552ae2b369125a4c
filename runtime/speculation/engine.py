"""The decoding loop: draft, verify, commit, observe."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from edgespec.errors import EdgespecError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.speculation.base import Drafter
from edgespec.runtime.speculation.cost import PassCost
from edgespec.runtime.speculation.generation import PROMPT, Generation, Request, Round
from edgespec.runtime.speculation.plan import Plan, Scheduled
from edgespec.runtime.trees.proposal import Forecast

_CHUNK = 64  # rows of prompts in a pass that other sequences wait for
_LONG_CHUNK = 128  # and in one of prompts alone; twice as many are read little faster


class Engine:
    """Continues any number of sequences with one model; each step is one pass.

    The tokens of a sequence depend on the model and its request alone, never on drafters or on
    other sequences.

    Args:
        target: the model.
        cost: of its passes; None where nothing drafts.
        drafters: draft sources, the cheapest first.

    Attributes:
        target: see above.
        running: the generations that go on.
    """

    def __init__(
        self, target: Model, cost: PassCost | None = None, drafters: Sequence[Drafter] = ()
    ) -> None:
        self.target = target
        self.running: list[Generation] = []
        self._cost = cost
        self._drafters = () if cost is None else drafters

    def add(self, request: Request) -> Generation:
        """Begins a generation; `step` goes on with it until it has a `finish`."""
        generation = Generation(request, self.target.sequence(list(request.prompt)))
        self.running.append(generation)
        for drafter in self._drafters:
            drafter.begin(generation)
        return generation

    def remove(self, generation: Generation) -> None:
        """Ends a generation, finished or not, and frees its slots."""
        if generation in self.running:
            self.running.remove(generation)
            for drafter in self._drafters:
                drafter.end(generation)
            generation.sequence.free()

    def forget(self) -> None:
        """Forgets what earlier generations taught the drafters."""
        for drafter in self._drafters:
            drafter.forget()

    def generate(self, request: Request) -> Generator[Round, None, Generation]:
        """Makes one generation, perhaps beside those that were added.

        Yields:
            Its rounds. Closing the iterator ends it.

        Raises:
            EdgespecError: see `Generation.error`, and `step`.
        """
        generation = self.add(request)
        try:
            while generation.finish is None:
                made = self.step().get(generation)
                if made is not None:
                    yield made
            if generation.error is not None:
                raise generation.error
        finally:
            self.remove(generation)
        return generation

    def step(self) -> dict[Generation, Round]:
        """Makes a pass: draft, verify, commit, observe.

        Returns:
            The rounds of all sequences that were part of it. Those that have finished by it are
            removed.

        Raises:
            DeviceError: if the pass fails.
            MemoryLimitError: if a pool has no room.
        """
        begin = time.perf_counter()
        parts = self._schedule()
        forecast = self._draft(parts)
        drafted = time.perf_counter()
        batch, logits = self._verify(parts)
        verified = time.perf_counter()
        rounds = {}
        for part, rows, found in zip(parts, batch, logits, strict=True):
            tokens, accepted = self._commit(part, rows, found)
            source = PROMPT if part.is_prompt else part.proposal.source
            rounds[part.generation] = Round(
                tokens, len(part.proposal), accepted, source, time.perf_counter() - begin,
                drafted - begin, verified - drafted, None if part.is_prompt else forecast,
                part.generation.take_logprobs(),
            )  # fmt: skip
        for generation in rounds:
            if generation.finish is not None:
                self.remove(generation)
        return rounds

    def _schedule(self) -> list[Scheduled]:
        """Returns the parts of a pass; of prompts a chunk, first come first served."""
        alone = all(generation.is_new for generation in self.running)
        parts, room = [], _LONG_CHUNK if alone else _CHUNK
        for generation in self.running:
            unread = generation.sequence.unread
            if generation.is_new:
                count = min(len(unread), room)
                room -= count
                if count:
                    complete = count == len(unread)
                    parts.append(Scheduled(generation, unread[:count], complete, 0, True))
            else:
                depth = min(generation.remaining - 1, generation.request.limits.max_nodes)
                parts.append(Scheduled(generation, unread, True, depth))
        return parts

    def _draft(self, parts: Sequence[Scheduled]) -> Forecast | None:
        """Lets all sources propose nodes, and chooses the pass's; returns its expected result."""
        if self._cost is None:
            return None
        plan = Plan(self._cost, parts)
        if plan.drafting:
            for drafter in self._drafters:
                drafter.draft(plan)
        return plan.choose()

    def _verify(self, parts: Sequence[Scheduled]) -> tuple[list[Rows], list[Floats]]:
        """Makes the pass."""
        batch = [_rows(part) for part in parts]
        begin = time.perf_counter()
        logits = self.target.forward(batch)
        if self._cost is not None:
            rows = sum([len(each.tokens) for each in batch])
            self._cost.observe(rows, time.perf_counter() - begin)
        return batch, logits

    def _commit(self, part: Scheduled, rows: Rows, logits: Floats) -> tuple[tuple[int, ...], int]:
        """Appends what the target chose, and lets drafters observe it.

        Returns:
            The new tokens, and the number of accepted nodes.
        """
        generation, read = part.generation, len(part.reading)
        if not part.complete:
            rows.accept(range(read))
            return (), 0
        try:
            verdict = generation.verify(part.proposal.tree(), logits)
        except EdgespecError as error:  # the others go on
            rows.accept([])
            generation.fail(error)
            return (), 0
        rows.accept([*range(read), *[read + node for node in verdict.nodes]])
        generation.commit(verdict.tokens)
        for drafter in self._drafters:
            drafter.observe(generation, verdict.tokens)
        return verdict.tokens, len(verdict.nodes)


def _rows(part: Scheduled) -> Rows:
    """Returns the rows of what is read, and of the tree below its last token."""
    read = len(part.reading)
    tokens, parents = part.reading, [AFTER, *range(read - 1)]
    if not part.complete:
        return Rows(part.generation.sequence, tokens, parents, [], certain=read)
    tree = part.proposal
    tokens = tokens + tree.tokens
    parents += [read + parent for parent in tree.parents]  # ROOT is -1: the last token read
    return Rows(part.generation.sequence, tokens, parents, list(range(read - 1, len(tokens))))
