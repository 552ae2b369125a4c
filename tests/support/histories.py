"""Random histories of sequences: passes with trees, forks, cuts, branches, and what comes after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from nodes import same_bits

from edgespec.llm.llm import LLM, inside
from edgespec.runtime.sequences.model import AFTER, Rows


def load(path, threads=1):
    """The target of a bundle."""
    llm = LLM(path, draft="none", threads=threads, context=512)
    return inside(llm).engine.target


def chain(sequence, tokens, certain=0):
    count = len(tokens)
    parents = [AFTER, *range(count - 1)][:count]
    return Rows(sequence, tokens, parents, [*range(count)], certain=certain)


def read(sequence, model, certain=0):
    rows = chain(sequence, sequence.unread, certain)
    logits = model.forward([rows])[0]
    rows.accept(range(len(rows.tokens)))
    return logits


def nothing_is_left(model):
    held = model.pool.recurrent
    return model.pool.used == held.rows.used == held.states.used == 0


class History:
    """Random passes over sequences that are forked, cut and resumed.

    Each row's logits are compared with those of its tokens read in one chunk by a new sequence, of
    another model if one is given.
    """

    def __init__(self, model, rng, reference=None, alike=same_bits):
        self.model = model
        self.reference = reference or model
        self.alike = alike
        self.rng = rng
        self.logits = []
        self.sequences = [model.sequence([]) for _ in range(3)]
        self._expected = {}

    def expected(self, tokens):
        if tokens not in self._expected:
            sequence = self.reference.sequence(list(tokens))
            for end, row in enumerate(read(sequence, self.reference), 1):
                self._expected[tokens[:end]] = row
            sequence.free()
        return self._expected[tokens]

    def tokens(self, count):
        return self.rng.integers(1, 300, count).tolist()

    def check(self, rows, logits, before):
        paths = []
        for token, parent, row in zip(rows.tokens, rows.parents, logits, strict=True):
            paths.append((*before, token) if parent < 0 else (*paths[parent], token))
            self.alike(row, self.expected(paths[-1]))
            self.logits.append(row)

    def step(self):
        order = self.rng.permutation(3)[: self.rng.integers(1, 4)]
        chosen = [self.sequences[number] for number in order]
        batch = []
        for sequence in chosen:  # what is to be read, and a tree behind it
            sequence.tokens += self.tokens(self.rng.choice([0, 1, 1, 3, 40]))
            rows = chain(sequence, sequence.unread)
            rows.certain = len(rows.tokens) * int(self.rng.integers(2))
            trunk = len(rows.tokens)
            for _ in range(int(self.rng.integers(trunk == 0, 6))):
                rows.parents.append(int(self.rng.integers(trunk - 1, len(rows.tokens))))
                rows.tokens.append(*self.tokens(1))
            rows.wanted = [*range(len(rows.tokens))]
            batch.append(rows)
        for rows, logits in zip(batch, self.model.forward(batch), strict=True):
            sequence = rows.sequence
            path = [*range(len(rows.sequence.unread))]
            self.check(rows, logits, sequence.tokens[: sequence.length])
            while self.rng.random() < 0.7:
                last = path[-1] if path else AFTER
                children = [n for n, p in enumerate(rows.parents) if p == last and n not in path]
                if not children:
                    break
                path.append(int(self.rng.choice(children)))
                sequence.tokens.append(rows.tokens[path[-1]])
            rows.accept(path)
            assert not sequence.unread

    def draft(self):
        """Two levels behind a sequence, of which one branch becomes part of it or none."""
        sequence = self.sequences[self.rng.integers(3)]
        if sequence.unread:
            return
        before, (first, other, *leaves) = [*sequence.tokens], self.tokens(5)
        level = Rows(sequence, [first, other], [AFTER] * 2, [0, 1])
        self.check(level, self.model.forward([level])[0], before)
        batch = [
            Rows(sequence, leaves[:1], [AFTER], [0], branch=level.slots[1:]),
            Rows(sequence, leaves[1:], [AFTER] * 2, [0, 1], branch=level.slots[:1]),
        ]
        for rows, logits, token in zip(
            batch, self.model.forward(batch), (other, first), strict=True
        ):
            self.check(rows, logits, [*before, token])
        kept = [level.slots[0], batch[1].slots[1]]
        taken = int(self.rng.integers(3))
        sequence.tokens += [first, leaves[2]][:taken]
        sequence.append(kept[:taken])
        self.model.pool.free([level.slots[1], *kept[taken:], *batch[0].slots, batch[1].slots[0]])

    def follow(self):
        """A row is accepted, and one behind it is not, but is followed by another."""
        sequence = self.sequences[self.rng.integers(3)]
        if sequence.unread:
            return
        first, second, third = self.tokens(3)
        pair = chain(sequence, [first, second])
        self.model.forward([pair])
        sequence.append(pair.slots[:1])
        sequence.tokens.append(first)
        last = Rows(sequence, [third], [AFTER], [0], branch=pair.slots[1:])
        self.check(last, self.model.forward([last])[0], [*sequence.tokens, second])
        self.model.pool.free([pair.slots[1], *last.slots])

    def change(self):
        number = self.rng.integers(3)
        sequence = self.sequences[number]
        kind = self.rng.random()
        length = int(self.rng.integers(max(sequence.length - 9, 0), sequence.length + 1))
        if kind < 0.3:
            sequence.cut(length)
            if self.rng.random() < 0.5:  # else it goes on with the same tokens
                del sequence.tokens[length:]
        elif kind < 0.6:
            source = self.sequences[(number + 1) % 3]
            self.sequences[number] = source.fork(length if kind < 0.45 else None)
            sequence.free()
        elif len(sequence.tokens) > 90:
            sequence.free()
            sequence.tokens.clear()

    def run(self, steps):
        for _ in range(steps):
            self.step()
            self.draft()
            self.follow()
            self.change()
        for sequence in self.sequences:
            sequence.free()
        assert nothing_is_left(self.model)


def logits(*folders):
    """The logits of a history of each bundle's target, by the bundle's place."""
    found = {}
    for number, folder in enumerate(folders):
        history = History(load(Path(folder), threads=2), np.random.default_rng(3))
        history.run(6)
        found[str(number)] = np.array(history.logits)
    return found
