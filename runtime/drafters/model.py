"""Drafts with a model: a `DraftReader` says what it reads, a `Grower` how nodes come."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from edgespec.errors import MemoryLimitError
from edgespec.runtime.drafters.acceptance import Acceptances
from edgespec.runtime.drafters.balances import Alternative, Balances
from edgespec.runtime.drafters.reader import (
    CHUNK,
    FIRST_ACCEPTANCE,
    FIRST_WAIT,
    LONGEST_WAIT,
    DraftReader,
    DraftSequence,
)
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart

USUAL_READING = 4
"""Rows that a round's first call reads at most, if the model drafts in every round."""

FIRST_LENGTH = 128
"""Tokens of a text, where none has ended yet."""

_TEXT_WEIGHT = 0.2  # of a text in what the next one hopes for


class Hopes:
    """What the texts of a drafter let the next one hope for."""

    def __init__(self) -> None:
        self._acceptances = dict[bool, float]()  # of greedy texts and of sampled ones
        self._length = float(FIRST_LENGTH)

    def acceptance(self, generation: Generation) -> float:
        """Returns how likely the target is to choose the model's best token as a text begins."""
        return self._acceptances.get(generation.is_sampled, FIRST_ACCEPTANCE)

    def further(self, generation: Generation) -> float:
        """Returns how many tokens may be expected to follow.

        They are as many as texts mostly have, or as have come where these are more: what is read
        once it would have paid costs at most twice what it had to (ski rental: Karlin et al.,
        Competitive snoopy caching, 1988).
        """
        return min(max(self._length, generation.new_tokens), generation.remaining)

    def learn(self, generation: Generation, acceptance: float | None) -> None:
        """Learns of a text that has ended.

        What was hoped for in vain is forgotten by texts that are not read, so that it is tried
        again. Where a text was cut, nobody knows how long it would have become, but that it is not
        shorter. One that was cancelled counts: a stop string ends texts so, too.

        Args:
            generation: the text.
            acceptance: what was found in it; None: it was not read.
        """
        found = FIRST_ACCEPTANCE if acceptance is None else acceptance
        before = self.acceptance(generation)
        self._acceptances[generation.is_sampled] = before + (found - before) * _TEXT_WEIGHT
        length = generation.new_tokens
        whole = length > 0 and generation.finish not in ("length", "context", "error")
        if whole or length > self._length:
            self._length += (length - self._length) * _TEXT_WEIGHT


class Grower(ABC):
    """Makes nodes below sequences that a model reads.

    Args:
        name: name of the source in options and statistics.
        reader: what the model reads and keeps.

    Attributes:
        name: see above.
        reader: see above.
        acceptances: how often what it drafted was accepted.
        hopes: what the texts so far let the next one hope for.
    """

    def __init__(self, name: str, reader: DraftReader) -> None:
        self.name = name
        self.reader = reader
        self.acceptances = Acceptances()
        self.hopes = Hopes()

    @abstractmethod
    def begin(self, draft: DraftSequence) -> None:
        """A generation begins."""

    @abstractmethod
    def grow(self, parts: Sequence[PassPart], plan: PassPlan) -> None:
        """Adds nodes to the proposals of some parts of a pass, of which generations have begun.

        Raises:
            MemoryLimitError: if there is no room for rows; what was added stays.
        """

    @abstractmethod
    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`; of a generation for which something is drafted."""

    @abstractmethod
    def end(self, generation: Generation) -> None:
        """A generation has ended: frees the slots that drafts have."""

    def forget(self) -> None:
        """See `Drafter`."""
        self.acceptances = Acceptances()
        self.hopes = Hopes()

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `DraftReader`."""
        return self.reader.make_room(draft, depth)

    def paying(self, ready: Sequence[tuple[DraftSequence, PassPart]], plan: PassPlan) -> int:
        """Returns for how many sequences, the most promising ones, drafting promises to pay.

        Args:
            ready: those that have room, the most promising first.
            plan: of the pass.
        """
        hopes = [draft.hope for draft, _ in ready]
        cost = self.reader.model.cost
        queued = self.reader.chain_cost([part.generation for _, part in ready])
        if not hopes or queued is cost:
            return plan.worthwhile(hopes, cost)
        return plan.worthwhile(hopes, cost, hopes[0], queued)

    def spend(self, plan: PassPlan, begin: float, usual: int, further: Sequence[int] = ()) -> None:
        """Adds the time since `begin` to what a round takes, at most that of so many rows.

        The prompt is read only once, so it is no part of that.

        Args:
            plan: of the pass.
            begin: time by `time.perf_counter`.
            usual: rows of the first call, at most.
            further: rows of each call that was queued behind it.
        """
        model = self.reader.model
        most = model.cost.seconds(usual) + sum(model.further_cost.seconds(n) for n in further)
        plan.spent += min(time.perf_counter() - begin, most)


class ModelDrafter:
    """Drafts with a model that has rows of its own.

    What the sequences have that it has not read is read first, where drafting promises to pay.

    Args:
        grower: how nodes come, and what the model reads for that.

    Attributes:
        grower: see above.
        name: see `Drafter`.
        model: the model, of which it is known what passes cost.
        in_auto: whether generations that ask for all sources draft with it, too.
    """

    def __init__(self, grower: Grower) -> None:
        self.grower = grower
        self.name = grower.name
        self.model = grower.reader.model
        self.in_auto = True
        self._reader = grower.reader
        self._drafts = dict[Generation, DraftSequence]()
        self._balances = Balances()
        self._without = dict[Generation, Alternative]()  # of this round

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`. The prompt is read at the first draft that promises to pay for it."""
        if not generation.drafts_by(self.name, self.in_auto):
            return False
        self._drafts[generation] = draft = self._reader.begin(generation)
        draft.hope = self.grower.hopes.acceptance(generation)
        self.grower.begin(draft)
        return True

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        known = [part for part in plan.drafting if part.generation in self._drafts]
        if not known:
            return
        self.model.graph = self._reader.graph_for([part.generation for part in known])
        parts = self._promising(known, plan)
        if parts:
            cheaper, forecast = plan.chosen()
            with suppress(MemoryLimitError):  # what there is no room to draft is not drafted
                self.grower.grow(parts, plan)
            price = plan.price(forecast) / len(parts)
            for part, tree in zip(plan.drafting, cheaper, strict=True):
                if part in parts:
                    self._without[part.generation] = Alternative(tree, price)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`: what the model has run of the chosen nodes may become its sequence."""
        without = self._without.pop(generation, None)
        if without is not None:
            self._balances.of(generation).learn(without.gain(reading.tokens))
        if self._drafts[generation].drafted:
            self.grower.observe(generation, reading)

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        draft = self._drafts.pop(generation)
        self._without.pop(generation, None)
        self.grower.hopes.learn(generation, draft.hope if draft.learned else None)
        self.grower.end(generation)
        self._reader.end(draft)

    def forget(self) -> None:
        """See `Drafter`."""
        self.model.prefixes.clear()
        self.grower.forget()
        self._balances = Balances()

    def _promising(self, known: Sequence[PassPart], plan: PassPlan) -> list[PassPart]:
        """Returns the parts for which drafting promises to pay, is tried again or has begun."""
        balances = {self._balances.of(part.generation) for part in known}
        paying = {balance for balance in balances if balance.begin_round()}
        ready = [
            (draft, part)
            for draft, part in [(self._drafts[part.generation], part) for part in known]
            if self._balances.of(part.generation) in paying and self._may_read(draft, part, plan)
        ]
        ready.sort(key=lambda each: -each[0].hope)
        count = self.grower.paying(ready, plan)
        promising = []
        for number, (draft, part) in enumerate(ready):
            draft.idle += 1
            if number < count:
                draft.wait = FIRST_WAIT
            elif draft.idle < draft.wait:
                continue
            else:
                draft.wait = min(2 * draft.wait, LONGEST_WAIT)
            draft.idle = 0
            promising.append(part)
        for part in known:  # what was begun costs nothing
            draft = self._drafts[part.generation]
            begun = draft.drafted and part not in promising
            if begun and self.grower.make_room(draft, part.depth):
                promising.append(part)
        return promising

    def _may_read(self, draft: DraftSequence, part: PassPart, plan: PassPlan) -> bool:
        """Whether reading what the model has not read will pay in what is left of a sequence."""
        if not self.grower.make_room(draft, part.depth):
            return False
        self._reader.share(draft)
        unread = len(self._reader.unread(draft))
        if unread <= CHUNK:
            return True
        cost = self.model.cost
        reading = unread / CHUNK * cost.seconds(CHUNK)
        further = self._reader.chain_cost([part.generation])
        saving = plan.saving(draft.hope, cost, further)
        return reading < saving * self.grower.hopes.further(part.generation)
