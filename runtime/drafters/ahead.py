"""Drafts by a model or head on a device of its own, which goes on while the target works.

After Liu et al., PEARL, 2024. What is drafted meanwhile lies below the tree that is being verified,
or beside it. If the new tokens go through it, it is the beginning of the next tree.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from edgespec.errors import MemoryLimitError
from edgespec.runtime.drafters.growth import GrowingNode, State, TreeDrafter
from edgespec.runtime.drafters.head import HeadDrafter
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT, Proposal

_LEAST = 0.02  # probability of being reached that a node must have to be run ahead
_MOST = 8  # nodes of a call


class AheadDrafter(TreeDrafter):
    """Drafts level by level, and goes on during the target's pass.

    A thread, which no pass outlives and which outlives no pass, runs the nodes of all sequences
    that are most likely reached, by the seconds that they take. It makes no call after the pass has
    ended, which is held up by what is left of the last one. If it fails, the next draft does.
    """

    _context_length: int
    _failure: BaseException | None = None

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        if self._failure is not None:
            raise self._failure
        super().draft(plan)

    def _draft(self, asked: Sequence[PassPart], plan: PassPlan) -> None:
        super()._draft(asked, plan)
        plan.beside.append(self._beside(asked))

    @contextmanager
    def _beside(self, parts: Sequence[PassPart]) -> Iterator[None]:
        """Drafts on a thread of its own inside of the context."""
        ended = threading.Event()

        def run() -> None:
            try:
                while not ended.is_set() and (chosen := self._likeliest(parts)):
                    self._expand(chosen)
            except MemoryLimitError:
                pass  # what there is no room to draft is not drafted
            except BaseException as error:
                self._failure = error

        for part in parts:  # the proposal itself is being verified
            state = self._states[part.generation]
            if state.root is not None:
                self._number(state.root, state, part.generation.remaining)
        thread = threading.Thread(target=run, name="edgespec-draft")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            try:
                thread.join()
            finally:
                thread.join()  # an interrupt waits for the call that is being made

    def _likeliest(self, parts: Sequence[PassPart]) -> list[tuple[GrowingNode, PassPart]]:
        """Returns the nodes to run next, of which most are reached by second; perhaps none."""
        found = []
        for part in parts:
            state = self._states[part.generation]
            most = part.most_nodes
            if state.root is not None and len(state.run) < 2 * most:
                left = self._context_length - state.sequence.length - len(state.root.slots)
                deepest = min(part.generation.remaining, left) - 1
                found += [
                    (node, part)
                    for node in _below(state.root)
                    if not node.children and node.value >= _LEAST and node.depth <= deepest
                ]
        found.sort(key=lambda pair: -pair[0].value)
        sums = list(accumulate([node.value for node, _ in found[:_MOST]]))
        rates = [total / self.model.cost.seconds(rows) for rows, total in enumerate(sums, 1)]
        return found[: rates.index(max(rates)) + 1] if rates else []

    def _go_on(self, state: State, node: GrowingNode, count: int) -> None:
        if node.depth < count or not node.children:  # what may follow the last token is not known
            super()._go_on(state, node, count)
            return
        kept = self._kept(node, count + 1)  # of a head, whose rows are only near, none
        state.sequence.append(kept)
        share = 1 / node.value if node.value else 0.0
        for each in _below(node):
            each.slots = each.slots[len(kept) :]
            each.depth = each.depth - count
            each.value = min(each.value * share, 1.0)
        path = node.slots[len(kept) :]
        run = [*path, *(each.slots[-1] for each in _below(node) if each.children)]
        inside = {*kept, *run}
        self.model.pool.free([slot for slot in state.run if slot not in inside])
        node.parent = None
        node.value = 1.0
        node.depth = 0
        node.number = ROOT
        node.slots = path
        state.root = node
        state.run = run

    def _asked(self, plan: PassPlan) -> list[PassPart]:
        asked = super()._asked(plan)
        for part in plan.drafting:
            state = self._states.get(part.generation)
            if state is None or state.root is None or part in asked:
                continue
            if self._make_room(state, part.depth):
                asked.append(part)  # what was begun costs nothing
        return asked

    def _read(self, asked: Sequence[PassPart], plan: PassPlan) -> None:
        """Takes up the trees that were begun, and reads what is new in the other sequences."""
        unread = []
        for part in asked:
            state = self._states[part.generation]
            if state.root is None:
                unread.append(part)
                continue
            part.begun = True
            self._number(state.root, state, part.depth)
            nodes = (node for node in _below(state.root) if node.depth <= part.depth)
            state.leaves = [node for node in nodes if not node.children]
        if unread:
            super()._read(unread, plan)

    def _number(self, root: GrowingNode, state: State, depth: int) -> None:
        """Makes a proposal of the nodes below a root, so many deep at most."""
        state.proposal = Proposal()
        for node in _below(root):
            if node.depth <= depth and node.parent is not None:
                above = node.parent.number
                node.number = state.proposal.add(above, node.token, node.value, self.name)


class AheadModelDrafter(AheadDrafter, ModelDrafter):
    """Drafts with a smaller model of the same vocabulary, and goes on."""


class AheadHeadDrafter(AheadDrafter, HeadDrafter):
    """Drafts with a head token by token, and goes on: what was begun reads the head's own rows."""

    def _make_room(self, state: State, depth: int) -> bool:
        length = state.sequence.length
        room = super()._make_room(state, depth)
        if state.root is not None and state.sequence.length < length:  # it was behind these rows
            TreeDrafter._go_on(self, state, state.root, 0)
        return room


def _below(root: GrowingNode) -> Iterator[GrowingNode]:
    """Yields all nodes below one, parents before their children."""
    waiting = list(root.children)
    for node in waiting:
        yield node
        waiting += node.children
