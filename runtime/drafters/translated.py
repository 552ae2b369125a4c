"""Drafts by a model of another vocabulary (Timor et al., 2025; see `VocabularyMap`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Bins, Candidates, likeliest
from edgespec.runtime.drafters.levels import GrowingTree, LevelGrower
from edgespec.runtime.drafters.model import Grower
from edgespec.runtime.drafters.reader import DraftSequence, ModelReader, penalized
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.sequences.model import Model, Rows
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import ROOT, Proposal
from edgespec.runtime.text.vocabulary.mapping import MISSING, VocabularyMap
from edgespec.runtime.text.vocabulary.translation import RecodedText, SharedText, continuation

_CANDIDATES = 32  # of the draft's own tokens, of which the shared ones are left
_UNLIKELY = 30.0  # how far below the whole a candidate stands that is only there to fill a row
_LEAST_SHARE = 1e-3  # of the probability that is left to the shared tokens

# The calibration cell of a target token follows from its value, and from whether it ends the draft.
_VALUES = Bins((0.1, 0.35, 0.65, 0.9))


class SharedReader(ModelReader):
    """Reads with a model some of whose tokens the target has, too: token-level intersection.

    Only these are drafted. Their probabilities are those among the shared tokens, under the
    target's own noise.

    Args:
        model: the draft model.
        context_length: largest number of its own tokens that it can read.
        vocabularies: the tokens of both.
    """

    def __init__(self, model: Model, context_length: int, vocabularies: VocabularyMap) -> None:
        super().__init__(model, context_length)
        self._map = vocabularies
        self._greedy = Sampler(SamplingOptions(), len(vocabularies.draft.pieces))
        self._filler = int(vocabularies.to_target.max())  # any shared token
        self._texts = dict[Generation, SharedText]()

    def begin(self, generation: Generation) -> DraftSequence:
        """See `DraftReader`."""
        self._texts[generation] = text = SharedText(self._map)
        return DraftSequence(generation, self.model.sequence(text.read(generation.tokens)))

    def end(self, draft: DraftSequence) -> None:
        """See `DraftReader`."""
        # Its last tokens are the draft's, too, or rows were left without the tokens they are of.
        self._texts.pop(draft.generation).read(draft.generation.tokens)
        super().end(draft)

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `DraftReader`."""
        # The sequence's tokens are the text's list, which grows with it.
        self._texts[draft.generation].read(draft.generation.tokens)
        return super().make_room(draft, depth)

    def level(
        self, draft: DraftSequence, tokens: list[int], slots: list[int], features: Floats | None
    ) -> Rows:
        """See `DraftReader`."""
        return super().level(draft, self._map.to_draft[tokens].tolist(), slots, features)

    def candidates(
        self,
        generation: Generation,
        logits: Floats,
        branches: Iterable[Sequence[int]] = (),
        width: int = 0,
    ) -> Candidates:
        """See `DraftReader`: the shared candidates, as many for all rows."""
        logits = penalized(generation, logits, branches, self._map.to_target)
        found = likeliest(logits, self._greedy, _CANDIDATES)
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


class RecodedReader(ModelReader):
    """Reads with a model that has other tokens than the target, as which it knows the texts.

    It drafts greedily, and without penalties, because noise and penalties of the target belong to
    tokens that it does not know.

    Args:
        model: the draft model.
        context_length: largest number of its own tokens that it can read.
        vocabularies: the tokens of both.

    Attributes:
        vocabularies: see above.
    """

    def __init__(self, model: Model, context_length: int, vocabularies: VocabularyMap) -> None:
        super().__init__(model, context_length)
        self.vocabularies = vocabularies
        self._greedy = Sampler(SamplingOptions(), len(vocabularies.draft.pieces))
        self._texts = dict[Generation, RecodedText]()

    def begin(self, generation: Generation) -> DraftSequence:
        """See `DraftReader`."""
        self._texts[generation] = RecodedText(self.vocabularies)
        return DraftSequence(generation, self.model.sequence([]))

    def end(self, draft: DraftSequence) -> None:
        """See `DraftReader`."""
        super().end(draft)
        del self._texts[draft.generation]

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `DraftReader`. Takes the new tokens over, and forgets an end that has changed."""
        sequence = draft.sequence
        tokens = self.own_tokens(draft.generation)
        same = min(sequence.length, len(tokens) - 1)  # the last token is always read
        while sequence.tokens[:same] != tokens[:same]:
            same -= 1
        sequence.cut(same)
        sequence.tokens[:] = tokens
        return super().make_room(draft, depth)

    def sampler(self, generation: Generation) -> Sampler:
        """See `DraftReader`."""
        return self._greedy

    def candidates(
        self,
        generation: Generation,
        logits: Floats,
        branches: Iterable[Sequence[int]] = (),
        width: int = 0,
    ) -> Candidates:
        """See `DraftReader`."""
        return likeliest(logits, self._greedy, max(width, generation.request.limits.width))

    def own_tokens(self, generation: Generation) -> list[int]:
        """Returns the tokens of a generation as the draft model knows it."""
        return self._texts[generation].read(generation.tokens)


@dataclass(eq=False, slots=True)
class _Translation:
    """What was drafted of a generation, in the target's tokens.

    Attributes:
        tokens: those that this round's branches gave.
        cells: cell of each of them.
    """

    tokens: Proposal = field(default_factory=Proposal)
    cells: list[int] = field(default_factory=list)


class RecodedGrower(Grower):
    """Tokenizes what a model drafts again: string-level exact match.

    The model drafts a tree, and each of its branches becomes a branch of the target's tokens. A
    token of the target is worth what the draft's token is worth in which it ends.

    Args:
        name: see `Grower`.
        reader: what drafts.
    """

    def __init__(self, name: str, reader: RecodedReader) -> None:
        super().__init__(name, reader)
        self._own = LevelGrower(name, reader)
        self._own_tokens = reader.own_tokens
        self._map = reader.vocabularies
        self._translations = dict[Generation, _Translation]()

    def begin(self, draft: DraftSequence) -> None:
        """See `Grower`."""
        self._own.begin(draft)
        self._translations[draft.generation] = _Translation()

    def grow(self, parts: Sequence[PassPart], plan: PassPlan) -> None:
        """See `Grower`."""
        cheaper = [part.proposal for part in parts]
        try:
            self._own.grow(parts, plan)
        finally:
            for part, others in zip(parts, cheaper, strict=True):
                tree = self._own.trees[part.generation]
                if tree.draft.drafted:
                    part.proposal = self._translated(tree, part.depth)
                    part.proposal.graft(others)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Grower`."""
        tree = self._own.trees[generation]
        translation = self._translations[generation]
        path = _Path(translation.tokens, translation.cells)
        self.acceptances.of(generation).count(reading.tokens, path)
        before = tree.draft.sequence.tokens
        after = self._own_tokens(generation)
        # Where the last tokens have changed, nothing continues what was drafted.
        new = after[len(before) :] if after[: len(before)] == before else []
        self._own.observe(generation, replace(reading, tokens=new))
        tree.draft.sequence.tokens += new

    def end(self, generation: Generation) -> None:
        """See `Grower`."""
        self._own.end(generation)
        del self._translations[generation]

    def forget(self) -> None:
        """See `Grower`."""
        super().forget()
        self._own.forget()

    def _translated(self, tree: GrowingTree, depth: int) -> Proposal:
        """Returns the branches of the model's tree in the target's tokens, so many deep at most."""
        drafted = tree.proposal
        generation = tree.draft.generation
        self._translations[generation] = translation = _Translation()
        table = self.acceptances.of(generation)
        for leaf in sorted(set(range(len(drafted))) - set(drafted.parents)):
            node = ROOT
            value = 1.0
            above = 1.0
            for token, own, ends in self._tokens(tree, drafted.path(leaf))[:depth]:
                edge = min(own / above, 1.0) if above else 0.0
                cell = 2 * _VALUES(edge) + ends
                value *= table.acceptance(cell, edge)
                node = translation.tokens.add(node, token, value, self.name)
                if node == len(translation.cells):
                    translation.cells.append(cell)
                above = own
        proposal = Proposal()
        proposal.graft(translation.tokens)
        return proposal

    def _tokens(self, tree: GrowingTree, branch: Sequence[int]) -> list[tuple[int, float, bool]]:
        """Returns a branch of the draft model's tree in the target's tokens.

        Returns:
            Each token, the value of the draft's token in which it ends, and whether the draft ends
            with it, so that a longer draft might have given another token there.
        """
        target = self._map.target
        draft = self._map.draft
        text = tree.draft.generation.tokens
        ids = [tree.proposal.tokens[node] for node in branch]
        values = [tree.proposal.values[node] for node in branch]
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
