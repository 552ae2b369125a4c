"""Best-first trees that a model grows level by level (after Wang et al., OPT-Tree, 2024)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Candidates, edge_cell, rank
from edgespec.runtime.drafters.model import USUAL_READING, Grower
from edgespec.runtime.drafters.reader import DraftReader, DraftSequence
from edgespec.runtime.sequences.model import Rows
from edgespec.runtime.sequences.queue import ranked_rows
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT, Proposal


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

    @property
    def branch(self) -> list[int]:
        """The tokens from the root's child down to it."""
        return [] if self.parent is None else [*self.parent.branch, self.token]


@dataclass(eq=False, slots=True)
class GrowingTree:
    """What a model has drafted of a generation.

    Attributes:
        draft: what it has read of it.
        root: top of the tree; None before the model has drafted in a round.
        leaves: nodes that may be run next.
        run: slots of the nodes that the model has run.
        proposal: the nodes, below the root.
    """

    draft: DraftSequence
    root: GrowingNode | None = None
    leaves: list[GrowingNode] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    proposal: Proposal = field(default_factory=Proposal)


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


@dataclass(frozen=True, eq=False)
class _Found:
    """What the model says behind nodes, and behind those that were queued below them.

    Attributes:
        candidates: of the nodes, and then of those below the last one.
        slots: of the nodes that were queued.
    """

    candidates: Candidates
    slots: Sequence[int] = ()


class LevelGrower(Grower):
    """Makes each level by one call over the best nodes of the level above, of all sequences.

    Their rows are behind the sequences' in the model's own pool. Growth ends where a level does not
    gain tokens as fast as the pass without it.

    Args:
        name: see `Grower`.
        reader: see `Grower`.

    Attributes:
        trees: by generation.
    """

    def __init__(self, name: str, reader: DraftReader) -> None:
        super().__init__(name, reader)
        self.trees = dict[Generation, GrowingTree]()

    def begin(self, draft: DraftSequence) -> None:
        """See `Grower`."""
        self.trees[draft.generation] = GrowingTree(draft)

    def grow(self, parts: Sequence[PassPart], plan: PassPlan) -> None:
        """See `Grower`."""
        cheaper = [part.proposal for part in parts]
        self.read(parts, plan)
        self._join(parts, cheaper)
        while chosen := self._worthwhile(parts, plan):
            begin = time.perf_counter()
            self.expand(chosen)
            self.spend(plan, begin, len(chosen))
            self._join(parts, cheaper)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Grower`: rows of the chosen nodes become the sequence's, where the reader can."""
        tree = self.trees[generation]
        assert tree.root is not None, "it is drafted"
        path = _Path(tree.root)
        self.acceptances.of(generation).count(reading.tokens, path)
        self.go_on(tree, path.node, len(reading.tokens))

    def end(self, generation: Generation) -> None:
        """See `Grower`."""
        self.reader.model.pool.free(self.trees.pop(generation).run)

    def read(self, parts: Sequence[PassPart], plan: PassPlan) -> None:
        """Reads what is new in the sequences, and finds what may follow them."""
        begin = time.perf_counter()
        last: list[Rows] = []
        roots = []
        for part in parts:
            tree = self.trees[part.generation]
            tokens = self.reader.catch_up(tree.draft)
            last.append(self.reader.chain(tree.draft, tokens, [len(tokens) - 1]))
            tree.leaves = []
            tree.proposal = Proposal()
            roots.append((part, [GrowingNode(tokens[-1], None, 1.0, 0, 0, ROOT, [])]))
        further = self._queued(last, parts, plan)
        for (part, [root]), rows, found in self._run(last, roots, further):
            tree = self.trees[part.generation]
            root.features = None if rows.features is None else rows.features[-1]
            tree.run = self.reader.keep(rows)
            root.slots = list(tree.run)
            tree.root = root
            tree.draft.drafted = True
            self._add_all(part, [root], found)
        self.spend(plan, begin, USUAL_READING * len(parts), [len(parts)] * further)

    def expand(self, chosen: Sequence[tuple[GrowingNode, PassPart]], further: int = 0) -> None:
        """Runs nodes, each behind the slots of its ancestors, and adds their children.

        Args:
            chosen: the nodes.
            further: how many passes are queued behind theirs, if each is of a sequence of its own.
        """
        groups: dict[GrowingNode, tuple[PassPart, list[GrowingNode]]] = {}
        for node, part in chosen:
            assert node.parent is not None, "no root is run"
            groups.setdefault(node.parent, (part, []))[1].append(node)
        for part in {id(part): part for _, part in chosen}.values():
            self.trees[part.generation].leaves = []
        batch = []
        for parent, (part, nodes) in groups.items():
            draft = self.trees[part.generation].draft
            tokens = [node.token for node in nodes]
            batch.append(self.reader.level(draft, tokens, parent.slots, parent.features))
        for (part, nodes), rows, found in self._run(batch, [*groups.values()], further):
            for number, node in enumerate(nodes):
                node.slots = [*node.slots, rows.slots[number]]
                node.features = None if rows.features is None else rows.features[number]
            self.trees[part.generation].run += rows.slots
            self._add_all(part, nodes, found)

    def go_on(self, tree: GrowingTree, node: GrowingNode, count: int) -> None:
        """Keeps what the next draft needs, and frees the slots of all other nodes.

        Args:
            tree: of the sequence, which has new tokens.
            node: the last node of the tree that they reach.
            count: number of new tokens.
        """
        kept = self.reader.kept(node.slots, count)
        inside = set(kept)
        tree.draft.sequence.append(kept)
        self.reader.model.pool.free([slot for slot in tree.run if slot not in inside])
        tree.draft.drafted = False
        tree.root = None
        tree.leaves = []
        tree.run = []

    def _worthwhile(
        self, parts: Sequence[PassPart], plan: PassPlan
    ) -> list[tuple[GrowingNode, PassPart]]:
        """Returns the nodes whose children promise to pay, the best ones; perhaps none."""
        trees = [self.trees[part.generation] for part in parts]
        gains = [
            (node.value * tree.draft.hope, node, part)
            for part, tree in zip(parts, trees, strict=True)
            for node in _best(tree.leaves, part.most_nodes - len(tree.run))
            if node.depth < part.depth
        ]
        if not gains:
            return []
        gains.sort(key=lambda each: -each[0])
        hope = self.trees[gains[0][2].generation].draft.hope
        values = [gain for gain, _, _ in gains]
        count = plan.worthwhile(values, self.reader.model.cost, hope)
        return [(node, part) for _, node, part in gains[:count]]

    def _queued(self, batch: Sequence[Rows], parts: Sequence[PassPart], plan: PassPlan) -> int:
        """Returns how many passes are to be queued behind the one that reads sequences."""
        rows = sum(len(each.tokens) for each in batch)
        if not self.reader.queues([part.generation for part in parts], rows):
            return 0
        hopes = [self.trees[part.generation].draft.hope for part in parts]
        most = min(min(part.depth - 1, part.most_nodes) for part in parts)
        return plan.queued(hopes, self.reader.model.further_cost, most)

    def _run(
        self,
        batch: Sequence[Rows],
        groups: Sequence[tuple[PassPart, list[GrowingNode]]],
        further: int,
    ) -> Iterator[tuple[tuple[PassPart, list[GrowingNode]], Rows, _Found]]:
        """Yields what is found behind nodes, of which a part of the batch has the rows."""
        model = self.reader.model
        generations = [part.generation for part, _ in groups]
        slots = list[int]()  # of rows that were queued behind
        found = []
        try:
            if self.reader.ranks(generations, sum(len(rows.tokens) for rows in batch)):
                ranked = ranked_rows(model, batch, further)
                slots = [slot for each in ranked for slot in each.slots]
                found = [_Found(self.reader.ranked(each), each.slots) for each in ranked]
            else:
                logits = model.forward(batch)
                for (part, nodes), each in zip(groups, logits, strict=True):
                    branches = (node.branch for node in nodes)
                    candidates = self.reader.candidates(part.generation, each, branches)
                    found.append(_Found(candidates))
        except BaseException:
            model.drop(batch)
            model.pool.free(slots)
            raise
        yield from zip(groups, batch, found, strict=True)

    def _add_all(self, part: PassPart, parents: list[GrowingNode], found: _Found) -> None:
        """Adds the children of nodes at one depth, and of those that were queued behind them."""
        tree = self.trees[part.generation]
        count = len(parents)
        self._add_children(part, parents, found.candidates.rows(0, count))
        for number, slot in enumerate(found.slots, count):
            [parent] = parents
            node = parent.children[0]  # the likeliest
            node.slots = [*node.slots, slot]
            tree.run.append(slot)
            tree.leaves.remove(node)
            parents = [node]
            self._add_children(part, parents, found.candidates.rows(number, number + 1))

    def _add_children(
        self, part: PassPart, parents: Sequence[GrowingNode], candidates: Candidates
    ) -> None:
        """Adds the likeliest children of nodes at one depth."""
        generation = part.generation
        tree = self.trees[generation]
        depth = parents[0].depth
        position = len(generation.tokens) + depth
        width = generation.request.limits.width
        rankings = rank(self.reader.sampler(generation), candidates, position, width)
        table = self.acceptances.of(generation)
        for parent, (ids, edges) in zip(parents, rankings, strict=True):
            for place, (token, edge) in enumerate(zip(ids, edges, strict=True)):
                cell = edge_cell(edge, place, depth)
                share = table.acceptance(cell, edge)
                value = parent.value * share
                number = tree.proposal.add(parent.number, token, value, self.name)
                child = GrowingNode(token, parent, value, depth + 1, cell, number, parent.slots)
                parent.children.append(child)
                if place == 0:
                    tree.draft.expect(share, parent.value)
            tree.leaves += parent.children

    def _join(self, parts: Sequence[PassPart], cheaper: Sequence[Proposal]) -> None:
        """Puts the model's nodes into the proposals, before those of cheaper sources."""
        for part, others in zip(parts, cheaper, strict=True):
            own = self.trees[part.generation].proposal
            if others:
                # The model's come first: of nodes with one parent it knows most.
                joined = Proposal()
                joined.graft(own)
                joined.graft(others)
                own = joined
            part.proposal = own


def _best(nodes: list[GrowingNode], count: int) -> list[GrowingNode]:
    """Returns the likeliest nodes: more than a tree may have are never run."""
    return nodes if len(nodes) <= count else nlargest(count, nodes, key=lambda node: node.value)
