"""Best-first trees that a model grows level by level (after Wang et al., OPT-Tree, 2024)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from edgespec.errors import MemoryLimitError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Acceptances, AcceptanceTable, edge_cell
from edgespec.runtime.drafters.ranking import Candidates, rank
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sampling.truncation import likeliest_tokens
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT, Proposal

USUAL_READING = 4
"""Rows that a round's first call reads at most, if the model drafts in every round."""

Ids = npt.NDArray[np.int64]
"""Tokens that the columns of logits stand for."""

_CHUNK = 64  # rows of a call that reads the prompt
_CANDIDATES = 32  # likeliest tokens of a row, those that compete under the target's noise
_SMALL = 8192  # tokens of a vocabulary whose probabilities are summed as a whole
_HOPE, _HOPE_WEIGHT = 0.7, 0.1  # first estimate of an acceptance, and weight of a new one in it
_FIRST_WAIT, _LONGEST_WAIT = 8, 256  # rounds until a draft that did not pay is tried again


@dataclass(eq=False, slots=True)
class GrowingNode:
    """A node of the model's tree.

    Attributes:
        token: its token; of the root, the last committed one.
        parent: the node above it; None for the root.
        value: probability that the target's choices reach it.
        depth: number of tokens from the root's child down to it.
        cell: calibration cell of the edge that leads here.
        number: its number in the proposal.
        slots: slots of its ancestors below the root and, once the model has run it, its own.
        children: what may follow, once the model has run it.
        features: what the model gives of its row besides logits, once it has run it; None: nothing.
    """

    token: int
    parent: GrowingNode | None
    value: float
    depth: int
    cell: int
    number: int
    slots: list[int]
    children: list[GrowingNode] = field(default_factory=list)
    features: Floats | None = None


@dataclass(eq=False, slots=True)
class _Path:
    """A path from the root along the target's choices.

    Attributes:
        node: its end.
    """

    node: GrowingNode

    def edges(self) -> list[tuple[int, int]]:
        """See `Expectation`."""
        return [(child.token, child.cell) for child in self.node.children]

    def follow(self, token: int) -> bool:
        """See `Expectation`."""
        known = {child.token: child for child in self.node.children}
        self.node = known.get(token, self.node)
        return token in known


@dataclass(eq=False, slots=True)
class State:
    """What the drafter knows of a generation.

    Attributes:
        generation: whose.
        sequence: what the model has read of it, with the model's slots.
        first: position in the generation of the first token that the sequence has rows of.
        proposal: the nodes of this round.
        hope: how likely the target is to choose the model's best token, as a moving average.
        idle: rounds since the model drafted.
        wait: rounds after which it is tried again.
        leaves: nodes that may be run next.
        root: top of this round's tree; None before the model has drafted in it.
        run: slots of the nodes that the model has run.
    """

    generation: Generation
    sequence: TokenSequence
    first: int = 0
    proposal: Proposal = field(default_factory=Proposal)
    hope: float = _HOPE
    idle: int = 0
    wait: int = _FIRST_WAIT
    root: GrowingNode | None = None
    leaves: list[GrowingNode] = field(default_factory=list)
    run: list[int] = field(default_factory=list)

    def expect(self, acceptance: float, reached: float = 1.0) -> None:
        """Learns how likely the model's best token after a row is to be chosen.

        Args:
            acceptance: see above.
            reached: probability that the target's choices reach the row.
        """
        self.hope += (acceptance - self.hope) * _HOPE_WEIGHT * reached


class TreeDrafter(ABC):
    """Drafts with a model that has rows of its own.

    What the sequences have that it has not read is read first. Then each level is one call over the
    best nodes of the level above, of all sequences; their rows are behind the sequences' in the
    model's own pool. Growth ends where a level does not gain tokens as fast as the pass without it.

    Args:
        model: the model, of which it is known what passes cost.
        ids: tokens that the model's logits stand for; None: token n is column n.

    Attributes:
        model: see above.
    """

    name: str
    in_auto = True
    """Whether generations that ask for all sources draft with it, too."""

    def __init__(self, model: Model, ids: Ids | None = None) -> None:
        self.model = model
        self._ids = self._columns = ids
        self._states = dict[Generation, State]()
        self.forget()

    @abstractmethod
    def _sequence(self, generation: Generation) -> TokenSequence:
        """Returns what the model is to read of a generation; it has read none."""

    @abstractmethod
    def _unread(self, state: State) -> list[int]:
        """Returns the tokens that the model is to read before it drafts, at least one."""

    @abstractmethod
    def _make_room(self, state: State, depth: int) -> bool:
        """Makes room for what is unread and so many tokens behind it; False if there is none."""

    def _chain(self, state: State, tokens: list[int], wanted: list[int]) -> Rows:
        """Returns rows of the next tokens to read."""
        count = len(tokens)
        return Rows(state.sequence, tokens, [AFTER, *range(count - 1)], wanted, certain=count)

    def _level(self, state: State, nodes: Sequence[GrowingNode]) -> Rows:
        """Returns rows of nodes that have the same parent."""
        tokens = [node.token for node in nodes]
        rows = range(len(nodes))
        return Rows(state.sequence, tokens, [AFTER] * len(nodes), list(rows), nodes[0].slots)

    def _sampler(self, generation: Generation) -> Sampler:
        """Returns what chooses the tokens that the model is to guess."""
        return generation.request.sampler

    def _penalized(
        self, generation: Generation, logits: Floats, nodes: Sequence[GrowingNode] = ()
    ) -> Floats:
        """Returns the logits of nodes' rows, [n, V], or of further ones, as the target's become."""
        penalties = generation.penalties
        if penalties is None:
            return logits
        penalized = []
        for row, node in zip_longest(logits, nodes):
            with penalties.behind([] if node is None else _branch(node)):
                penalized.append(penalties.penalized(row, self._columns))
        return np.stack(penalized)

    def _candidates(self, logits: Floats, sampler: Sampler, width: int) -> Candidates:
        """Returns the likeliest tokens of rows, [n, V], at least `width` if there are so many.

        The probabilities of large vocabularies leave out all others. What that is off, acceptances
        correct; the whole sum would cost twice as much as the rest.
        """
        ids = self._ids
        columns = min(sampler.vocab_size, logits.shape[1])
        small = columns <= _SMALL
        # Under noise the others compete, and their sum stands for that of a large vocabulary.
        count = width if small and sampler.options.temperature == 0 else max(_CANDIDATES, width)
        best = likeliest_tokens(logits, columns, min(count, columns))
        found = logits[np.arange(len(logits))[:, None], best]
        summed = logits[:, :columns] if small else found
        total = np.log(np.exp(summed - found[:, :1]).sum(axis=1)) + found[:, 0]
        return Candidates(best if ids is None else ids[best], found, total)

    def _take(self, state: State, root: GrowingNode, rows: Rows) -> None:
        """Takes over the slots of rows that were read, of which the root's is the last."""
        rows.accept(range(len(rows.tokens)))

    def _kept(self, node: GrowingNode, count: int) -> list[int]:
        """Returns the slots of drafted rows that become the sequence's.

        Args:
            node: the last node that the target chose.
            count: number of tokens that it chose, of which the last may be no node.
        """
        # The last token is read again, since what may follow it is known by its row's logits.
        return node.slots[: count - 1]

    def _share(self, state: State) -> None:  # noqa: B027 - not all can
        """Takes over what other sequences left that begin alike; nothing if nothing can be."""

    def _leave(self, state: State, ended: bool) -> None:  # noqa: B027 - not all can
        """Leaves what was read to other sequences that begin alike; the prompt or all has ended."""

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`. The prompt is read at the first draft that promises to pay for it."""
        if not generation.drafts_by(self.name, self.in_auto):
            return False
        self._states[generation] = State(generation, self._sequence(generation))
        return True

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        asked = self._asked(plan)
        if not asked:
            return
        with suppress(MemoryLimitError):  # what there is no room to draft is not drafted
            self._draft(asked, plan)

    def _draft(self, asked: Sequence[PassPart], plan: PassPlan) -> None:
        cheaper = [part.proposal for part in asked]
        self._read(asked, plan)
        self._join(asked, cheaper)
        while True:
            states = [self._states[part.generation] for part in asked]
            pairs = [
                (node.value * state.hope, node, part)
                for part, state in zip(asked, states, strict=True)
                for node in _best(state.leaves, part.most_nodes - len(state.run))
                if node.depth < part.depth
            ]
            pairs.sort(key=lambda pair: -pair[0])
            hope = self._states[pairs[0][2].generation].hope if pairs else 0.0
            count = plan.worthwhile([gain for gain, _, _ in pairs], self.model.cost, hope)
            if not count:
                return
            self._run([(node, part) for _, node, part in pairs[:count]], plan)
            self._join(asked, cheaper)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`: what the model has run of the chosen nodes may become its sequence."""
        state = self._states[generation]
        if state.root is None:
            return
        path = _Path(state.root)
        self._of(generation).count(reading.tokens, path)
        self._go_on(state, path.node, len(reading.tokens))

    def _go_on(self, state: State, node: GrowingNode, count: int) -> None:
        """Keeps what the next draft needs, and frees the slots of all other nodes.

        Args:
            state: of the sequence, which has new tokens.
            node: the last node of the tree that they reach.
            count: number of new tokens.
        """
        kept = self._kept(node, count)
        inside = set(kept)
        state.sequence.append(kept)
        self.model.pool.free([slot for slot in state.run if slot not in inside])
        state.root = None
        state.leaves = []
        state.run = []

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        state = self._states.pop(generation)
        self.model.pool.free(state.run)
        self._leave(state, ended=True)
        state.sequence.free()

    def forget(self) -> None:
        """See `Drafter`."""
        self.model.prefixes.clear()
        self._acceptances = Acceptances()

    def _asked(self, plan: PassPlan) -> list[PassPart]:
        """Returns the sequences for which drafting promises to pay, or is tried again."""
        known = [
            (self._states[part.generation], part)
            for part in plan.drafting
            if part.generation in self._states
        ]
        ready = [(state, part) for state, part in known if self._may_read(state, part, plan)]
        ready.sort(key=lambda each: -each[0].hope)
        count = self._paying(ready, plan)
        asked = []
        for number, (state, part) in enumerate(ready):
            state.idle += 1
            if number < count:
                state.wait = _FIRST_WAIT
            elif state.idle < state.wait:
                continue
            else:
                state.wait = min(2 * state.wait, _LONGEST_WAIT)
            state.idle = 0
            asked.append(part)
        return asked

    def _paying(self, ready: Sequence[tuple[State, PassPart]], plan: PassPlan) -> int:
        """Returns for how many sequences, the most promising ones, drafting promises to pay."""
        return plan.worthwhile([state.hope for state, _ in ready], self.model.cost)

    def _may_read(self, state: State, part: PassPart, plan: PassPlan) -> bool:
        """Whether reading what the model has not read will pay in what is left of a sequence."""
        if not self._make_room(state, part.depth):
            return False
        self._share(state)
        unread = len(self._unread(state))
        if unread <= _CHUNK:
            return True
        reading = unread / _CHUNK * self.model.cost.seconds(_CHUNK)
        return reading < plan.saving(state.hope, self.model.cost) * part.generation.remaining

    def _read(self, asked: Sequence[PassPart], plan: PassPlan) -> None:
        """Reads what is new in the sequences, and finds what may follow them."""
        begin = time.perf_counter()
        last: list[Rows] = []
        for part in asked:
            state = self._states[part.generation]
            tokens = self._catch_up(state)
            last.append(self._chain(state, tokens, [len(tokens) - 1]))
            state.leaves = []
            state.proposal = Proposal()
        logits = self.model.forward(last)
        for part, rows, found in zip(asked, last, logits, strict=True):
            state = self._states[part.generation]
            state.root = root = GrowingNode(rows.tokens[-1], None, 1.0, 0, 0, ROOT, [])
            self._take(state, root, rows)
            root.features = None if rows.features is None else rows.features[-1]
            self._grow(part, [root], found)
        self._spend(plan, begin, USUAL_READING * len(asked))

    def _spend(self, plan: PassPlan, begin: float, usual: int) -> None:
        """Adds the time since `begin` to what a round takes, at most that of so many rows.

        The prompt is read only once, so it is no part of that.
        """
        plan.spent += min(time.perf_counter() - begin, self.model.cost.seconds(usual))

    def _catch_up(self, state: State) -> list[int]:
        """Reads what is unread in chunks; returns the tokens that are left, at least one."""
        self._share(state)  # what one sequence has read now, the next one need not
        tokens = self._unread(state)
        while len(tokens) > _CHUNK:
            chunk = self._chain(state, tokens[:_CHUNK], [])
            self.model.forward([chunk])
            chunk.accept(range(_CHUNK))
            tokens = tokens[_CHUNK:]
            self._leave(state, ended=len(tokens) <= _CHUNK)
        return tokens

    def _run(self, chosen: Sequence[tuple[GrowingNode, PassPart]], plan: PassPlan) -> None:
        """Runs nodes as a part of the round."""
        begin = time.perf_counter()
        self._expand(chosen)
        plan.spent += time.perf_counter() - begin

    def _expand(self, chosen: Sequence[tuple[GrowingNode, PassPart]]) -> None:
        """Runs nodes, each behind the slots of its ancestors, and adds their children."""
        groups: dict[GrowingNode | None, tuple[PassPart, list[GrowingNode]]] = {}
        for node, part in chosen:
            groups.setdefault(node.parent, (part, []))[1].append(node)
        for part in {id(part): part for _, part in chosen}.values():
            self._states[part.generation].leaves = []
        batch = [
            self._level(self._states[part.generation], nodes) for part, nodes in groups.values()
        ]
        logits = self.model.forward(batch)
        for rows, (part, nodes), found in zip(batch, groups.values(), logits, strict=True):
            for number, node in enumerate(nodes):
                node.slots = [*node.slots, rows.slots[number]]
                node.features = None if rows.features is None else rows.features[number]
            self._states[part.generation].run += rows.slots
            self._grow(part, nodes, found)

    def _grow(self, part: PassPart, parents: Sequence[GrowingNode], logits: Floats) -> None:
        """Adds the likeliest children of nodes at one depth."""
        state = self._states[part.generation]
        depth = parents[0].depth
        sampler = self._sampler(part.generation)
        width = part.generation.request.limits.width
        logits = self._penalized(part.generation, logits, parents)
        candidates = self._candidates(logits, sampler, width)
        rankings = rank(sampler, candidates, len(part.generation.tokens) + depth, width)
        table = self._of(part.generation)
        for parent, (ids, edges) in zip(parents, rankings, strict=True):
            for place, (token, edge) in enumerate(zip(ids, edges, strict=True)):
                cell = edge_cell(edge, place, depth)
                share = table.acceptance(cell, edge)
                value = parent.value * share
                number = state.proposal.add(parent.number, token, value, self.name)
                child = GrowingNode(token, parent, value, depth + 1, cell, number, parent.slots)
                parent.children.append(child)
                if place == 0:
                    state.expect(share, parent.value)
            state.leaves += parent.children

    def _join(self, asked: Sequence[PassPart], cheaper: Sequence[Proposal]) -> None:
        """Puts the model's nodes into the proposals, before those of cheaper sources."""
        for part, others in zip(asked, cheaper, strict=True):
            own = self._states[part.generation].proposal
            if others:
                # The model's come first: of nodes with one parent it knows most.
                joined = Proposal()
                joined.graft(own)
                joined.graft(others)
                own = joined
            part.proposal = own

    def _of(self, generation: Generation) -> AcceptanceTable:
        return self._acceptances.of(generation)


def _best(nodes: list[GrowingNode], count: int) -> list[GrowingNode]:
    """Returns the likeliest nodes: more than a tree may have are never run."""
    return nodes if len(nodes) <= count else nlargest(count, nodes, key=lambda node: node.value)


def _branch(node: GrowingNode) -> list[int]:
    return [] if node.parent is None else [*_branch(node.parent), node.token]
