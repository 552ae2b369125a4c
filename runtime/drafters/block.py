"""Trees out of the candidates that one call of a model gives for several positions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Candidates, edge_cell, rank
from edgespec.runtime.drafters.combinations import Edge, best_nodes
from edgespec.runtime.drafters.model import USUAL_READING, Grower
from edgespec.runtime.drafters.reader import DraftReader, DraftSequence
from edgespec.runtime.sequences.model import PassCost, Rows
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import Cost, PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import Proposal

_LATEST_WEIGHT = 0.1  # of what a position added, in the moving average of it


class Guess(Protocol):
    """What a call says of the tokens that may follow a sequence."""

    def __len__(self) -> int:
        """Number of positions that it has candidates for."""

    def behind(self, depth: int, token: int) -> tuple[Candidates, float]:
        """Returns the candidates of one position behind a token before it.

        Also how likely the target is to choose as they say.
        """

    def key(self, depth: int, token: int) -> tuple[int, int]:
        """Returns what the candidates depend on."""


@dataclass(frozen=True)
class Independent:
    """Candidates that do not depend on the tokens drafted before them.

    Attributes:
        candidates: one row for each position.
    """

    candidates: Candidates

    def __len__(self) -> int:
        return len(self.candidates.tokens)

    def behind(self, depth: int, token: int) -> tuple[Candidates, float]:
        """See `Guess`."""
        return self.candidates.rows(depth, depth + 1), 1.0

    def key(self, depth: int, token: int) -> tuple[int, int]:
        """See `Guess`."""
        return depth, 0


class Query(ABC):
    """How a call asks for the candidates of several positions.

    Attributes:
        most: number of positions that a call can predict.
        fixed_rows: rows of a call however many positions are asked for; 0: each costs a row.
    """

    most: int
    fixed_rows = 0

    @abstractmethod
    def rows(
        self, reader: DraftReader, draft: DraftSequence, tokens: list[int], count: int
    ) -> Rows:
        """Returns rows that read some tokens and ask for candidates of positions behind them.

        Args:
            reader: what reads.
            draft: what it has read so far.
            tokens: the next tokens, at least one.
            count: number of positions, at most `most`.
        """

    def guess(
        self, reader: DraftReader, generation: Generation, rows: Rows, logits: Floats
    ) -> Guess:
        """Returns what rows have said, by their logits [positions, V]."""
        return Independent(reader.candidates(generation, logits))


@dataclass(eq=False, slots=True)
class _BlockDraft:
    """What a model has drafted of a generation.

    Attributes:
        draft: what it has read of it.
        start: number of tokens before the first position.
        guess: candidates of this round's positions; None if nothing was drafted.
        edges: those of them that were asked for, by `Guess.key`.
        gains: expected accepted tokens by position, as moving averages.
    """

    draft: DraftSequence
    start: int = 0
    guess: Guess | None = None
    edges: dict[tuple[int, int], list[Edge]] = field(default_factory=dict)
    gains: list[float] = field(default_factory=list)


@dataclass
class _Path:
    """A path along the target's choices through the candidates of all positions.

    Attributes:
        candidates: `candidates(depth, token)` gives those of a position behind a token.
        positions: number of positions that have candidates.
        token: the last token of the path.
        depth: number of its tokens.
    """

    candidates: Callable[[int, int], Sequence[Edge]]
    positions: int
    token: int
    depth: int = 0

    def edges(self) -> list[tuple[int, int]]:
        """See `Expectation`."""
        return [(edge.token, edge.cell) for edge in self.candidates(self.depth, self.token)]

    def follow(self, token: int) -> bool:
        """See `Expectation`."""
        known = any(edge.token == token for edge in self.candidates(self.depth, self.token))
        self.token = token
        self.depth += 1
        return known and self.depth < self.positions


@dataclass(frozen=True)
class _AtOnce:
    """What positions cost of which none costs a row of its own.

    Attributes:
        cost: of the model's passes.
        rows: those of the pass for all positions.
    """

    cost: PassCost
    rows: int

    def further(self, rows: int, count: int) -> list[float]:
        """See `PassCost`."""
        return [self.cost.seconds(rows + self.rows)] * count


class BlockGrower(Grower):
    """Makes trees of the likeliest combinations of the candidates that one call gives.

    Candidates are asked for as long as what a position added lately is worth its row, and for the
    first one that is not.

    Args:
        name: see `Grower`.
        reader: see `Grower`.
        query: how candidates are asked for.
    """

    def __init__(self, name: str, reader: DraftReader, query: Query) -> None:
        super().__init__(name, reader)
        self._query = query
        self._blocks = dict[Generation, _BlockDraft]()

    def begin(self, draft: DraftSequence) -> None:
        """See `Grower`."""
        self._blocks[draft.generation] = _BlockDraft(draft)

    def grow(self, parts: Sequence[PassPart], plan: PassPlan) -> None:
        """See `Grower`."""
        begin = time.perf_counter()
        batch = []
        for part, count in zip(parts, self._positions(parts, plan), strict=True):
            draft = self._blocks[part.generation].draft
            tokens = self.reader.catch_up(draft)
            batch.append(self._query.rows(self.reader, draft, tokens, count))
        found = self.reader.model.forward(batch)
        for rows in batch:  # all at first, so that no error behind it loses slots
            rows.accept(range(rows.certain))
        for part, rows, logits in zip(parts, batch, found, strict=True):
            guess = self._query.guess(self.reader, part.generation, rows, logits)
            own = self._combine(part, guess, plan.least_value)
            own.graft(part.proposal)
            part.proposal = own
        usual = sum([USUAL_READING + len(rows.tokens) - rows.certain for rows in batch])
        self.spend(plan, begin, usual)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Grower`: counts the candidates along the new tokens, verified or not."""
        block = self._blocks[generation]
        assert block.guess is not None, "it is drafted"
        before = generation.tokens[block.start - 1]
        path = _Path(partial(self._edges, block), len(block.guess), before)
        self.acceptances.of(generation).count(reading.tokens, path)
        block.draft.drafted = False
        block.guess = None
        block.edges.clear()

    def end(self, generation: Generation) -> None:
        """See `Grower`."""
        del self._blocks[generation]

    def paying(self, ready: Sequence[tuple[DraftSequence, PassPart]], plan: PassPlan) -> int:
        """See `Grower`. Where no position costs a row of its own, all pay together, or none."""
        if not self._query.fixed_rows:
            return super().paying(ready, plan)
        gains = [gain for _, part in ready for gain in self._expected(part)]
        gains.sort(reverse=True)
        return len(ready) if plan.worthwhile(gains, self._cost(len(ready))) else 0

    def _cost(self, sequences: int) -> Cost:
        """Returns what further positions cost, for so many sequences."""
        cost = self.reader.model.cost
        rows = self._query.fixed_rows
        return _AtOnce(cost, sequences * rows) if rows else cost

    def _expected(self, part: PassPart) -> list[float]:
        """Returns how many accepted tokens each position is expected to bring."""
        block = self._blocks[part.generation]
        known = block.gains
        gain = 1.0
        gains = []
        for position in range(min(part.depth, self._query.most)):
            gain *= block.draft.hope
            gain = min(gain, known[position]) if position < len(known) else gain
            gains.append(gain)
        return gains

    def _positions(self, parts: Sequence[PassPart], plan: PassPlan) -> list[int]:
        """Returns the number of positions to ask for behind each sequence."""
        expected = [self._expected(part) for part in parts]
        pairs = [(gain, number) for number, gains in enumerate(expected) for gain in gains]
        pairs.sort(key=lambda pair: -pair[0])
        count = plan.worthwhile([gain for gain, _ in pairs], self._cost(len(parts)))
        counts = [0] * len(parts)
        for _, number in pairs[:count]:
            counts[number] += 1
        # One more than what pays shows whether that does.
        return [
            min(max(each, 1) + 1, len(gains)) for each, gains in zip(counts, expected, strict=True)
        ]

    def _combine(self, part: PassPart, guess: Guess, least: float) -> Proposal:
        """Returns the likeliest combinations of the candidates of all positions."""
        block = self._blocks[part.generation]
        tokens = part.generation.tokens
        block.draft.drafted = True
        block.guess = guess
        block.start = len(tokens)
        proposal = Proposal()
        gains = [0.0] * len(guess)
        last = tokens[-1]

        def edges(depth: int, token: int) -> list[Edge]:
            return self._edges(block, depth, token) if depth < len(guess) else []

        for node in best_nodes(edges, last, part.most_nodes, least):
            proposal.add(node.parent, node.token, node.value, self.name)
            gains[node.depth] += node.value
        block.gains += gains[len(block.gains) :]
        for depth, gain in enumerate(gains):
            block.gains[depth] += (gain - block.gains[depth]) * _LATEST_WEIGHT
        block.draft.expect(edges(0, last)[0].value)
        return proposal

    def _edges(self, block: _BlockDraft, depth: int, token: int) -> list[Edge]:
        """Returns the candidates of a position behind a token, the most valuable first."""
        assert block.guess is not None, "it was drafted"
        key = block.guess.key(depth, token)
        if key in block.edges:
            return block.edges[key]
        generation = block.draft.generation
        width = generation.request.limits.width
        table = self.acceptances.of(generation)
        candidates, trust = block.guess.behind(depth, token)
        sampler = self.reader.sampler(generation)
        [ranking] = rank(sampler, candidates, block.start + depth, width)
        edges = []
        for place, (each, likely) in enumerate(zip(*ranking, strict=True)):
            value = likely * trust
            cell = edge_cell(value, place, depth)
            edges.append(Edge(each, table.acceptance(cell, value), cell))
        edges.sort(key=lambda edge: -edge.value)
        left = 1.0
        cut = list[Edge]()
        for edge in edges:  # siblings exclude each other: together they are worth their parent
            cut.append(edge._replace(value=min(edge.value, left)))
            left = max(0.0, left - edge.value)
        block.edges[key] = cut
        return cut
