"""Drafts by a model, as best-first trees grown by levels (after Wang et al., OPT-Tree, 2024)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Calibration, edge_cell
from edgespec.runtime.drafters.base import LATEST_WEIGHT, SteppingDrafter, TreeBudget
from edgespec.runtime.drafters.calls import Calls
from edgespec.runtime.drafters.ranking import Candidates, rank
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.steps import Steps, finished
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import SCRATCH_ROWS
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_log = logging.getLogger(__name__)

_FIRST_YIELD = 0.75  # initial estimate of a level's net value, as a share of the level above
_LEAST_AHEAD = 0.02  # smallest value of nodes that `draft_ahead` runs


@dataclass(eq=False, slots=True)
class _Node:
    """A candidate for a node of the tree.

    Attributes:
        token: token of the node.
        parent: candidate above it; None only for the end of the text.
        value: probability that the target's choices reach this node.
        depth: number of tokens from the root's child down to this one.
        cell: calibration cell of the edge that leads here.
        sees: scratch rows of its ancestors and, once the model has run it, its own.
        ran: whether the model has run it, so that its possible successors are known.
    """

    token: int
    parent: _Node | None
    value: float
    depth: int
    cell: int
    sees: list[int]
    ran: bool = False

    def branch(self) -> list[int]:
        """Returns the tokens from the root's child down to this one."""
        return [*self.parent.branch(), self.token] if self.parent else []


class ModelDrafter(SteppingDrafter):
    """Drafts with a model.

    New tokens of the text are fed first. Then each level is one call over the best nodes of the
    level above. Their keys and values go to scratch rows, so a deeper level costs only its own
    rows. Growth ends where the next level promises less than `TreeBudget.least_gain`. That is
    estimated from the value of the last level and the usual ratio of a level to the one above it.

    The next draft begins below a node if the text has reached it, the model has run it, and either
    it was not proposed or it was run by `draft_ahead`.

    Args:
        calls: calls to a smaller model, or to a part of the target.
        calibration: acceptance by what the draft says of an edge. Sampled texts need a calibration
            of their own, because there an edge's value is its lead over its siblings in perturbed
            scores (`ranking`).
        name: name in results.

    Attributes:
        fed: rows of each call of the last `draft` that fed text; empty where the model had already
            run the text's last token.
        levels: rows of each of its further calls.
    """

    _sampler: Sampler  # from `begin` on
    _alone: bool  # whether to stop drafting ahead, because that has failed
    _text: Sequence[int]  # of the last `draft`, as is the budget
    _budget: TreeBudget
    _width: int  # largest number of rows of a level's call

    def __init__(self, calls: Calls, calibration: Calibration, name: str = "model") -> None:
        self.name = name
        self._calls = calls
        self._calibration = calibration
        self._text_end = _Node(-1, None, value=1.0, depth=0, cell=0, sees=list(calls.root))
        self._levels: list[list[_Node]] = []
        self._scratch = 0  # scratch rows in use
        self._reached = 0  # length of the text that the nodes continue
        self._yield = _FIRST_YIELD
        self.fed: list[int] = []
        self.levels: list[int] = []

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._sampler = sampler
        self._alone = False
        self._levels, self._scratch = [], 0
        try:
            self._calls.begin(prompt, sampler)
        except DeviceError as error:
            self._give_up(error)

    def unread(self, text: Sequence[int]) -> list[int]:
        """Returns the rows of each call that feeds the model what it has not read of a text."""
        return self._calls.unread(text)

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Drafter.draft`. Empty if the text has outgrown the cache or the device failed."""
        self._text, self._budget = text, budget
        self._width = min(budget.width, self._calls.most_rows)
        if self._reached != len(text):  # other sources have drafted since
            self._levels = []
        self.fed, self.levels = [], []
        if self._calls.lost or budget.max_nodes < 1:
            return Proposal()
        try:
            if self._calls.slide(text):
                self._levels = []
            depth = min(budget.max_depth, self._calls.room(len(text), self._width))
            if depth < 1:
                return Proposal()
            proposal = Proposal(begun=bool(self._levels))
            yield from self._grow(depth)
        except DeviceError as error:
            self._give_up(error)
            return Proposal()
        self._add_best(proposal, depth)
        return proposal

    def draft_ahead(self) -> bool:
        """See `Drafter`: runs the nodes that the text most likely reaches, proposed or not.

        The value of a node is just this probability. It does not matter whether the verification in
        progress accepts the node, ends at its parent, or a later one reaches it.
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
            finished(self._run(best))
        except DeviceError as error:
            _log.warning("%s: drafts no longer go on while the target works", error)
            self._alone = True
            self._start_over()
        return not self._alone

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`: keeps the run nodes that became text, and discards the others.

        The new tokens are followed along this drafter's own nodes, whether or not those were
        verified.
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
        # If the last token was not run, the next draft feeds it as the pending token.
        drafts = self._go_on_from(node) if arrived else []
        if not arrived:
            self._levels = []
        self._reached = len(self._text) + len(verdict.tokens)
        try:
            self._calls.keep(node.sees, drafts)
        except DeviceError as error:
            self._give_up(error)

    def _start_over(self) -> None:
        """Discard all that was run: the next draft feeds the whole text."""
        self._levels, self._scratch = [], 0
        try:
            self._calls.restart()
        except DeviceError:  # a lost device cannot allocate new caches either
            self._calls.lost = True

    def _give_up(self, error: DeviceError) -> None:
        """Stop drafting in this text, which goes on without drafts."""
        if not self._alone:
            _log.warning("%s: the text goes on without drafts by %s", error, self.name)
        self._alone = self._calls.lost = True
        self._start_over()

    def _go_on_from(self, root: _Node) -> list[int]:
        """Discard all nodes except those below `root`, which the text has reached.

        Returns:
            The scratch rows of those that were run, ascending. The caller moves them to the front.
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

    def _grow(self, depth: int) -> Steps[None]:
        if not self._levels:
            self.fed = self._calls.unread(self._text)
            candidates = yield from self._calls.feed(self._text)
            self._scratch = len(self._calls.root)
            self._add_children([self._text_end], candidates)
        parents, net = self._best(0, depth)
        for level in range(1, depth):
            if not parents or net * self._yield < self._budget.least_gain:
                break
            fresh = [node for node in parents if not node.ran][: SCRATCH_ROWS - self._scratch]
            # The nodes that were not run yet must be worth a call of their own.
            if fresh and self._net(fresh) * self._yield >= self._budget.least_gain:
                self.levels.append(len(fresh))
                yield from self._run(fresh)
            if level == len(self._levels):  # no scratch rows were left for its nodes
                break
            above = net
            parents, net = self._best(level, depth)
            if above > 0:
                self._yield += (min(net / above, 1.0) - self._yield) * LATEST_WEIGHT

    def _add_children(self, parents: list[_Node], candidates: Candidates) -> None:
        """Add the best children of nodes of one level."""
        sampler, text, depth = self._sampler, self._text, parents[0].depth
        contexts = [[*text, *p.branch()] for p in parents] if sampler.reads_context else ()
        rankings = rank(sampler, candidates, len(text) + depth, contexts, self._budget.width)
        acceptance, children = self._calibration.acceptance, []
        for parent, (tokens, edges) in zip(parents, rankings, strict=True):
            for place, (token, edge) in enumerate(zip(tokens, edges, strict=True)):
                cell = edge_cell(edge, place, depth)
                value = parent.value * acceptance(cell, edge)
                children.append(_Node(token, parent, value, depth + 1, cell, parent.sees))
        if depth == len(self._levels):
            self._levels.append([])
        self._levels[depth] += children

    def _best(self, level: int, depth: int) -> tuple[list[_Node], float]:
        """Returns the nodes of a level to expand, and their net value."""
        budget, reachable = self._budget, self._levels[:depth]
        bar, values = budget.least_value, [node.value for each in reachable for node in each]
        if len(values) >= budget.max_nodes:  # only a larger value can enter the tree
            bar = max(bar, sorted(values)[-budget.max_nodes])
        best = [node for node in reachable[level] if node.value > bar]
        best.sort(key=_value, reverse=True)
        del best[self._width :]
        return best, self._net(best)

    def _net(self, nodes: list[_Node]) -> float:
        """Returns the value of nodes beyond that of the rows they cost."""
        least = self._budget.least_value
        return sum([node.value - least for node in nodes])

    def _run(self, nodes: list[_Node]) -> Steps[None]:
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
        # The first level follows the committed rows, or the root's own row where it has one.
        depth = nodes[0].depth - 1 + root
        candidates = yield from self._calls.level(
            Rows(
                [node.token for node in nodes],
                [depth] * len(nodes),
                np.frombuffer(mask, np.bool_).reshape(len(nodes), width),
                parents,
            )
        )
        self._add_children(nodes, candidates)

    def _add_best(self, proposal: Proposal, depth: int) -> None:
        """Add the best nodes to a proposal, none deeper than `depth`."""
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
