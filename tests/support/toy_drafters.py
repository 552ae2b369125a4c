"""A drafter of each kind over toy models, and requests that it drafts for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from engines import request
from toys import VOCABULARY, Given, ToyGraph, features, toy_shape

from edgespec.bundle import Block
from edgespec.runtime.drafters.ahead import AheadGrower
from edgespec.runtime.drafters.block import BlockGrower
from edgespec.runtime.drafters.block_head import BlockGraph, BlockQuery, Pairs
from edgespec.runtime.drafters.frequent import FrequentTokens
from edgespec.runtime.drafters.grammar import GrammarDrafter
from edgespec.runtime.drafters.head import HeadGraph, HeadReader
from edgespec.runtime.drafters.levels import LevelGrower
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.masks import HeadMaskQuery, MaskQuery
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.prediction import PredictionDrafter
from edgespec.runtime.drafters.reader import ModelReader
from edgespec.runtime.drafters.recycling import RecyclingDrafter, Successors
from edgespec.runtime.drafters.shared_pool import (
    AssistantGraph,
    AssistantReader,
    SharedPoolReader,
)
from edgespec.runtime.drafters.translated import RecodedGrower, RecodedReader, SharedReader
from edgespec.runtime.sequences.model import Model
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.text.vocabulary.mapping import VocabularyMap

MASK = VOCABULARY + 1
BLOCK = 6  # rows of a block


class ToyHead(ToyGraph):
    """A head that checks that each row reads the features of the token before its own."""

    def __init__(self, noise):
        super().__init__(noise)
        # by slot; of what a row sees
        self.positions = {}
        self.longest = 0

    def __call__(self, feeds):
        outputs = super().__call__(feeds)
        read = np.concatenate((feeds["target_features"], feeds["own_features"])).astype(int)
        assert len(read) == len(feeds["input_ids"])
        self.longest = max(self.longest, *map(len, self.seen))
        for (position, token), slots in zip(read, self.seen, strict=True):
            self.positions[slots[-1]] = position + 1
            if len(slots) > 1:
                assert self.positions[slots[-2]] == position
                assert feeds["pool.0"][0, 0, slots[-2], 0] == token + 1
        return {**outputs, "features": features(read[:, 0] + 1, feeds["input_ids"])}

    def logits(self, tokens):
        return super().logits(np.concatenate(([1], tokens)))  # the first one has no row


class ToyAssistant(ToyGraph):
    """A head that sees the target's rows, and knows what was drafted by its own features."""

    def __call__(self, feeds):
        pool = feeds["pool.0"][0, 0, :, 0]
        starts = feeds["starts"]
        paths = []
        for own in feeds["own_features"].astype(int):
            length, *last = own.tolist()
            paths.append(([1] * length + last)[-length:])
        for row, (position, token) in enumerate(feeds["target_features"].astype(int)):
            owner = feeds["sequence"][row]
            slots = [*feeds["context"][starts[owner] : starts[owner + 1]], feeds["write"][row]]
            paths.append(pool[slots].tolist())
            assert (len(slots) - 1, paths[-1][-1]) == (position, token + 1)
        self.calls.append(len(paths))
        ids = feeds["input_ids"].tolist()
        paths = [[*path, token + 1] for path, token in zip(paths, ids, strict=True)]
        rows = [self.logits(np.array(paths[row])) for row in feeds["logit_rows"].tolist()]
        own = [[len(path), *([1, 1, *path][-3:])] for path in paths]
        return {
            "logits": np.array(rows, np.float32).reshape(-1, VOCABULARY + 3),
            "features": np.array(own, np.float32),
        }


class ToyMasks(ToyGraph):
    """A toy that knows what follows masks: what it would choose itself, token by token."""

    def logits(self, tokens):
        known = [token for token in tokens if token != MASK + 1]
        for _ in range(len(tokens) - len(known)):
            best = super().logits(np.array(known))[:VOCABULARY].argmax()
            known.append(best + 1)
        return super().logits(np.array(known))


class ToyMaskHead(ToyMasks):
    """The same as a head, which has no row of the first token."""

    def logits(self, tokens):
        return super().logits(np.concatenate(([1], tokens)))


class ToyBlocks(ToyGraph):
    """Knows what follows the newest token, from features that it checks and keeps by slot."""

    def __init__(self, from_anchor, noise, trust):
        super().__init__(noise)
        self.from_anchor = from_anchor
        self.trust = trust
        self.tokens = {}
        self.places = {}

    def __call__(self, feeds):
        super().__call__(feeds)
        sight = feeds["sight"].tolist()
        ids = feeds["input_ids"].tolist()
        reading = iter(feeds["target_features"].astype(int).tolist())
        rows = []
        chosen = feeds["logit_rows"].tolist()
        for row, slots in enumerate(self.seen):
            if sight[row] < 0:
                place, token = next(reading)
                if len(slots) > 1:
                    assert self.places[slots[-2]] == place - 1
                self.tokens[slots[-1]], self.places[slots[-1]] = token, place
            elif ids[row] == MASK:
                assert sight[row] == sight[row - 1] - 1
        assert next(reading, None) is None
        for row in chosen:
            first = row - (BLOCK - 1 - sight[row])
            before = self.seen[first][:-1]
            text = [*(self.tokens.get(slot, 0) for slot in before), ids[first]]
            for _ in range(row - first + self.from_anchor - 1):
                text.append(int(super().logits(np.array(text) + 1)[:VOCABULARY].argmax()))
            rows.append(super().logits(np.array(text) + 1))
        logits = np.array(rows, np.float32).reshape(-1, VOCABULARY + 3)
        if self.trust is None:
            return {"logits": logits}
        return {"logits": logits, "features": np.full((len(ids), 1), self.trust, np.float32)}


class FirstTokens(ToyGraph):
    """Scores the first tokens alone."""

    def __init__(self, noise, count):
        super().__init__(noise)
        self.count = count

    def __call__(self, feeds):
        return {"logits": super().__call__(feeds)["logits"][:, : self.count]}


class Foreign(ToyGraph):
    """A toy whose tokens are numbered in another order."""

    order = np.random.default_rng(8).permutation(VOCABULARY)  # by its own token, the target's

    def __call__(self, feeds):
        outputs = super().__call__({**feeds, "input_ids": self.order[feeds["input_ids"]]})
        return {"logits": outputs["logits"][:, self.order]}


class ToyVocabulary:
    """Tokens of one letter each, or of none that another vocabulary has."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.words = {piece: token for token, piece in enumerate(pieces)}
        self.names = {}
        self.special = frozenset()
        self.beginning = ()

    def bytes_of(self, tokens):
        return b"".join([self.pieces[token] for token in tokens])

    def encode(self, data):
        found = [self.words.get(bytes([byte])) for byte in data]
        return [token for token in found if token is not None]


def foreign_vocabularies(missing=5):
    """The target's tokens, and those of `Foreign` models, of which some have no counterpart."""
    letters = [bytes([48 + token]) for token in range(VOCABULARY)]
    own = [letters[token] for token in Foreign.order]
    own[:missing] = [b"~" * (2 + token) for token in range(missing)]
    return VocabularyMap(ToyVocabulary(letters), ToyVocabulary(own))


def pairs_of(rank=4, seed=1, size=0.0, weights=0.0):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(2 * (VOCABULARY + 3) + 1, rank)) * size
    table[-1] = weights
    return Pairs(table.astype(np.float32), VOCABULARY + 3, None)


@dataclass
class Setting:
    """What a drafter is made for.

    Attributes:
        target: the target, whose features are those of `tapped_model`.
        noise: how much the draft model differs from it.
        context: largest number of rows of the draft model.
        limit: largest number of slots of its own pool; None for any.
        cost: seconds of its passes, of one row and of a further one.
    """

    target: Model
    noise: float = 0.05
    context: int = 1000
    limit: int | None = None
    cost: tuple[float, float] = (0.05, 0.01)

    def model(self, graph, pool=None):
        made = Model(graph, pool or KVPool([toy_shape()], "fp32", self.limit), [])
        made.cost = Given(*self.cost)
        return made

    def reader(self, frequent=None):
        """Reads with a model of the target's vocabulary."""
        return ModelReader(self.model(ToyGraph(self.noise)), self.context, None, frequent)

    def head_reader(self):
        return HeadReader(self.model(HeadGraph(ToyHead(self.noise), 2, 2)), self.context)


def by_masks(how):
    reader = ModelReader(how.model(ToyMasks(how.noise)), how.context)
    return ModelDrafter(BlockGrower("parallel", reader, MaskQuery(MASK)))


def by_head_masks(how):
    reader = HeadReader(how.model(HeadGraph(ToyMaskHead(how.noise), 2, 2)), how.context)
    query = HeadMaskQuery(MASK, np.full(2, -1, np.float32), 6)
    return ModelDrafter(BlockGrower("head", reader, query))


def by_block(how, from_anchor=False, pairs=None, trust=None):
    graph = BlockGraph(ToyBlocks(from_anchor, how.noise, trust), 2)
    reader = HeadReader(how.model(graph), how.context - BLOCK)
    return ModelDrafter(
        BlockGrower("head", reader, BlockQuery(MASK, Block(BLOCK, from_anchor), pairs))
    )


def by_shared_tokens(how):
    model = how.model(Foreign(how.noise))
    return ModelDrafter(
        LevelGrower("model", SharedReader(model, how.context, foreign_vocabularies()))
    )


def by_recoded_text(how):
    model = how.model(Foreign(how.noise))
    reader = RecodedReader(model, how.context, foreign_vocabularies(missing=0))
    return ModelDrafter(RecodedGrower("model", reader))


def by_part(how):
    model = how.model(ToyGraph(how.noise), how.target.pool)
    return ModelDrafter(LevelGrower("layer-skip", SharedPoolReader(model)))


def by_assistant(how):
    graph = AssistantGraph(ToyAssistant(how.noise), 2, 4)
    return ModelDrafter(LevelGrower("head", AssistantReader(how.model(graph, how.target.pool))))


def by_frequent_tokens(how, count=49):
    frequent = FrequentTokens(FirstTokens(how.noise, count), count)
    return ModelDrafter(LevelGrower("model", how.reader(frequent)))


MODEL_KINDS = {
    "model": lambda how: ModelDrafter(LevelGrower("model", how.reader())),
    "model-ahead": lambda how: ModelDrafter(AheadGrower("model", how.reader())),
    "frequent": by_frequent_tokens,
    "masks": by_masks,
    "head": lambda how: ModelDrafter(LevelGrower("head", how.head_reader())),
    "head-ahead": lambda how: ModelDrafter(AheadGrower("head", how.head_reader())),
    "head-masks": by_head_masks,
    "dflash": by_block,
    "dspark": lambda how: by_block(how, from_anchor=True, pairs=pairs_of(size=0.3), trust=2.0),
    "shared": by_shared_tokens,
    "recoded": by_recoded_text,
    "layer-skip": by_part,
    "assistant": by_assistant,
}
"""What drafts with a model, by a name of its own."""

KINDS = {
    "prediction": lambda how: PredictionDrafter(),
    "lookup": lambda how: LookupDrafter(),
    "recycling": lambda how: RecyclingDrafter(lambda: Successors(VOCABULARY)),
    "grammar": lambda how: GrammarDrafter(),
    **MODEL_KINDS,
}
"""All drafters."""


class RowsGrammar:
    """A grammar of rows: any token below 10, then 40, 41, 42."""

    ROW = (range(10), (40,), (41,), (42,))

    def __init__(self):
        self.place = 0

    def allowed(self):
        allowed = np.zeros(VOCABULARY, np.bool_)
        allowed[list(self.ROW[self.place])] = True
        return allowed

    def advance(self, token):
        assert token in self.ROW[self.place]
        self.place = (self.place + 1) % 4

    def forced(self):
        return [] if self.place == 0 else [40, 41, 42][self.place - 1 :]

    def valid(self, tokens):
        for count, token in enumerate(tokens):
            if token not in self.ROW[(self.place + count) % 4]:
                return count
        return len(tokens)


def request_for(kind, prompt=(1, 2, 3), n=40, **how):
    """A request for which a kind of drafter drafts, new each time."""
    if kind == "grammar":
        how["grammar"] = RowsGrammar()
    if kind == "prediction":
        how["prediction"] = [9, 8, 7, *range(40)]
    return request(prompt, n, **how)
