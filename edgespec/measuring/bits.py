"""Check that a model's logits have the same bits however a text is read.

This property makes drafted text equal to plain decoding. Texts show a difference only at near-ties
of two tokens; the bits of the logits show it at the first row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.speculation.tree import ROOT, TokenTree

CHUNKS = (64, 16, 5)
"""Largest chunk sizes in tokens; the text is read once with each."""

_TREE_ROWS = 16


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


def compare_bits(model: Model, text: Sequence[int], start: int, seed: int = 0) -> Bits:
    """Computes a text's rows alone, and again in chunks, random trees and resumed texts.

    There are no trees for a model whose rows may not branch.

    Args:
        model: target model.
        text: token ids; the rows from `start` on are compared.
        start: number of tokens that are read first, in one pass.
        seed: seed of the chunks, trees and positions to resume at.

    Raises:
        ValueError: if there is no row to compare.
    """
    if not 0 < start < len(text):
        raise ValueError(f"start is {start}: give 1 to {len(text) - 1}")
    alone = Runner(model)
    alone.prefill(text[:start])
    expected = {}
    for place in range(start, len(text)):
        expected[place] = _digest(alone.verify(Rows.chain([text[place]]))["logits"][0])
        alone.commit([0])
    rng = np.random.default_rng(seed)
    methods = {f"chunks of {most}": _in_chunks(model, text, start, most, rng) for most in CHUNKS}
    if model.role.trees:
        methods["trees"] = _in_trees(model, text, start, rng)
    methods["resumed"] = _resumed(model, text, start, rng)
    rows, wrong = 0, []
    for method, found in methods.items():
        for place, digest in found:
            rows += 1
            if digest != expected[place]:
                wrong.append(f"{method} at {place}")
    return Bits(rows, len(wrong), tuple(wrong[:5]))


Found = Iterator[tuple[int, bytes]]
"""Positions, each with a hash of the logits there."""


def _in_chunks(
    model: Model, text: Sequence[int], start: int, most: int, rng: np.random.Generator
) -> Found:
    """Yields the last row of each chunk, as a prompt is read in random chunks."""
    runner, place = Runner(model), start
    runner.prefill(text[:start])
    while place < len(text):
        part = text[place : place + int(rng.integers(1, most + 1))]
        logits = runner.prefill(part)["logits"][0]
        place += len(part)
        yield place - 1, _digest(logits)


def _in_trees(model: Model, text: Sequence[int], start: int, rng: np.random.Generator) -> Found:
    """Yields the text's own branch of random trees, of which random parts are accepted."""
    runner, place = Runner(model), start
    runner.prefill(text[:start])
    while place < len(text):
        depth = int(rng.integers(0, min(_TREE_ROWS, len(text) - place, runner.reach)))
        branch = text[place + 1 : place + 1 + depth]
        tree, own = _random_tree(branch, runner.reach, model.role.vocab_size, rng)
        logits = runner.verify(Rows.tree(text[place], tree))["logits"]
        rows = [0, *(node + 1 for node in own)]
        for number, row in enumerate(rows):
            yield place + number, _digest(logits[row])
        accepted = rows[: int(rng.integers(1, len(rows) + 1))]
        runner.commit(accepted)
        place += len(accepted)


def _random_tree(
    branch: Sequence[int], reach: int, vocab_size: int, rng: np.random.Generator
) -> tuple[TokenTree, list[int]]:
    """Returns a random tree that contains the branch, and the branch's nodes."""
    others = int(rng.integers(0, _TREE_ROWS - len(branch)))
    order = rng.permutation([True] * len(branch) + [False] * others)
    tokens, parents, depths, own = list[int](), list[int](), {ROOT: 0}, list[int]()
    for belongs in order:
        if belongs:
            parent, token = own[-1] if own else ROOT, branch[len(own)]
            own.append(len(tokens))
        else:
            above = [node for node, depth in depths.items() if depth + 1 < reach]
            if not above:
                continue
            parent, token = int(rng.choice(above)), int(rng.integers(vocab_size))
            if token in [t for t, p in zip(tokens, parents, strict=True) if p == parent] or (
                token in branch
            ):
                continue
        depths[len(tokens)] = depths[parent] + 1
        tokens.append(token)
        parents.append(parent)
    return TokenTree(np.array(tokens, np.int64), np.array(parents, np.int64)), own


def _resumed(model: Model, text: Sequence[int], start: int, rng: np.random.Generator) -> Found:
    """Yields rows after a beginning that is kept from a longer text, whose cache was larger."""
    runner = Runner(model)
    for _ in range(4):
        kept = int(rng.integers(start, len(text)))
        other = rng.integers(model.role.vocab_size, size=300).tolist()
        runner.resume([*text[:kept], *other])
        runner.prefill([*text[:kept], *other][runner.length :])
        runner.resume(text[:kept])
        runner.prefill(text[runner.length : kept])
        yield kept, _digest(runner.verify(Rows.chain([text[kept]]))["logits"][0])


def _digest(logits: Floats) -> bytes:
    return blake2b(np.ascontiguousarray(logits).tobytes(), digest_size=16).digest()
