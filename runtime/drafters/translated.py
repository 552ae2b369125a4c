"""Drafts by a model of another vocabulary (Timor et al., 2025; see `VocabularyMap`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Bins, Calibration
from edgespec.runtime.drafters.base import SteppingDrafter, TreeBudget
from edgespec.runtime.drafters.calls import ModelCalls
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.ranking import Candidates
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.steps import Steps
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.text.translation import RecodedText, SharedText, continuation
from edgespec.runtime.text.vocabulary_map import MISSING, VocabularyMap
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_UNLIKELY = 30.0  # how far below the whole a candidate stands that is only there to fill a row
_LEAST_SHARE = 1e-3  # of the probability that is left to the shared tokens

# The calibration cell of a target token follows from its value, and from whether it ends the draft.
_VALUES = Bins((0.1, 0.35, 0.65, 0.9))


class SharedCalls:
    """Calls a draft model, in the target's tokens: it proposes those that both vocabularies have.

    This is token-level intersection. Probabilities are those among the shared tokens.

    Args:
        calls: calls of the draft model, in its own tokens.
        vocabularies: the tokens of both.
    """

    root = ()
    apart = True

    def __init__(self, calls: ModelCalls, vocabularies: VocabularyMap) -> None:
        self.lost = False
        self._calls = calls
        self._map = vocabularies
        self._filler = int(vocabularies.to_target.max())  # any shared token
        self.most_rows = calls.most_rows

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Calls`."""
        self._text = SharedText(self._map)
        self._calls.begin(self._text.read(prompt), sampler)

    def restart(self) -> None:
        """See `Calls`."""
        self._calls.restart()

    def slide(self, text: Sequence[int]) -> bool:
        """See `Calls`."""
        return self._calls.slide(self._text.read(text))

    def room(self, length: int, width: int) -> int:
        """See `Calls`: what the text in the draft's own tokens leaves."""
        return self._calls.room(self._text.length, width)

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `Calls`."""
        return self._calls.unread(self._text.read(text))

    def feed(self, text: Sequence[int]) -> Steps[Candidates]:
        """See `Calls`."""
        return self._shared((yield from self._calls.feed(self._text.read(text))))

    def level(self, rows: Rows) -> Steps[Candidates]:
        """See `Calls`."""
        own = self._map.to_draft[np.asarray(rows.tokens)].tolist()
        own_rows = Rows(own, rows.depths, rows.mask, rows.parents)
        return self._shared((yield from self._calls.level(own_rows)))

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """See `Calls`."""
        self._calls.keep(text, drafts)

    def _shared(self, found: Candidates) -> Candidates:
        """Returns the shared candidates, as many for all rows, in the target's tokens."""
        tokens = self._map.to_target[found.tokens]
        lacking = tokens == MISSING
        share = np.exp(found.logits - found.normalizers[:, None])
        left = np.maximum(1 - (share * lacking).sum(axis=1), _LEAST_SHARE)
        normalizers = found.normalizers + np.log(left).astype(np.float32)
        most = max(1, int((~lacking).sum(axis=1).min()))
        first = np.argsort(lacking, axis=1, kind="stable")[:, :most]
        tokens = np.take_along_axis(tokens, first, axis=1)
        logits = np.take_along_axis(found.logits, first, axis=1)
        bare = tokens == MISSING  # rows without any shared candidate
        logits[bare] = np.broadcast_to(normalizers[:, None] - _UNLIKELY, bare.shape)[bare]
        tokens[bare] = self._filler
        return Candidates(tokens, logits, normalizers)


class RecodedCalls(ModelCalls):
    """Calls a draft model for a text whose last tokens may change as it grows."""

    def slide(self, text: Sequence[int]) -> bool:
        """See `Calls`: also discards what was read of an end that has changed."""
        moved = super().slide(text)
        window = list(text[self._first :])
        if window[: self._runner.length] == self._runner.tokens:
            return moved
        self._runner.resume(window)
        return True

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `Calls`; the last token is always read."""
        first = self._beginning(len(text))
        window = text[first:]
        known = self._runner.known(window) if first == self._first else 0
        return self._runner.chunks(len(window) - known)

    def feed(self, text: Sequence[int]) -> Steps[Candidates]:
        """See `Calls`; the last token is read again if nothing has been added to it."""
        window = text[self._first :]
        if self._runner.length >= len(window):
            self._runner.resume(window)
        return super().feed(text)


class RecodedDrafter(SteppingDrafter):
    """Drafts text in a draft model's own tokens, and tokenizes it again for the target.

    This is string-level exact match. The model drafts a tree, and each of its branches becomes a
    branch of the target's tokens. It drafts greedily, because the target's noise belongs to tokens
    that it does not know. A token of the target is worth what the draft's token is worth in which
    it ends.

    Args:
        calls: calls of the draft model.
        vocabularies: the tokens of both.
        calibrations: acceptance of the draft model's tokens, and of the target's made from them.
        name: name in results.
    """

    def __init__(
        self,
        calls: RecodedCalls,
        vocabularies: VocabularyMap,
        calibrations: tuple[Calibration, Calibration],
        name: str = "model",
    ) -> None:
        self.name = name
        own, self._calibration = calibrations
        self._drafter = ModelDrafter(calls, own, name)
        self._map = vocabularies
        self._greedy = Sampler(SamplingOptions(), len(vocabularies.draft.pieces))
        self._drafts = Proposal()
        self._cells: list[int] = []  # calibration cell of each node of `_drafts`

    @property
    def fed(self) -> list[int]:
        """See `ModelDrafter`."""
        return self._drafter.fed

    @property
    def levels(self) -> list[int]:
        """See `ModelDrafter`."""
        return self._drafter.levels

    def unread(self, text: Sequence[int]) -> list[int]:
        """See `ModelDrafter`."""
        return self._drafter.unread(self._recoded.read(text))

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._recoded = RecodedText(self._map)
        self._drafter.begin(self._recoded.read(prompt), self._greedy)

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Drafter.draft`."""
        self._text, self._own = text, self._recoded.read(text)
        drafted = yield from self._drafter.drafting(self._own, budget)
        self._drafts, self._cells = Proposal(begun=drafted.begun), []
        for leaf in sorted(set(range(len(drafted))) - set(drafted.parents)):
            self._add(_branch(drafted, leaf), drafted, budget.max_depth)
        return self._drafts.best(budget.max_nodes)

    def draft_ahead(self) -> bool:
        """See `Drafter`."""
        return self._drafter.draft_ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        self._count(verdict.tokens)
        before = self._own
        after = self._recoded.read([*self._text, *verdict.tokens])
        # Where the text's last tokens have changed, nothing continues what was drafted.
        same = after[: len(before)] == before
        new = tuple(after[len(before) :]) if same else ()
        self._drafter.observe(Verdict((), new), tree, logits)

    def _count(self, tokens: Sequence[int]) -> None:
        """Record which drafted tokens the text has taken, along its way."""
        node, drafts = ROOT, self._drafts
        for token in tokens:
            taken = None
            for child, parent in enumerate(drafts.parents):
                if parent == node:
                    self._calibration.observe(self._cells[child], drafts.tokens[child] == token)
                    if drafts.tokens[child] == token:
                        taken = child
            if taken is None:
                break
            node = taken

    def _add(self, branch: Sequence[int], drafted: Proposal, depth: int) -> None:
        """Add a branch of the draft model's tree to the drafts, at most so many tokens deep."""
        node, value, above = ROOT, 1.0, 1.0
        for token, own, ends in self._retold(branch, drafted)[:depth]:
            edge = min(own / above, 1.0) if above else 0.0
            cell = 2 * _VALUES(edge) + ends
            value *= self._calibration.acceptance(cell, edge)
            node = self._drafts.add(node, token, value, self.name)
            if node == len(self._cells):
                self._cells.append(cell)
            above = own

    def _retold(self, branch: Sequence[int], drafted: Proposal) -> list[tuple[int, float, bool]]:
        """Returns a branch of the draft model's tree in the target's tokens.

        Returns:
            Each token, the value of the draft's token in which it ends, and whether the draft ends
            with it, so that a longer draft might have given another token there.
        """
        target, draft = self._map.target, self._map.draft
        ids = [drafted.tokens[node] for node in branch]
        values = [drafted.values[node] for node in branch]
        plain = next((n for n, id_ in enumerate(ids) if id_ in draft.special), len(ids))
        ends = list(accumulate(len(draft.pieces[id_]) for id_ in ids[:plain]))
        told = continuation(target, self._text, draft.bytes_of(ids[:plain])) if plain else []
        length = ends[-1] if ends else 0
        closed = plain < len(ids)
        retold = [
            (token, values[bisect_left(ends, end)], end == length and not closed)
            for token, end in told
        ]
        if closed and (told[-1][1] if told else 0) == length:  # special tokens stand for themselves
            token = int(self._map.to_target[ids[plain]])
            if token != MISSING:
                retold.append((token, values[plain], False))
        return retold


def _branch(proposal: Proposal, node: int) -> list[int]:
    """Returns the nodes from the root's child down to this one."""
    parent = proposal.parents[node]
    return [*(_branch(proposal, parent) if parent != ROOT else ()), node]
