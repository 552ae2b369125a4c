"""Trees out of the candidates that one call of a model gives for several positions."""

from __future__ import annotations

import heapq
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import edge_cell
from edgespec.runtime.drafters.growth import USUAL_READING, State, TreeDrafter
from edgespec.runtime.drafters.ranking import Candidates, rank
from edgespec.runtime.sequences.model import Rows
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import Cost, PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT, Proposal

_LATEST_WEIGHT = 0.1  # of what a position added, in the moving average of it


class Edge(NamedTuple):
    """A candidate for one position.

    Attributes:
        token: its token.
        value: probability that it is accepted if the tokens before it are.
        cell: its calibration cell.
    """

    token: int
    value: float
    cell: int


class CombinedNode(NamedTuple):
    """A node of a tree.

    Attributes:
        parent: number of the node above it, `ROOT` below the last token.
        depth: number of drafted tokens before it.
        edges: candidates of its depth behind its parent, the most valuable first.
        place: index of its own among them.
        above: value of its parent.
    """

    parent: int
    depth: int
    edges: Sequence[Edge]
    place: int
    above: float

    @property
    def token(self) -> int:
        """Its token."""
        return self.edges[self.place].token

    @property
    def value(self) -> float:
        """Product of the values of the edges that lead to it."""
        return self.above * self.edges[self.place].value


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
        return self.candidates.row(depth), 1.0

    def key(self, depth: int, token: int) -> tuple[int, int]:
        """See `Guess`."""
        return depth, 0


@dataclass(eq=False, slots=True)
class _Round:
    """What was drafted for a generation.

    Attributes:
        start: number of tokens before the first position.
        guess: candidates of this round's positions; None if nothing was drafted.
        edges: those of them that were asked for, by `Guess.key`.
        gains: expected accepted tokens by position, as moving averages.
    """

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


class CombinedDrafter(TreeDrafter):
    """Drafts with a model that predicts several tokens in one call.

    The tree has the likeliest combinations of the candidates of all positions. Candidates are asked
    for as long as what a position added lately is worth its row, and for the first one that is not.
    """

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`."""
        begun = super().begin(generation)
        if begun:
            self._rounds[generation] = _Round()
        return begun

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        asked = self._asked(plan)
        if not asked:
            return
        begin = time.perf_counter()
        batch = []
        for part, count in zip(asked, self._positions(asked, plan), strict=True):
            state = self._states[part.generation]
            batch.append(self._asking(state, self._catch_up(state), count))
        for part, rows, logits in zip(asked, batch, self.model.forward(batch), strict=True):
            rows.accept(range(rows.certain))
            own = self._combine(part, self._guess(part.generation, rows, logits), plan.least_value)
            own.graft(part.proposal)
            part.proposal = own
        usual = sum([USUAL_READING + len(rows.tokens) - rows.certain for rows in batch])
        self._spend(plan, begin, usual)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`: counts the candidates along the new tokens, verified or not."""
        made = self._rounds[generation]
        if made.guess is None:
            return
        before = generation.tokens[made.start - 1]
        path = _Path(partial(self._edges, generation), len(made.guess), before)
        self._of(generation).count(reading.tokens, path)
        made.guess = None
        made.edges.clear()

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        super().end(generation)
        del self._rounds[generation]

    def forget(self) -> None:
        """See `Drafter`."""
        super().forget()
        self._rounds = dict[Generation, _Round]()

    @abstractmethod
    def _most(self) -> int:
        """Returns the number of positions that a call can predict."""

    @abstractmethod
    def _asking(self, state: State, tokens: list[int], count: int) -> Rows:
        """Returns rows that read certain tokens and ask for candidates of `count` positions."""

    def _guess(self, generation: Generation, rows: Rows, logits: Floats) -> Guess:
        """Returns what rows have said, by their logits [positions, V]."""
        sampler = generation.request.sampler
        width = generation.request.limits.width
        return Independent(self._candidates(self._penalized(generation, logits), sampler, width))

    def _cost(self, sequences: int) -> Cost:
        """Returns what further positions cost, for so many sequences."""
        return self.model.cost

    def _expected(self, state: State, depth: int) -> list[float]:
        """Returns how many accepted tokens each position is expected to bring."""
        known = self._rounds[state.generation].gains
        gain = 1.0
        gains = []
        for position in range(min(depth, self._most())):
            gain *= state.hope
            gain = min(gain, known[position]) if position < len(known) else gain
            gains.append(gain)
        return gains

    def _positions(self, asked: Sequence[PassPart], plan: PassPlan) -> list[int]:
        """Returns the number of positions to ask for behind each sequence."""
        expected = [self._expected(self._states[part.generation], part.depth) for part in asked]
        pairs = [(gain, number) for number, gains in enumerate(expected) for gain in gains]
        pairs.sort(key=lambda pair: -pair[0])
        count = plan.worthwhile([gain for gain, _ in pairs], self._cost(len(asked)))
        counts = [0] * len(asked)
        for _, number in pairs[:count]:
            counts[number] += 1
        # One more than what pays shows whether that does.
        return [
            min(max(each, 1) + 1, len(gains)) for each, gains in zip(counts, expected, strict=True)
        ]

    def _combine(self, part: PassPart, guess: Guess, least: float) -> Proposal:
        """Returns the likeliest combinations of the candidates of all positions."""
        generation = part.generation
        made = self._rounds[part.generation]
        made.guess = guess
        made.start = len(generation.tokens)
        proposal = Proposal()
        gains = [0.0] * len(guess)
        last = generation.tokens[-1]

        def edges(depth: int, token: int) -> list[Edge]:
            return self._edges(generation, depth, token) if depth < len(guess) else []

        for node in best_nodes(edges, last, part.most_nodes, least):
            proposal.add(node.parent, node.token, node.value, self.name)
            gains[node.depth] += node.value
        made.gains += gains[len(made.gains) :]
        for depth, gain in enumerate(gains):
            made.gains[depth] += (gain - made.gains[depth]) * _LATEST_WEIGHT
        self._states[generation].expect(edges(0, last)[0].value)
        return proposal

    def _edges(self, generation: Generation, depth: int, token: int) -> list[Edge]:
        """Returns the candidates of a position behind a token, the most valuable first."""
        made = self._rounds[generation]
        assert made.guess is not None, "it was drafted"
        key = made.guess.key(depth, token)
        if key in made.edges:
            return made.edges[key]
        request = generation.request
        table = self._of(generation)
        candidates, trust = made.guess.behind(depth, token)
        [ranking] = rank(request.sampler, candidates, made.start + depth, request.limits.width)
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
        made.edges[key] = cut
        return cut


def best_nodes(
    edges: Callable[[int, int], Sequence[Edge]], token: int, most: int, least: float = 0.0
) -> Iterator[CombinedNode]:
    """Yields the most valuable nodes of the tree of all combinations of edges, the best first.

    A node is worth at most its parent and the siblings before it, so only the first child and the
    next sibling of a yielded node can come next.

    Args:
        edges: `edges(depth, token)` returns the candidates of a depth behind a token, with values
            in [0, 1] that do not increase; none where the tree ends.
        token: the one before the tree.
        most: largest number of nodes.
        least: value that a node must exceed.
    """
    # The best node comes first; of equal ones, the one that was found first.
    found = list[tuple[float, int, CombinedNode]]()
    total = 0

    def push(node: CombinedNode) -> None:
        nonlocal total
        if node.place < len(node.edges):
            heapq.heappush(found, (-node.value, total, node))
            total += 1

    push(CombinedNode(ROOT, 0, edges(0, token), 0, 1.0))
    for number in range(most):
        if not found or -found[0][0] <= least:
            break
        _, _, node = heapq.heappop(found)
        yield node
        push(node._replace(place=node.place + 1))
        depth = node.depth + 1
        push(CombinedNode(number, depth, edges(depth, node.token), 0, node.value))
