"""A draft model that grows a best-first tree by levels (after Wang et al., OPT-Tree, 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.model import Model, Results, Rows, Runner
from edgespec.runtime.ranking import Candidates, rank
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.tree import ROOT, TokenTree
from edgespec.runtime.verify import Verdict

# A level is not worth a call where all its nodes together are this unlikely to be reached.
_LEAST_REACH = 0.4


@dataclass(eq=False, slots=True)
class _Node:
    """A candidate for the tree.

    Attributes:
        token: its token.
        parent: the candidate above; None only for the end of the text.
        value: probability that the target's walk comes by, as the draft sees it.
        depth: tokens from below the root down to this one.
        sees: scratch rows of its ancestors and, once it was run, its own.
    """

    token: int
    parent: _Node | None
    value: float
    depth: int
    sees: list[int]

    def branch(self) -> list[int]:
        """Tokens from below the root down to this one."""
        return [*self.parent.branch(), self.token] if self.parent else []


_TEXT_END = _Node(token=-1, parent=None, value=1.0, depth=0, sees=[])


class ModelDrafter:
    """Drafts with a smaller model of the same vocabulary.

    The text's new tokens are fed first. Then each level is one call over its best nodes, whose
    keys and values go to scratch rows, so that a deeper level costs its own rows only. The best
    nodes of all levels make the tree; a child is never worth more than its parent, so they hang
    together.
    """

    name = "model"

    _runner: Runner  # of the text, from `begin` on
    _sampler: Sampler

    def __init__(self, model: Model) -> None:
        self._model = model
        self._chosen: list[_Node] = []

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`. The prompt itself is fed at the first draft."""
        self._runner = Runner(self._model)
        self._sampler = sampler

    def draft(self, text: Sequence[int], budget: TreeBudget) -> TokenTree:
        """See `Drafter`. Empty where the text has outgrown the draft model's context."""
        room = self._model.role.context_length - len(text)
        depth = min(budget.max_depth, room)
        if budget.max_nodes < 1 or depth < 1:
            self._chosen = []
            return TokenTree.empty()
        results = self._runner.prefill(text[self._runner.length :])
        nodes = self._children(results, [_TEXT_END], text, budget)
        level = nodes
        for _ in range(1, depth):
            level = _worth_expanding(nodes, level, budget)
            if not level:
                break
            level = self._children(self._run(level), level, text, budget)
            nodes += level
        return self._tree(nodes, budget)

    def observe(self, verdict: Verdict) -> None:
        """See `Drafter`: accepted nodes that were run become text, the others are forgotten."""
        accepted = [self._chosen[node] for node in verdict.nodes]
        self._runner.keep(accepted[-1].sees if accepted else [])
        self._chosen = []

    def _children(
        self, results: Results, parents: list[_Node], text: Sequence[int], budget: TreeBudget
    ) -> list[_Node]:
        """The best children of each node of a level, from the results of its rows."""
        sampler = self._sampler
        contexts = [[*text, *p.branch()] for p in parents] if sampler.reads_context else ()
        depth = parents[0].depth
        candidates = Candidates.of(results, len(parents))
        rankings = rank(sampler, candidates, len(text) + depth, contexts, budget.width)
        return [
            _Node(token, parent, parent.value * edge, depth + 1, parent.sees)
            for parent, (tokens, edges) in zip(parents, rankings, strict=True)
            for token, edge in zip(tokens, edges, strict=True)
        ]

    def _run(self, level: list[_Node]) -> Results:
        scratch = self._runner.scratch
        width = scratch + len(level)
        mask = bytearray(len(level) * width)
        for row, node in enumerate(level):
            node.sees = [*node.sees, scratch + row]
            for seen in node.sees:
                mask[row * width + seen] = True
        depth = level[0].depth - 1  # the first level stands right behind the committed root
        return self._runner.draft(
            Rows(
                [node.token for node in level],
                [depth] * len(level),
                np.frombuffer(mask, np.bool_).reshape(len(level), width),
            )
        )

    def _tree(self, nodes: list[_Node], budget: TreeBudget) -> TokenTree:
        """The best nodes of all levels. Sorting is stable: parents stay before equal children."""
        best = sorted(nodes, key=_value, reverse=True)[: budget.max_nodes]
        self._chosen = sorted(best, key=lambda node: node.depth)
        number = {id(node): place for place, node in enumerate(self._chosen)}
        return TokenTree(
            np.array([node.token for node in self._chosen], np.int64),
            np.array([number.get(id(node.parent), ROOT) for node in self._chosen], np.int64),
        )


def _value(node: _Node) -> float:
    return node.value


def _worth_expanding(nodes: list[_Node], level: list[_Node], budget: TreeBudget) -> list[_Node]:
    """The best nodes of the level whose children can still enter the tree."""
    bar = 0.0
    if len(nodes) >= budget.max_nodes:
        bar = sorted([node.value for node in nodes])[-budget.max_nodes]
    best = [node for node in level if node.value > bar]
    best.sort(key=_value, reverse=True)
    del best[budget.width :]
    return best if sum([node.value for node in best]) >= _LEAST_REACH else []
