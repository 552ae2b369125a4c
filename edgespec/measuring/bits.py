"""Checks that a model's logits have the same bits however a sequence is read.

This property makes drafted text equal to plain decoding. Texts show a difference only at near-ties
of two tokens; the bits of the logits show it at the first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.pool import TokenSequence

CHUNKS = (64, 16, 5)
"""Largest chunk sizes in tokens; the sequence is read once with each."""

_OWN_ROWS = 6  # most of the sequence's own rows in a tree


@dataclass(frozen=True)
class Bits:
    """Comparison of rows with the same rows computed one at a time.

    Attributes:
        rows: number of compared rows.
        differing: number of rows whose logits differ in any bit.
        where: up to five of these rows, as method and position.
    """

    rows: int
    differing: int
    where: tuple[str, ...]


def compare_bits(model: Model, tokens: Sequence[int], start: int) -> Bits:
    """Computes a sequence's rows one by one, and again in chunks and in trees beside others.

    Args:
        model: a model whose rows should have the same bits in any pass.
        tokens: token ids; the rows from `start` on are compared.
        start: number of tokens that are read first, in one pass; at least 1.
    """
    rng = np.random.default_rng(0)
    expected = dict(_in_chunks(model, tokens, start, 1, rng))  # one by one
    methods = {f"chunks of {n}": _in_chunks(model, tokens, start, n, rng) for n in CHUNKS}
    methods["trees"] = _in_trees(model, tokens, start, rng)
    rows = 0
    wrong = []
    for method, found in methods.items():
        for place, digest in found:
            rows += 1
            if digest != expected[place]:
                wrong.append(f"{method} at {place}")
    return Bits(rows, len(wrong), tuple(wrong[:5]))


Found = Iterator[tuple[int, bytes]]
"""Positions, each with a hash of the logits there."""


def _in_chunks(
    model: Model, tokens: Sequence[int], start: int, most: int, rng: np.random.Generator
) -> Found:
    """Yields the rows of chunks, of random sizes up to `most`."""
    sequence = _begun(model, tokens, start)
    while (place := sequence.length) < len(tokens):
        part = sequence.unread[: int(rng.integers(1, most + 1))]
        rows = _chain(sequence, part)
        logits = model.forward([rows])[0]
        rows.accept(range(len(part)))
        yield from ((place + row, _digest(each)) for row, each in enumerate(logits))
    sequence.free()


def _in_trees(model: Model, tokens: Sequence[int], start: int, rng: np.random.Generator) -> Found:
    """Yields the sequence's own rows of random trees, between a fork's and another sequence's."""
    sequence = _begun(model, tokens, start)
    other = _begun(model, tokens[::-1], start)
    while (place := sequence.length) < len(tokens):
        own = sequence.unread[: int(rng.integers(1, _OWN_ROWS + 1))]
        rows = Rows(sequence, [], [], [])
        path = list[int]()
        while len(path) < len(own):
            if rng.random() < 0.5:  # the sequence's own next row
                rows.parents.append(path[-1] if path else AFTER)
                path.append(len(rows.tokens))
                rows.tokens.append(own[len(path) - 1])
            else:  # a row that leads elsewhere
                rows.parents.append(int(rng.integers(AFTER, len(rows.tokens))))
                rows.tokens.append(int(rng.choice(tokens)))
        rows.wanted = path
        fork = sequence.fork()
        beside = [_chain(fork, own[::-1]), rows, _chain(other, own)]
        logits = model.forward(beside)[1]
        rows.accept(path[: int(rng.integers(1, len(path) + 1))])
        beside[0].accept([])
        beside[2].accept(range(len(own)))
        fork.free()
        yield from ((place + row, _digest(each)) for row, each in enumerate(logits))
    for each in (sequence, other):
        each.free()


def _begun(model: Model, tokens: Sequence[int], start: int) -> TokenSequence:
    """Returns a sequence whose first tokens the model has read."""
    sequence = model.sequence(list(tokens))
    rows = _chain(sequence, sequence.tokens[:start])
    model.forward([rows])
    rows.accept(range(start))
    return sequence


def _chain(sequence: TokenSequence, tokens: list[int]) -> Rows:
    count = len(tokens)
    return Rows(sequence, tokens, [AFTER, *range(count - 1)], list(range(count)))


def _digest(logits: Floats) -> bytes:
    return blake2b(np.ascontiguousarray(logits).tobytes(), digest_size=16).digest()
