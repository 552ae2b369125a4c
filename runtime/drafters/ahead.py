"""Trees that grow on while the target works, by a model or head on a device of its own.

After Liu et al., PEARL, 2024. What is drafted meanwhile lies below the tree that is being verified,
or beside it. If the new tokens go through it, it is the beginning of the next tree.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from edgespec.errors import MemoryLimitError
from edgespec.runtime.drafters.head import HeadReader
from edgespec.runtime.drafters.levels import GrowingNode, GrowingTree, LevelGrower
from edgespec.runtime.drafters.reader import DraftSequence, ModelReader
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT, Proposal

_LEAST = 0.02  # probability of being reached that a node must have to be run ahead
_MOST = 8  # nodes of a call


class AheadGrower(LevelGrower):
    """Makes nodes level by level, and goes on during the target's pass.

    A thread, which no pass outlives and which outlives no pass, runs the nodes of all sequences
    that are most likely reached, by the seconds that they take. It makes no call after the pass has
    ended, which is held up by what is left of the last one. If it fails, the next draft does. What
    a head has begun reads its own rows.

    Args:
        name: see `Grower`.
        reader: see `Grower`.
    """

    def __init__(self, name: str, reader: ModelReader | HeadReader) -> None:
        super().__init__(name, reader)
        self._context_length = reader.context_length
        self._failure: BaseException | None = None

    def forget(self) -> None:
        """See `Grower`."""
        super().forget()
        self._failure = None

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `Grower`."""
        length = draft.sequence.length
        room = super().make_room(draft, depth)
        tree = self.trees[draft.generation]
        if tree.root is not None and draft.sequence.length < length:  # it was behind these rows
            super().go_on(tree, tree.root, 0)
        return room

    def grow(self, parts: Sequence[PassPart], plan: PassPlan) -> None:
        """See `Grower`."""
        if self._failure is not None:
            raise self._failure
        super().grow(parts, plan)
        plan.beside.append(self._beside(parts))

    def read(self, parts: Sequence[PassPart], plan: PassPlan) -> None:
        """Takes up the trees that were begun, and reads what is new in the other sequences."""
        unread = []
        for part in parts:
            tree = self.trees[part.generation]
            if tree.root is None:
                unread.append(part)
                continue
            part.begun = True
            self._number(tree.root, tree, part.depth)
            nodes = (node for node in _below(tree.root) if node.depth <= part.depth)
            tree.leaves = [node for node in nodes if not node.children]
        if unread:
            super().read(unread, plan)

    def go_on(self, tree: GrowingTree, node: GrowingNode, count: int) -> None:
        """See `LevelGrower`: what is below the node is the beginning of the next tree."""
        if node.depth < count or not node.children:  # what may follow the last token is not known
            super().go_on(tree, node, count)
            return
        kept = self.reader.kept(node.slots, count + 1)  # of a head, whose rows are only near, none
        tree.draft.sequence.append(kept)
        share = 1 / node.value if node.value else 0.0
        for each in _below(node):
            each.slots = each.slots[len(kept) :]
            each.depth = each.depth - count
            each.value = min(each.value * share, 1.0)
        path = node.slots[len(kept) :]
        run = [*path, *(each.slots[-1] for each in _below(node) if each.children)]
        inside = {*kept, *run}
        self.reader.model.pool.free([slot for slot in tree.run if slot not in inside])
        node.parent = None
        node.value = 1.0
        node.depth = 0
        node.number = ROOT
        node.slots = path
        tree.root = node
        tree.run = run

    @contextmanager
    def _beside(self, parts: Sequence[PassPart]) -> Iterator[None]:
        """Drafts on a thread of its own inside of the context."""
        ended = threading.Event()

        def run() -> None:
            try:
                while not ended.is_set() and (chosen := self._likeliest(parts)):
                    self.expand(chosen)
            except MemoryLimitError:
                pass  # what there is no room to draft is not drafted
            except BaseException as error:
                self._failure = error

        for part in parts:  # the proposal itself is being verified
            tree = self.trees[part.generation]
            if tree.root is not None:
                self._number(tree.root, tree, part.generation.remaining)
        thread = threading.Thread(target=run, name="edgespec-draft")
        try:
            thread.start()
            yield
        finally:
            ended.set()
            try:
                _end(thread)
            finally:
                _end(thread)  # an interrupt waits for the call that is being made

    def _likeliest(self, parts: Sequence[PassPart]) -> list[tuple[GrowingNode, PassPart]]:
        """Returns the nodes to run next, of which most are reached by second; perhaps none."""
        found = []
        for part in parts:
            tree = self.trees[part.generation]
            most = part.most_nodes
            if tree.root is not None and len(tree.run) < 2 * most:
                left = self._context_length - tree.draft.sequence.length - len(tree.root.slots)
                deepest = min(part.generation.remaining, left) - 1
                found += [
                    (node, part)
                    for node in _below(tree.root)
                    if not node.children and node.value >= _LEAST and node.depth <= deepest
                ]
        found.sort(key=lambda pair: -pair[0].value)
        sums = list(accumulate([node.value for node, _ in found[:_MOST]]))
        cost = self.reader.model.cost
        rates = [total / cost.seconds(rows) for rows, total in enumerate(sums, 1)]
        return found[: rates.index(max(rates)) + 1] if rates else []

    def _number(self, root: GrowingNode, tree: GrowingTree, depth: int) -> None:
        """Makes a proposal of the nodes below a root, so many deep at most."""
        tree.proposal = Proposal()
        for node in _below(root):
            if node.depth <= depth and node.parent is not None:
                above = node.parent.number
                node.number = tree.proposal.add(above, node.token, node.value, self.name)


def _end(thread: threading.Thread) -> None:
    """Waits for the end of a thread, if it was started."""
    if thread.ident is not None:
        thread.join()


def _below(root: GrowingNode) -> Iterator[GrowingNode]:
    """Yields all nodes below one, parents before their children."""
    waiting = list(root.children)
    for node in waiting:
        yield node
        waiting += node.children
