"""What the model of a drafter reads of generations, and what it keeps of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.runtime.arrays import Floats, Ids
from edgespec.runtime.drafters.acceptance import Candidates, likeliest, listed
from edgespec.runtime.drafters.frequent import FrequentTokens
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.model import AFTER, Graph, Model, PassCost, Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.sequences.queue import RankedRows
from edgespec.runtime.speculation.generation import Generation

CHUNK = 64
"""Rows of a call that reads the prompt."""

FIRST_ACCEPTANCE = 0.85
"""How likely the target is to choose a model's best token, where nothing is known of both."""

FIRST_WAIT = 8
"""Rounds until a draft that did not pay is tried again."""

LONGEST_WAIT = 256
"""The same, where it has not paid many times."""

_HOPE_WEIGHT = 0.1  # of a new estimate of an acceptance in the average


@dataclass(eq=False, slots=True)
class DraftSequence:
    """A generation as a draft model knows it.

    Attributes:
        generation: whose.
        sequence: what the model has read of it, with the model's slots.
        first: position in the generation of the first token that the sequence has rows of.
        hope: how likely the target is to choose the model's best token, as a moving average.
        idle: rounds since the model drafted.
        wait: rounds after which it is tried again.
        drafted: whether a tree waits for the target's choices, or was begun for the next round.
        learned: whether the model's word of a row has moved the hope.
    """

    generation: Generation
    sequence: TokenSequence
    first: int = 0
    hope: float = FIRST_ACCEPTANCE
    idle: int = 0
    wait: int = FIRST_WAIT
    drafted: bool = False
    learned: bool = False

    def expect(self, acceptance: float, reached: float = 1.0) -> None:
        """Learns how likely the model's best token after a row is to be chosen.

        Args:
            acceptance: see above.
            reached: probability that the target's choices reach the row.
        """
        self.hope += (acceptance - self.hope) * _HOPE_WEIGHT * reached
        self.learned = True


class DraftReader(ABC):
    """Reads generations with a model, so that something can be drafted behind them.

    Args:
        model: the model, of which it is known what passes cost.
        ids: tokens that the model's logits stand for; None: token n is column n.

    Attributes:
        model: see above.
    """

    def __init__(self, model: Model, ids: Ids | None = None) -> None:
        self.model = model
        self._ids = ids

    @abstractmethod
    def begin(self, generation: Generation) -> DraftSequence:
        """Returns what is to be read of a generation; none of it is yet."""

    @abstractmethod
    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """Makes room for what is unread and so many tokens behind it; False if there is none."""

    @abstractmethod
    def share(self, draft: DraftSequence) -> None:
        """Takes over what other sequences left that begin alike, if nothing is read yet."""

    @abstractmethod
    def leave(self, draft: DraftSequence, ended: bool) -> None:
        """Leaves what was read to other sequences that begin alike; the prompt or all has ended."""

    def end(self, draft: DraftSequence) -> None:
        """A generation has ended: leaves what was read of it to others."""
        self.leave(draft, ended=True)
        draft.sequence.free()

    def graph_for(self, generations: Iterable[Generation]) -> Graph:
        """Returns the graph of calls for some of these generations."""
        return self.model.graph

    def unread(self, draft: DraftSequence) -> list[int]:
        """Returns the tokens that are to be read before anything is drafted, at least one."""
        return draft.sequence.unread

    def catch_up(self, draft: DraftSequence) -> list[int]:
        """Reads what is unread in chunks; returns the tokens that are left, at least one."""
        self.share(draft)  # what one sequence has read now, the next one need not
        tokens = self.unread(draft)
        while len(tokens) > CHUNK:
            chunk = self.chain(draft, tokens[:CHUNK], [])
            self.model.forward([chunk])
            chunk.accept(range(CHUNK))
            tokens = tokens[CHUNK:]
            self.leave(draft, ended=len(tokens) <= CHUNK)
        return tokens

    def chain(self, draft: DraftSequence, tokens: list[int], wanted: list[int]) -> Rows:
        """Returns rows of the next tokens to read; the logits of `wanted` ones are."""
        count = len(tokens)
        return Rows(draft.sequence, tokens, [AFTER, *range(count - 1)], wanted, certain=count)

    def level(
        self, draft: DraftSequence, tokens: list[int], slots: list[int], features: Floats | None
    ) -> Rows:
        """Returns rows of drafted tokens that may follow the same one.

        Args:
            draft: of whose generation.
            tokens: the drafted tokens.
            slots: those of the rows between the sequence and them.
            features: [F] what the model gave of the row before them; None: nothing.
        """
        count = len(tokens)
        return Rows(draft.sequence, tokens, [AFTER] * count, list(range(count)), slots)

    def keep(self, rows: Rows) -> list[int]:
        """Takes over the slots of a chain that was read; returns those that drafts stand behind.

        They are none where the rows become the sequence's, and the caller's otherwise.
        """
        rows.accept(range(len(rows.tokens)))
        return []

    def kept(self, slots: list[int], count: int) -> list[int]:
        """Returns the slots of drafted rows that become the sequence's.

        Args:
            slots: those of the rows that the target chose.
            count: number of tokens that it chose, of which the last may not have been drafted.
        """
        # The last token is read again, since what may follow it is known by its row's logits.
        return slots[: count - 1]

    def ranks(self, generations: Sequence[Generation], rows: int) -> bool:
        """Whether the model ranks so many rows of these generations where it runs."""
        return False

    def queues(self, generations: Sequence[Generation], rows: int) -> bool:
        """Whether passes can be queued behind one of so many rows of these generations.

        Each reads the likeliest token of a row where the model runs. It is not what is to be
        guessed where noise is added, and must be one of the model's own tokens.
        """
        sampled = any(each.is_sampled for each in generations)
        return self.ranks(generations, rows) and self._ids is None and not sampled

    def chain_cost(self, generations: Sequence[Generation]) -> PassCost:
        """Returns what each call of a chain takes but the first one."""
        queues = self.queues(generations, len(generations))
        return self.model.further_cost if queues else self.model.cost

    def ranked(self, rows: RankedRows) -> Candidates:
        """Returns the likeliest tokens of ranked rows, see `candidates`."""
        return listed(rows.tokens, rows.logits, self._ids)

    def sampler(self, generation: Generation) -> Sampler:
        """Returns what chooses the tokens that the model is to guess."""
        return generation.request.sampler

    def candidates(
        self,
        generation: Generation,
        logits: Floats,
        branches: Iterable[Sequence[int]] = (),
        width: int = 0,
    ) -> Candidates:
        """Returns the likeliest tokens of rows.

        Args:
            generation: what the rows belong to.
            logits: [n, V] float32, those of the rows.
            branches: what was drafted between the sequence and each row; rows beyond these are
                directly behind it.
            width: least number of tokens of a row, if there are so many; that of the generation's
                trees if it is larger.
        """
        logits = penalized(generation, logits, branches, self._ids)
        width = max(width, generation.request.limits.width)
        return likeliest(logits, self.sampler(generation), width, self._ids)


def penalized(
    generation: Generation,
    logits: Floats,
    branches: Iterable[Sequence[int]],
    columns: Ids | None,
) -> Floats:
    """Returns the logits of rows as the target's become.

    Args:
        generation: what the rows belong to.
        logits: see `DraftReader.candidates`.
        branches: see `DraftReader.candidates`.
        columns: [V] tokens that the columns stand for, -1 for none; None: token n is column n.
    """
    penalties = generation.penalties
    if penalties is None:
        return logits
    rows = []
    further = iter(branches)
    for row in logits:
        with penalties.behind(next(further, ())):
            rows.append(penalties.penalized(row, columns))
    return np.stack(rows)


class ModelReader(DraftReader):
    """Reads with a smaller model of the same vocabulary.

    Args:
        model: the draft model.
        context_length: largest number of tokens that it can read.
        ids: see `DraftReader`.
        frequent: scores the frequent tokens alone, where texts have few others; None: nothing does.

    Attributes:
        context_length: see above.
    """

    def __init__(
        self,
        model: Model,
        context_length: int,
        ids: Ids | None = None,
        frequent: FrequentTokens | None = None,
    ) -> None:
        super().__init__(model, ids)
        self.context_length = context_length
        self._whole = model.graph
        self._frequent = frequent
        if frequent is not None:
            model.graph = frequent.graph

    def begin(self, generation: Generation) -> DraftSequence:
        """See `DraftReader`."""
        return DraftSequence(generation, self.model.sequence(generation.tokens))

    def graph_for(self, generations: Iterable[Generation]) -> Graph:
        """See `DraftReader`."""
        if self._frequent is None:
            return self.model.graph
        return self._frequent.graph if self._frequent.suffices(generations) else self._whole

    def share(self, draft: DraftSequence) -> None:
        """See `DraftReader`."""
        if not draft.sequence.length:
            most = len(draft.sequence.tokens) - 1  # the last token's logits are wanted
            self.model.prefixes.extend(draft.sequence, most)

    def leave(self, draft: DraftSequence, ended: bool) -> None:
        """See `DraftReader`."""
        self.model.prefixes.add(draft.sequence, draft.sequence.length if ended else 0)

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `DraftReader`."""
        return len(draft.sequence.tokens) + depth <= self.context_length

    def ranks(self, generations: Sequence[Generation], rows: int) -> bool:
        """See `DraftReader`. Penalties change the logits of all tokens.

        Calls with recurrent layers have a state, that of one sequence.
        """
        ranking = self.model.ranking
        plain = all(each.penalties is None for each in generations)
        apart = self.model.pool.recurrent is not None and len({*generations}) > 1
        return ranking is not None and rows <= ranking.longest and plain and not apart
