"""Drafts by a model, in best-first trees grown by levels (after Wang et al., OPT-Tree, 2024)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Calibration, Scale
from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.drafters.calls import Calls
from edgespec.runtime.drafters.ranking import Candidates, rank
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import SCRATCH_ROWS
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_log = logging.getLogger(__name__)

# What a draft says of an edge, to cells: its value, its rank among its siblings, its depth.
_VALUES = Scale((0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97))
_RANKS = 4
_DEPTHS = 4
_FIRST_YIELD = 0.75  # of a level to the one above it, before any was seen
_YIELD_WEIGHT = 0.1  # of the latest level in the moving average
_LEAST_AHEAD = 0.02  # nodes that the text comes by less often are not run ahead of it


@dataclass(eq=False, slots=True)
class _Node:
    """A candidate for the tree.

    Attributes:
        token: its token.
        parent: the candidate above; None only for the end of the text.
        value: probability that the target's walk comes by.
        depth: tokens from below the root down to this one.
        cell: of the calibration, for the edge that leads here.
        sees: scratch rows of its ancestors and, once it was run, its own.
        ran: it was: what may follow it is known.
    """

    token: int
    parent: _Node | None
    value: float
    depth: int
    cell: int
    sees: list[int]
    ran: bool = False

    def branch(self) -> list[int]:
        """Tokens from below the root down to this one."""
        return [*self.parent.branch(), self.token] if self.parent else []


class ModelDrafter:
    """Drafts with a model, by `calls` to it.

    The text's new tokens are fed first. Then each level is one call over its best nodes, whose
    keys and values go to scratch rows, so that a deeper level costs its own rows only. Growth ends
    where the next level promises less than `TreeBudget.least_gain`, which is judged by what the
    last one brought and how levels have compared so far.

    Where the text has come by a node that was run and is no longer in the way of it, because it was
    not proposed or `ahead` has run it, the next draft begins with what lies below that node.

    Args:
        calls: to a smaller model of the same vocabulary, or to a part of the target.
        calibration: acceptance by what the draft says of an edge. Under sampling that is its lead
            over its siblings in perturbed scores (`ranking`): another calibration.
        name: what results call it by.

    Attributes:
        fed: rows of each call of the last `draft` that fed text; none where the text's last token
            had been run already.
        levels: rows of each of its further calls.
    """

    _sampler: Sampler  # from `begin` on
    _alone: bool  # the target is not to work at the same time: a device has failed
    _lost: bool  # it has failed alone, too
    _text: Sequence[int]  # of the last `draft`, as its budget
    _budget: TreeBudget
    _width: int  # rows of a level's call at most

    def __init__(self, calls: Calls, calibration: Calibration, name: str = "model") -> None:
        self.name = name
        self._calls = calls
        self._calibration = calibration
        self._text_end = _Node(-1, None, value=1.0, depth=0, cell=0, sees=list(calls.root))
        self._levels: list[list[_Node]] = []
        self._scratch = 0  # rows taken so far
        self._reached = 0  # tokens of the text that the nodes continue
        self._yield = _FIRST_YIELD
        self.fed: list[int] = []
        self.levels: list[int] = []

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._sampler = sampler
        self._alone = self._lost = False
        self._levels, self._scratch = [], 0
        try:
            self._calls.begin(prompt, sampler)
        except DeviceError as error:
            self._give_up(error)

    def unread(self, text: Sequence[int]) -> list[int]:
        """Rows of each call that feeds the model what it has not read of a text."""
        return self._calls.unread(text)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`. Empty where the text has outgrown the cache, or the device failed."""
        self._text, self._budget = text, budget
        self._width = min(budget.width, self._calls.most_rows)
        if self._reached != len(text):  # others have drafted since
            self._levels = []
        self.fed, self.levels = [], []
        if self._lost or budget.max_nodes < 1:
            return Proposal()
        try:
            if self._calls.slide(len(text)):
                self._levels = []
            depth = min(budget.max_depth, self._calls.room(len(text), self._width))
            if depth < 1:
                return Proposal()
            proposal = Proposal(begun=bool(self._levels))
            self._grow(depth)
        except DeviceError as error:
            self._give_up(error)
            return Proposal()
        self._add_best(proposal, depth)
        return proposal

    def ahead(self) -> bool:
        """See `Drafter`: run the nodes that the text most likely comes by, proposed or not.

        A node's value is the probability of just that, whether the verification under way accepts
        the node, ends at its parent, or a later one comes by.
        """
        full = self._scratch + self._width > SCRATCH_ROWS
        if self._alone or full or not self._calls.apart:
            return False
        best: list[_Node] = []
        deepest = self._calls.room(len(self._text), self._width) - 1
        for level in self._levels[:deepest]:
            fresh = [node for node in level if not node.ran and node.value >= _LEAST_AHEAD]
            fresh.sort(key=_value, reverse=True)
            best = max(best, fresh[: self._width], key=_worth)
        if not best:
            return False
        try:
            self._run(best)
        except DeviceError as error:
            _log.warning("%s: drafts no longer go on while the target works", error)
            self._alone = True
            self._start_over()
        return not self._alone

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`: nodes that were run and became text are kept, the others forgotten.

        The verdict's tokens are followed in the own nodes, whether or not those were verified.
        """
        node, followed = self._text_end, 0
        for token, level in zip(verdict.tokens, self._levels, strict=False):
            accepted = None
            for child in level:
                if child.parent is node:
                    self._calibration.observe(child.cell, child.token == token)
                    if child.token == token:
                        accepted = child
            if accepted is None:
                break
            node, followed = accepted, followed + 1
        arrived = followed == len(verdict.tokens) and node.ran and self._calls.apart
        # A last token that was not run is pending, and fed by the next draft.
        drafts = self._go_on_from(node) if arrived else []
        if not arrived:
            self._levels = []
        self._reached = len(self._text) + len(verdict.tokens)
        try:
            self._calls.keep(node.sees, drafts)
        except DeviceError as error:
            self._give_up(error)

    def _start_over(self) -> None:
        """Forget what was run: the next draft feeds the whole text."""
        self._levels, self._scratch = [], 0
        try:
            self._calls.restart()
        except DeviceError:  # one that is lost makes no new caches either
            self._lost = True

    def _give_up(self, error: DeviceError) -> None:
        """Draft no more in this text, which goes on without."""
        if not self._alone:
            _log.warning("%s: the text goes on without drafts by %s", error, self.name)
        self._alone = self._lost = True
        self._start_over()

    def _go_on_from(self, root: _Node) -> list[int]:
        """Forget all nodes but those below one, to which the text has come.

        Returns:
            The scratch rows of those that were run, ascending; they are to be the first.
        """
        kept, inside = list[list[_Node]](), {id(root)}
        for level in self._levels[root.depth :]:
            below = [node for node in level if id(node.parent) in inside]
            inside |= {id(node) for node in below}
            kept.append(below)
        nodes = [node for level in kept for node in level]
        rows = sorted(node.sees[-1] for node in nodes if node.ran)
        numbers = {row: number for number, row in enumerate(rows)}
        share = 1 / root.value if root.value else 0.0
        for node in nodes:
            if node.parent is root:
                node.parent = self._text_end
            node.depth -= root.depth
            node.value = min(node.value * share, 1.0)
            node.sees = [numbers[row] for row in node.sees[root.depth :]]
        self._levels, self._scratch = kept, len(rows)
        return rows

    def _grow(self, depth: int) -> None:
        if not self._levels:
            self.fed = self._calls.unread(self._text)
            candidates = self._calls.feed(self._text)
            self._scratch = len(self._calls.root)
            self._add_children([self._text_end], candidates)
        parents, net = self._best(0, depth)
        for level in range(1, depth):
            if not parents or net * self._yield < self._budget.least_gain:
                break
            fresh = [node for node in parents if not node.ran][: SCRATCH_ROWS - self._scratch]
            # Beside nodes that were run before, the others must be worth a call of their own.
            if fresh and self._net(fresh) * self._yield >= self._budget.least_gain:
                self.levels.append(len(fresh))
                self._run(fresh)
            if level == len(self._levels):  # too few rows are left for it
                break
            above = net
            parents, net = self._best(level, depth)
            if above > 0:
                self._yield += (min(net / above, 1.0) - self._yield) * _YIELD_WEIGHT

    def _add_children(self, parents: list[_Node], candidates: Candidates) -> None:
        """The best children of nodes of one level."""
        sampler, text, depth = self._sampler, self._text, parents[0].depth
        contexts = [[*text, *p.branch()] for p in parents] if sampler.reads_context else ()
        rankings = rank(sampler, candidates, len(text) + depth, contexts, self._budget.width)
        acceptance, children = self._calibration.acceptance, []
        row = min(depth, _DEPTHS - 1) * _RANKS
        for parent, (tokens, edges) in zip(parents, rankings, strict=True):
            for place, (token, edge) in enumerate(zip(tokens, edges, strict=True)):
                cell = _VALUES(edge) * _RANKS * _DEPTHS + row + min(place, _RANKS - 1)
                value = parent.value * acceptance(cell, edge)
                children.append(_Node(token, parent, value, depth + 1, cell, parent.sees))
        if depth == len(self._levels):
            self._levels.append([])
        self._levels[depth] += children

    def _best(self, level: int, depth: int) -> tuple[list[_Node], float]:
        """The nodes of a level to expand, and what they are worth."""
        budget, reachable = self._budget, self._levels[:depth]
        bar, values = budget.least_value, [node.value for each in reachable for node in each]
        if len(values) >= budget.max_nodes:  # children can only enter with more than this
            bar = max(bar, sorted(values)[-budget.max_nodes])
        best = [node for node in reachable[level] if node.value > bar]
        best.sort(key=_value, reverse=True)
        del best[self._width :]
        return best, self._net(best)

    def _net(self, nodes: list[_Node]) -> float:
        """What nodes are worth beyond the rows they cost."""
        least = self._budget.least_value
        return sum([node.value - least for node in nodes])

    def _run(self, nodes: list[_Node]) -> None:
        """Run nodes of one level, and add their children."""
        scratch, root = self._scratch, len(self._calls.root)
        self._scratch = width = scratch + len(nodes)
        parents = [node.sees[-1] if node.sees else START for node in nodes]
        mask = bytearray(len(nodes) * width)
        for row, node in enumerate(nodes):
            node.ran = True
            node.sees = [*node.sees, scratch + row]
            for seen in node.sees:
                mask[row * width + seen] = True
        # The first level stands right behind the committed rows, or behind the root's own.
        depth = nodes[0].depth - 1 + root
        candidates = self._calls.level(
            Rows(
                [node.token for node in nodes],
                [depth] * len(nodes),
                np.frombuffer(mask, np.bool_).reshape(len(nodes), width),
                parents,
            )
        )
        self._add_children(nodes, candidates)

    def _add_best(self, proposal: Proposal, depth: int) -> None:
        """The best nodes of all levels but those below `depth`."""
        nodes = [node for level in self._levels[:depth] for node in level]
        best = sorted(nodes, key=_value, reverse=True)[: self._budget.max_nodes]
        best.sort(key=_depth)  # stable: siblings stay in the order of their values
        number = {id(self._text_end): ROOT}
        for node in best:
            parent = number[id(node.parent)]
            number[id(node)] = proposal.add(parent, node.token, node.value, self.name)


def _value(node: _Node) -> float:
    return node.value


def _worth(nodes: list[_Node]) -> float:
    return sum([node.value for node in nodes])


def _depth(node: _Node) -> int:
    return node.depth
