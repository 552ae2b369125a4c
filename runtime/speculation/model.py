"""Drafts by a model, as best-first trees grown by levels (after Wang et al., OPT-Tree, 2024)."""

from __future__ import annotations

import time
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Calibration, edge_cell
from edgespec.runtime.drafters.ranking import Candidates, rank
from edgespec.runtime.sampling.likeliest import likeliest_tokens
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.sequence import Sequence
from edgespec.runtime.speculation.cost import PassCost
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.speculation.plan import Plan, Scheduled
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT

_CHUNK = 64  # rows of a call that reads the prompt
_USUAL_READING = 4  # rows that a round's first call reads at most, if the model drafts every round
_CANDIDATES = 32  # likeliest tokens of a row, those that compete under the target's noise
_HOPE, _HOPE_WEIGHT = 0.7, 0.1  # first estimate of an acceptance, and weight of a new one in it
_FIRST_WAIT, _LONGEST_WAIT = 8, 256  # rounds until a draft that did not pay is tried again


@dataclass(eq=False, slots=True)
class _Node:
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
    """

    token: int
    parent: _Node | None
    value: float
    depth: int
    cell: int
    number: int
    slots: list[int]
    children: list[_Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _State:
    """What the drafter knows of a generation.

    Attributes:
        sequence: the generation's tokens, with the draft model's slots.
        proposal: the nodes of this round.
        hope: how likely the target is to choose the model's best token, as a moving average.
        idle: rounds since the model drafted.
        wait: rounds after which it is tried again.
        leaves: nodes that may be run next, all at one depth.
        root: top of this round's tree; None before the model has drafted in it.
        run: slots of the nodes that the model has run.
    """

    sequence: Sequence
    proposal: Proposal = field(default_factory=Proposal)
    hope: float = _HOPE
    idle: int = 0
    wait: int = _FIRST_WAIT
    root: _Node | None = None
    leaves: list[_Node] = field(default_factory=list)
    run: list[int] = field(default_factory=list)


class ModelDrafter:
    """Drafts with a smaller model of the same vocabulary.

    What the sequences have that it has not read is read first. Then each level is one call over the
    best nodes of the level above, of all sequences; their rows are behind the sequences' in the
    model's own pool. Growth ends where a level does not gain tokens as fast as the pass without it.

    Args:
        model: the draft model.
        cost: of its calls.
        context_length: largest number of tokens that it can read.
    """

    name = "model"

    def __init__(self, model: Model, cost: PassCost, context_length: int) -> None:
        self._model = model
        self._cost = cost
        self._context_length = context_length
        self._states = dict[Generation, _State]()
        self.forget()

    def begin(self, generation: Generation) -> None:
        """See `Drafter`. The prompt is read at the first draft that promises to pay for it."""
        if generation.drafts_by(self.name):
            sequence = self._model.sequence(generation.tokens)
            self._states[generation] = _State(sequence)

    def draft(self, plan: Plan) -> None:
        """See `Drafter`."""
        asked = self._asked(plan)
        if not asked:
            return
        cheaper = [part.proposal for part in asked]
        self._read(asked, plan)
        self._join(asked, cheaper)
        while True:
            states = [self._states[part.generation] for part in asked]
            pairs = [
                (node.value * state.hope, node, part)
                for part, state in zip(asked, states, strict=True)
                for node in state.leaves
                if node.depth < part.depth
            ]
            pairs.sort(key=lambda pair: -pair[0])
            count = plan.worthwhile([gain for gain, _, _ in pairs], self._cost)
            if not count:
                return
            self._run([(node, part) for _, node, part in pairs[:count]], plan)
            self._join(asked, cheaper)

    def observe(self, generation: Generation, tokens: ListLike[int]) -> None:
        """See `Drafter`: nodes that the model has run and that were chosen become its sequence."""
        state = self._states.get(generation)
        if state is None or state.root is None:
            return
        calibration, node = self._of(generation), state.root
        for token in tokens:
            chosen = None
            for child in node.children:
                calibration.observe(child.cell, child.token == token)
                if child.token == token:
                    chosen = child
            if chosen is None:
                break
            node = chosen
        # The last token is read again, since what may follow it is known by its row's logits.
        kept = node.slots[: len(tokens) - 1]
        inside = set(kept)
        state.sequence.append(kept)
        self._model.pool.free([slot for slot in state.run if slot not in inside])
        state.root, state.leaves, state.run = None, [], []

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        state = self._states.pop(generation, None)
        if state is not None:
            self._model.pool.free(state.run)
            state.sequence.free()

    def forget(self) -> None:
        """See `Drafter`."""
        self._calibrations = Calibration(), Calibration()  # of greedy and of sampled tokens

    def _asked(self, plan: Plan) -> list[Scheduled]:
        """Returns the sequences for which drafting promises to pay, or is tried again."""
        known = [
            (self._states[part.generation], part)
            for part in plan.drafting
            if part.generation in self._states
        ]
        ready = [(state, part) for state, part in known if self._may_read(state, part, plan)]
        ready.sort(key=lambda each: -each[0].hope)
        count = plan.worthwhile([state.hope for state, _ in ready], self._cost)
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

    def _may_read(self, state: _State, part: Scheduled, plan: Plan) -> bool:
        """Whether reading what the model has not read will pay in what is left of a sequence."""
        length = len(part.generation.tokens)
        if length + part.depth > self._context_length:
            return False
        unread = length - state.sequence.length
        if unread <= _CHUNK:
            return True
        reading = unread / _CHUNK * self._cost.seconds(_CHUNK)
        return reading < plan.saving(state.hope, self._cost) * part.generation.remaining

    def _read(self, asked: ListLike[Scheduled], plan: Plan) -> None:
        """Reads what is new in the sequences, and finds what may follow them."""
        begin = time.perf_counter()
        last: list[Rows] = []
        for part in asked:
            state = self._states[part.generation]
            while len(state.sequence.unread) > _CHUNK:
                self._forward([_chain(state.sequence, state.sequence.unread[:_CHUNK], [])])[0]
            tokens = state.sequence.unread
            last.append(_chain(state.sequence, tokens, [len(tokens) - 1]))
            state.root = _Node(tokens[-1], None, 1.0, 0, 0, ROOT, [])
            state.leaves = []
            state.proposal = Proposal()
        logits = self._forward(last)
        for part, row in zip(asked, logits, strict=True):
            root = self._states[part.generation].root
            assert root is not None, "it was just set"
            self._grow(part, [root], row)
        # The prompt is read only once, so it is not part of what a round takes.
        rows = _USUAL_READING * len(asked)
        plan.spent += min(time.perf_counter() - begin, self._cost.seconds(rows))

    def _forward(self, batch: list[Rows]) -> list[Floats]:
        """Reads rows that become part of their sequences."""
        begin = time.perf_counter()
        logits = self._model.forward(batch)
        self._cost.observe(sum([len(r.tokens) for r in batch]), time.perf_counter() - begin)
        for rows in batch:
            rows.accept(range(len(rows.tokens)))
        return logits

    def _run(self, chosen: ListLike[tuple[_Node, Scheduled]], plan: Plan) -> None:
        """Runs nodes of one level, each behind the slots of its ancestors; adds their children."""
        begin = time.perf_counter()
        groups: dict[_Node | None, tuple[Scheduled, list[_Node]]] = {}
        for node, part in chosen:
            groups.setdefault(node.parent, (part, []))[1].append(node)
        for part in {id(part): part for _, part in chosen}.values():
            self._states[part.generation].leaves = []
        batch = [
            Rows(
                self._states[part.generation].sequence,
                [node.token for node in nodes],
                [AFTER] * len(nodes),
                list(range(len(nodes))),
                branch=nodes[0].slots,
            )
            for part, nodes in groups.values()
        ]
        called = time.perf_counter()
        logits = self._model.forward(batch)
        self._cost.observe(len(chosen), time.perf_counter() - called)
        for rows, (part, nodes), found in zip(batch, groups.values(), logits, strict=True):
            for node, slot in zip(nodes, rows.slots, strict=True):
                node.slots = [*node.slots, slot]
            self._states[part.generation].run += rows.slots
            self._grow(part, nodes, found)
        plan.spent += time.perf_counter() - begin

    def _grow(self, part: Scheduled, parents: ListLike[_Node], logits: Floats) -> None:
        """Adds the likeliest children of nodes at one depth."""
        request, state = part.generation.request, self._states[part.generation]
        sampler, width, depth = request.sampler, request.limits.width, parents[0].depth
        candidates = _candidates(logits, min(sampler.vocab_size, logits.shape[1]))
        tokens = part.generation.tokens
        contexts = [[*tokens, *_branch(node)] for node in parents] if sampler.reads_context else ()
        rankings = rank(sampler, candidates, len(tokens) + depth, contexts, width)
        calibration = self._of(part.generation)
        for parent, (ids, edges) in zip(parents, rankings, strict=True):
            for place, (token, edge) in enumerate(zip(ids, edges, strict=True)):
                cell = edge_cell(edge, place, depth)
                share = calibration.acceptance(cell, edge)
                value = parent.value * share
                number = state.proposal.add(parent.number, token, value, self.name)
                child = _Node(token, parent, value, depth + 1, cell, number, parent.slots)
                parent.children.append(child)
                if place == 0:
                    state.hope += (share - state.hope) * _HOPE_WEIGHT
            state.leaves += parent.children

    def _join(self, asked: ListLike[Scheduled], cheaper: ListLike[Proposal]) -> None:
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

    def _of(self, generation: Generation) -> Calibration:
        return self._calibrations[generation.request.sampler.options.temperature > 0]


def _candidates(logits: Floats, vocab_size: int) -> Candidates:
    """Returns the likeliest tokens of rows, [n, V], whose probabilities leave out all others.

    What that is off, acceptances correct; the whole sum would cost twice as much as all the rest.
    """
    tokens = likeliest_tokens(logits, vocab_size, min(_CANDIDATES, vocab_size))
    best = np.take_along_axis(logits, tokens, axis=1)
    peak = best[:, 0]
    return Candidates(tokens, best, np.log(np.exp(best - peak[:, None]).sum(axis=1)) + peak)


def _chain(sequence: Sequence, tokens: list[int], wanted: list[int]) -> Rows:
    count = len(tokens)
    return Rows(sequence, tokens, [AFTER, *range(count - 1)], wanted, certain=count)


def _branch(node: _Node) -> list[int]:
    return [] if node.parent is None else [*_branch(node.parent), node.token]
