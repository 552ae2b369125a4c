"""Drafts by a model, in best-first trees grown by levels (after Wang et al., OPT-Tree, 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.runtime.calibration import Calibration, Scale
from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.drafters.calls import Calls
from edgespec.runtime.feeds import START, Floats, Rows
from edgespec.runtime.proposal import Proposal
from edgespec.runtime.ranking import Candidates, rank
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.tree import ROOT, TokenTree
from edgespec.runtime.verify import Verdict

# What a draft says of an edge, to cells: its value, its rank among its siblings, its depth.
_VALUES = Scale((0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97))
_RANKS = 4
_DEPTHS = 4
_FIRST_YIELD = 0.75  # of a level to the one above it, before any was seen
_YIELD_WEIGHT = 0.1  # of the latest level in the moving average


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
    """

    token: int
    parent: _Node | None
    value: float
    depth: int
    cell: int
    sees: list[int]

    def branch(self) -> list[int]:
        """Tokens from below the root down to this one."""
        return [*self.parent.branch(), self.token] if self.parent else []


class ModelDrafter:
    """Drafts with a model, by `calls` to it.

    The text's new tokens are fed first. Then each level is one call over its best nodes, whose
    keys and values go to scratch rows, so that a deeper level costs its own rows only. Growth ends
    where the next level promises less than `TreeBudget.least_gain`, which is judged by what the
    last one brought and how levels have compared so far.

    Args:
        calls: to a smaller model of the same vocabulary, or to a part of the target.
        calibration: acceptance by what the draft says of an edge. Under sampling that is its lead
            over its siblings in perturbed scores (`ranking`): another calibration.

    Attributes:
        fed: rows of each call of the last `draft` that fed text.
        levels: rows of each of its further calls.
    """

    _sampler: Sampler  # from `begin` on

    def __init__(self, calls: Calls, calibration: Calibration, name: str = "model") -> None:
        self.name = name
        self._calls = calls
        self._calibration = calibration
        self._text_end = _Node(-1, None, value=1.0, depth=0, cell=0, sees=list(calls.root))
        self._nodes: list[_Node] = []
        self._scratch = 0  # rows taken so far
        self._yield = _FIRST_YIELD
        self.fed: list[int] = []
        self.levels: list[int] = []

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._sampler = sampler
        self._calls.begin(sampler)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`. Empty where the text has outgrown the draft's context."""
        depth = min(budget.max_depth, self._calls.room(len(text)))
        self._nodes, self.fed, self.levels = [], [], []
        if budget.max_nodes >= 1 and depth >= 1:
            self._grow(text, budget, depth)
        return self._proposal(budget)

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`: nodes that were run and became text are kept, the others forgotten.

        The verdict's tokens are followed in the own nodes, whether or not those were verified.
        """
        node, last = self._text_end, len(verdict.tokens) - 1
        kept = node.sees
        for place, token in enumerate(verdict.tokens):
            accepted = None
            for child in self._nodes:
                if child.parent is node:
                    self._calibration.observe(child.cell, child.token == token)
                    if child.token == token:
                        accepted = child
            if accepted is None:
                break
            node = accepted
            if place < last:  # the last token is pending, and fed by the next draft
                kept = node.sees
        self._calls.keep(kept)
        self._nodes = []

    def _grow(self, text: Sequence[int], budget: TreeBudget, depth: int) -> None:
        candidates, self.fed = self._calls.feed(text)
        self._scratch = len(self._calls.root)
        level = self._children(candidates, [self._text_end], text, budget)
        self._nodes += level
        for _ in range(1, depth):
            parents, net = self._best(level, budget)
            if not parents or net * self._yield < budget.least_gain:
                break
            self.levels.append(len(parents))
            level = self._children(self._run(parents), parents, text, budget)
            self._nodes += level
            if net > 0:
                further = min(self._best(level, budget)[1] / net, 1.0)
                self._yield += (further - self._yield) * _YIELD_WEIGHT

    def _children(
        self, candidates: Candidates, parents: list[_Node], text: Sequence[int], budget: TreeBudget
    ) -> list[_Node]:
        """The best children of each node of a level."""
        sampler = self._sampler
        contexts = [[*text, *p.branch()] for p in parents] if sampler.reads_context else ()
        depth = parents[0].depth
        rankings = rank(sampler, candidates, len(text) + depth, contexts, budget.width)
        acceptance, nodes = self._calibration.acceptance, []
        row = min(depth, _DEPTHS - 1) * _RANKS
        for parent, (tokens, edges) in zip(parents, rankings, strict=True):
            for place, (token, edge) in enumerate(zip(tokens, edges, strict=True)):
                cell = _VALUES(edge) * _RANKS * _DEPTHS + row + min(place, _RANKS - 1)
                value = parent.value * acceptance(cell, edge)
                nodes.append(_Node(token, parent, value, depth + 1, cell, parent.sees))
        return nodes

    def _best(self, level: list[_Node], budget: TreeBudget) -> tuple[list[_Node], float]:
        """The nodes of a level to expand, and what they are worth beyond the rows they cost."""
        bar = budget.least_value
        if len(self._nodes) >= budget.max_nodes:  # children can only enter with more than this
            bar = max(bar, sorted([node.value for node in self._nodes])[-budget.max_nodes])
        best = [node for node in level if node.value > bar]
        best.sort(key=_value, reverse=True)
        del best[budget.width :]
        return best, sum([node.value - budget.least_value for node in best])

    def _run(self, level: list[_Node]) -> Candidates:
        scratch, root = self._scratch, len(self._calls.root)
        self._scratch = width = scratch + len(level)
        parents = [node.sees[-1] if node.sees else START for node in level]
        mask = bytearray(len(level) * width)
        for row, node in enumerate(level):
            node.sees = [*node.sees, scratch + row]
            for seen in node.sees:
                mask[row * width + seen] = True
        # The first level stands right behind the committed rows, or behind the root's own.
        depth = level[0].depth - 1 + root
        return self._calls.level(
            Rows(
                [node.token for node in level],
                [depth] * len(level),
                np.frombuffer(mask, np.bool_).reshape(len(level), width),
                parents,
            )
        )

    def _proposal(self, budget: TreeBudget) -> Proposal:
        """The best nodes of all levels."""
        best = sorted(self._nodes, key=_value, reverse=True)[: budget.max_nodes]
        best.sort(key=_depth)  # stable: siblings stay in the order of their values
        proposal, number = Proposal(), {id(self._text_end): ROOT}
        for node in best:
            parent = number[id(node.parent)]
            number[id(node)] = proposal.add(parent, node.token, node.value, self.name)
        return proposal


def _value(node: _Node) -> float:
    return node.value


def _depth(node: _Node) -> int:
    return node.depth
