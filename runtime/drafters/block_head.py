"""Heads that predict a block of tokens in one call (DFlash, DFlash2, DSpark: 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgespec.bundle import SIGHT, TARGET_FEATURES, Block
from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.drafters.acceptance import Candidates
from edgespec.runtime.drafters.block import Guess, Query
from edgespec.runtime.drafters.reader import DraftReader, DraftSequence
from edgespec.runtime.sequences.model import AFTER, Graph, Rows
from edgespec.runtime.speculation.generation import Generation

_LIKELIEST = 32  # tokens of a position among which the token before decides


class BlockGraph:
    """A block head's graph, whose rows are blocks of their own unless it is told what they are.

    Without that, rows that read features of the target belong to no block.

    Args:
        graph: makes passes.
        width: size of the target's features.

    Attributes:
        graph: see above.
    """

    def __init__(self, graph: Graph, width: int) -> None:
        self.graph = graph
        self._none = np.empty((0, width), np.float32)

    def __call__(self, feeds: Mapping[str, Array]) -> Mapping[str, Floats]:
        """Makes a pass; see `NativeGraph`."""
        usual = -1 if TARGET_FEATURES in feeds else 0
        sight = np.full(len(feeds["input_ids"]), usual, np.int32)
        return self.graph({TARGET_FEATURES: self._none, SIGHT: sight, **feeds})


class Pairs:
    """What the token before a predicted one adds to its logits (DSpark: DeepSeek-AI, 2026).

    Args:
        table: see `Block.pairs`.
        vocab_size: number of tokens that may be before.
        ids: tokens of the rows that follow; None: their numbers.

    Attributes:
        weights: [rank] what the token before tells of how far a prediction can be trusted.
    """

    def __init__(self, table: Floats, vocab_size: int, ids: Ids | None) -> None:
        self._previous = table[:vocab_size]
        self._following = table[vocab_size:-1]
        self.weights = table[-1].astype(np.float32)
        self._rows = None if ids is None else {token: row for row, token in enumerate(ids.tolist())}

    @classmethod
    def read(cls, file: Path, vocab_size: int, ids: Ids | None) -> Pairs:
        """Maps the tables of a file.

        Raises:
            ValueError: if it does not hold such tables.
        """
        table = np.load(file, mmap_mode="r", allow_pickle=False)
        rows = vocab_size + (vocab_size if ids is None else len(ids)) + 1
        if table.ndim != 2 or table.dtype.kind != "f" or len(table) != rows:
            raise ValueError(f"it must have {rows} rows of floats, not {table.dtype} {table.shape}")
        return cls(table, vocab_size, ids)

    def previous(self, token: int) -> Floats:
        """Returns the row of a token before, [rank] float32."""
        row: Floats = self._previous[token].astype(np.float32)
        return row

    def following(self, tokens: Array) -> Floats:
        """Returns rows of tokens that may follow, [..., rank] float32."""
        if self._rows is not None:
            found = [self._rows[token] for token in tokens.ravel().tolist()]
            tokens = np.array(found).reshape(tokens.shape)
        rows: Floats = self._following[tokens].astype(np.float32)
        return rows


@dataclass(frozen=True)
class PairGuess:
    """Candidates whose logits depend on the token before.

    Attributes:
        candidates: one row for each position, before that.
        following: [positions, K, rank] what is added behind a token, as products with its row.
        trust: [positions] logits of how far a position can be trusted, before the token's share;
            None: nobody says.
        pairs: has the rows of tokens before.
    """

    candidates: Candidates
    following: Floats
    trust: Floats | None
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.following)

    def key(self, depth: int, token: int) -> tuple[int, int]:
        """See `Guess`."""
        return depth, token

    def behind(self, depth: int, token: int) -> tuple[Candidates, float]:
        """See `Guess`."""
        before = self.pairs.previous(token)
        given = self.candidates
        tokens = given.tokens[depth]
        old = given.logits[depth]
        total = given.normalizers[depth]
        new = old + self.following[depth] @ before
        order = np.argsort(-new, kind="stable")
        # What the others weigh stays as it is.
        rest = max(1.0 - float(np.exp(old - total).sum()), 0.0)
        peak = max(float(new[order[0]]), float(total))
        weight = float(np.exp(new - peak).sum()) + rest * float(np.exp(total - peak))
        all_ = np.array([peak + np.log(weight)], np.float32)
        row = Candidates(tokens[None, order], new[None, order], all_)
        if self.trust is None:
            return row, 1.0
        logit = float(self.trust[depth]) + float(self.pairs.weights @ before)
        return row, 1 / (1 + float(np.exp(-np.clip(logit, -30, 30))))


class BlockQuery(Query):
    """Asks a head by a block: the newest token and masks, all of which see each other.

    Each row before them that reads features of the target gives its position's keys and values to
    all layers.

    Args:
        mask_token: the token of a mask.
        block: the head's block.
        pairs: what the token before says; None: nothing.
    """

    def __init__(self, mask_token: int, block: Block, pairs: Pairs | None = None) -> None:
        self.most = block.rows - (not block.from_anchor)
        self.fixed_rows = block.rows
        self._masks = [mask_token] * (block.rows - 1)
        self._block = block
        self._pairs = pairs

    def rows(
        self, reader: DraftReader, draft: DraftSequence, tokens: list[int], count: int
    ) -> Rows:
        """See `Query`."""
        rows = reader.chain(draft, tokens, [])
        size = self._block.rows
        first = len(tokens) + size - self.most
        sight = np.concatenate([np.full(len(tokens), -1), np.arange(size)[::-1]])
        return replace(
            rows,
            tokens=[*tokens, draft.generation.tokens[-1], *self._masks],
            parents=[AFTER, *range(len(tokens) + size - 1)],
            wanted=list(range(first, first + count)),
            reads={**rows.reads, SIGHT: sight.astype(np.int32)},
        )

    def guess(
        self, reader: DraftReader, generation: Generation, rows: Rows, logits: Floats
    ) -> Guess:
        """See `Query`."""
        if self._pairs is None:
            return super().guess(reader, generation, rows, logits)
        selects = self._block.selects
        candidates = reader.candidates(generation, logits, width=selects or _LIKELIEST)
        following = self._pairs.following(candidates.tokens)
        trust = None
        if rows.features is not None:
            told = rows.features[rows.wanted]
            if selects:
                following *= told[:, None]
            else:
                trust = told[:, 0]
        return PairGuess(candidates, following, trust, self._pairs)
