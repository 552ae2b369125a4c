"""Drafts by a model of another vocabulary (Timor et al., 2025; see `VocabularyMap`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Acceptances, Bins
from edgespec.runtime.drafters.growth import GrowingNode, State
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.ranking import Candidates
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.model import Model, Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.tree import ROOT, Proposal
from edgespec.runtime.text.vocabulary.mapping import MISSING, VocabularyMap
from edgespec.runtime.text.vocabulary.translation import RecodedText, SharedText, continuation

_CANDIDATES = 32  # of the draft's own tokens, of which the shared ones are left
_UNLIKELY = 30.0  # how far below the whole a candidate stands that is only there to fill a row
_LEAST_SHARE = 1e-3  # of the probability that is left to the shared tokens

# The calibration cell of a target token follows from its value, and from whether it ends the draft.
_VALUES = Bins((0.1, 0.35, 0.65, 0.9))


class SharedDrafter(ModelDrafter):
    """Drafts those tokens that both vocabularies have: token-level intersection.

    Probabilities are those among the shared tokens, under the target's own noise.

    Args:
        model: the draft model.
        context_length: largest number of its own tokens that it can read.
        vocabularies: the tokens of both.
    """

    def __init__(self, model: Model, context_length: int, vocabularies: VocabularyMap) -> None:
        super().__init__(model, context_length)
        self._map = vocabularies
        self._greedy = Sampler(SamplingOptions(), len(vocabularies.draft.pieces))
        self._columns = vocabularies.to_target
        self._filler = int(vocabularies.to_target.max())  # any shared token
        self._texts = dict[TokenSequence, SharedText]()

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        sequence = self._states[generation].sequence
        # Its last tokens are the draft's, too, or rows were left without the tokens they are of.
        self._texts.pop(sequence).read(generation.tokens)
        super().end(generation)

    def _sequence(self, generation: Generation) -> TokenSequence:
        text = SharedText(self._map)
        sequence = self.model.sequence(text.read(generation.tokens))
        self._texts[sequence] = text
        return sequence

    def _make_room(self, state: State, depth: int) -> bool:
        # The sequence's tokens are the text's list, which grows with it.
        self._texts[state.sequence].read(state.generation.tokens)
        return super()._make_room(state, depth)

    def _level(self, state: State, nodes: Sequence[GrowingNode]) -> Rows:
        rows = super()._level(state, nodes)
        return replace(rows, tokens=self._map.to_draft[rows.tokens].tolist())

    def _candidates(self, logits: Floats, sampler: Sampler, width: int) -> Candidates:
        """Returns the shared candidates, as many for all rows, in the target's tokens."""
        found = super()._candidates(logits, self._greedy, _CANDIDATES)
        tokens = self._map.to_target[found.tokens]
        lacking = tokens == MISSING
        share = np.exp(found.logits - found.normalizers[:, None])
        left = np.maximum(1 - (share * lacking).sum(axis=1), _LEAST_SHARE)
        normalizers = found.normalizers + np.log(left).astype(np.float32)
        most = max(1, int((~lacking).sum(axis=1).min()))
        first = np.argsort(lacking, axis=1, kind="stable")[:, :most]
        tokens = np.take_along_axis(tokens, first, axis=1)
        scores = np.take_along_axis(found.logits, first, axis=1)
        bare = tokens == MISSING  # rows without any shared candidate
        scores[bare] = np.broadcast_to(normalizers[:, None] - _UNLIKELY, bare.shape)[bare]
        tokens[bare] = self._filler
        return Candidates(tokens, scores, normalizers)


@dataclass(eq=False, slots=True)
class _Translation:
    """A generation in the draft's tokens, and what was drafted of it in the target's.

    Attributes:
        text: encodes it.
        drafts: the target's tokens that this round's branches gave.
        cells: calibration cell of each of them.
    """

    text: RecodedText
    drafts: Proposal = field(default_factory=Proposal)
    cells: list[int] = field(default_factory=list)


class RecodedDrafter(ModelDrafter):
    """Drafts in the draft model's own tokens, which are tokenized again: string-level exact match.

    The model drafts a tree, and each of its branches becomes a branch of the target's tokens. It
    drafts greedily, because the target's noise belongs to tokens that it does not know. A token of
    the target is worth what the draft's token is worth in which it ends.

    Args:
        model: the draft model.
        context_length: largest number of its own tokens that it can read.
        vocabularies: the tokens of both.
    """

    def __init__(self, model: Model, context_length: int, vocabularies: VocabularyMap) -> None:
        super().__init__(model, context_length)
        self._map = vocabularies
        self._greedy = Sampler(SamplingOptions(), len(vocabularies.draft.pieces))
        self._told = dict[Generation, _Translation]()

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        cheaper = [part.proposal for part in plan.drafting]
        super().draft(plan)
        for part, others in zip(plan.drafting, cheaper, strict=True):
            state = self._states.get(part.generation)
            if state is not None and state.root is not None:
                part.proposal = Proposal()
                part.proposal.graft(self._retell(state, part.depth))
                part.proposal.graft(others)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`."""
        state = self._states[generation]
        if state.root is None:
            return
        told = self._told[generation]
        path = _Path(told.drafts, told.cells)
        self._retold.of(generation).count(reading.tokens, path)
        before = state.sequence.tokens
        after = told.text.read(generation.tokens)
        # Where the last tokens have changed, nothing continues what was drafted.
        new = after[len(before) :] if after[: len(before)] == before else []
        super().observe(generation, replace(reading, tokens=new))
        state.sequence.tokens += new

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        super().end(generation)
        del self._told[generation]

    def forget(self) -> None:
        """See `Drafter`."""
        super().forget()
        self._retold = Acceptances()

    def _sequence(self, generation: Generation) -> TokenSequence:
        self._told[generation] = _Translation(RecodedText(self._map))
        return self.model.sequence([])

    def _make_room(self, state: State, depth: int) -> bool:
        """Takes the new tokens over, and forgets what was read of an end that has changed."""
        sequence = state.sequence
        tokens = self._told[state.generation].text.read(state.generation.tokens)
        same = min(sequence.length, len(tokens) - 1)  # the last token is always read
        while sequence.tokens[:same] != tokens[:same]:
            same -= 1
        sequence.cut(same)
        sequence.tokens[:] = tokens
        return super()._make_room(state, depth)

    def _sampler(self, generation: Generation) -> Sampler:
        return self._greedy

    def _penalized(
        self, generation: Generation, logits: Floats, nodes: Sequence[GrowingNode] = ()
    ) -> Floats:
        return logits  # penalties are for the target's tokens

    def _retell(self, state: State, depth: int) -> Proposal:
        """Returns the branches of the model's tree in the target's tokens, so many deep at most."""
        drafted = state.proposal
        told = self._told[state.generation]
        told.drafts = Proposal()
        told.cells = []
        table = self._retold.of(state.generation)
        for leaf in sorted(set(range(len(drafted))) - set(drafted.parents)):
            node = ROOT
            value = 1.0
            above = 1.0
            branch = _branch(drafted, leaf)
            for token, own, ends in self._tokens(state, branch)[:depth]:
                edge = min(own / above, 1.0) if above else 0.0
                cell = 2 * _VALUES(edge) + ends
                value *= table.acceptance(cell, edge)
                node = told.drafts.add(node, token, value, self.name)
                if node == len(told.cells):
                    told.cells.append(cell)
                above = own
        return told.drafts

    def _tokens(self, state: State, branch: Sequence[int]) -> list[tuple[int, float, bool]]:
        """Returns a branch of the draft model's tree in the target's tokens.

        Returns:
            Each token, the value of the draft's token in which it ends, and whether the draft ends
            with it, so that a longer draft might have given another token there.
        """
        target = self._map.target
        draft = self._map.draft
        text = state.generation.tokens
        ids = [state.proposal.tokens[node] for node in branch]
        values = [state.proposal.values[node] for node in branch]
        plain = next((n for n, id_ in enumerate(ids) if id_ in draft.special), len(ids))
        ends = list(accumulate(len(draft.pieces[id_]) for id_ in ids[:plain]))
        told = continuation(target, text, draft.bytes_of(ids[:plain])) if plain else []
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


@dataclass
class _Path:
    """A path along the target's choices through what was drafted.

    Attributes:
        drafts: the target's tokens that were drafted.
        cells: cell of each of them.
        node: end of the path.
    """

    drafts: Proposal
    cells: list[int]
    node: int = ROOT

    def edges(self) -> list[tuple[int, int]]:
        """See `Expectation`."""
        tokens = self.drafts.tokens
        parents = enumerate(self.drafts.parents)
        return [(tokens[n], self.cells[n]) for n, parent in parents if parent == self.node]

    def follow(self, token: int) -> bool:
        """See `Expectation`."""
        child = self.drafts.child(self.node, token)
        if child is None:
            return False
        self.node = child
        return True


def _branch(proposal: Proposal, node: int) -> list[int]:
    """Returns the nodes from the root's child down to this one."""
    parent = proposal.parents[node]
    return [*(_branch(proposal, parent) if parent != ROOT else ()), node]
