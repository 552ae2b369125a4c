from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from toys import toy_shape

from edgespec.errors import MemoryLimitError
from edgespec.runtime.sequences.pool import KVPool, TokenSequence
from edgespec.runtime.sequences.prefixes import PrefixTree


def tree_of(limit=None):
    pool = KVPool([toy_shape()], "fp32", limit)
    return pool, PrefixTree(pool)


def read(pool, tree, tokens):
    """A sequence that shares what it can, and has read the rest; each row tells its whole path."""
    sequence = TokenSequence(pool, list(tokens))
    tree.extend(sequence, len(tokens) - 1)
    slots = pool.take(len(sequence.unread))
    for place, slot in enumerate(slots, sequence.length + 1):
        pool.arrays["pool.0"][:, :, slot] = path_number(tokens[:place])
    sequence.append(slots)
    return sequence


def path_number(tokens):
    return hash(tuple(tokens)) % 65521


def leave(tree, sequence):
    tree.add(sequence)
    sequence.free()


def shared(pool, tree, tokens):
    sequence = TokenSequence(pool, list(tokens))
    number = tree.extend(sequence, len(tokens))
    sequence.free()
    return number


def test_the_longest_known_beginning_is_shared():
    pool, tree = tree_of()
    for tokens in ([1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3, 4, 5, 6, 7], [8]):
        leave(tree, read(pool, tree, tokens))
    assert pool.used == 9
    for tokens, number in (
        ([1, 2, 3, 4, 5, 6, 7, 8], 7),
        ([1, 2, 3, 9, 4], 4),
        ([1, 2, 7], 2),
        ([2], 0),
        ([8], 1),
    ):
        assert shared(pool, tree, tokens) == number
    tree.clear()
    assert pool.used == 0


def test_one_sequence_that_was_read_twice_is_held_once():
    pool, tree = tree_of()
    one, other = (TokenSequence(pool, [1, 2, 3]) for _ in range(2))
    for each in (one, other):
        each.append(pool.take(3))
    tree.add(one)
    tree.add(other)
    assert other.slots.tolist() == one.slots.tolist()
    assert pool.used == 3


def test_the_least_recently_used_end_goes_first():
    pool, tree = tree_of(limit=10)
    for tokens in ([1, 2, 3, 4], [1, 2, 5, 6], [7, 8, 9, 10]):
        leave(tree, read(pool, tree, tokens))
    assert shared(pool, tree, [1, 2, 3, 4]) == 4
    kept = read(pool, tree, [7, 8, 11])  # 7 and 8 are used now, 9 and 10 are not
    assert pool.used == 10
    known = ([1, 2, 3, 4], [1, 2, 5, 6], [7, 8, 9, 10], [7, 8, 11])
    assert [shared(pool, tree, each) for each in known] == [4, 3, 4, 2]
    taken = pool.take(5)  # of those that were looked for first
    assert [shared(pool, tree, each) for each in known] == [0, 0, 4, 2]
    taken += pool.take(2)
    assert pool.used == 10
    with pytest.raises(MemoryLimitError):
        pool.take(1)  # the others are in use
    assert kept.length == 3
    pool.free(taken)


def test_what_is_kept_is_evicted_last():
    pool, tree = tree_of(limit=12)
    one = TokenSequence(pool, [])
    two = TokenSequence(pool, [])
    for kept, tokens in ((one, [1, 2, 3]), (two, [4, 5, 6])):
        sequence = read(pool, tree, tokens)
        tree.add(sequence)
        tree.keep(kept, sequence)
        sequence.free()
    leave(tree, read(pool, tree, [7, 8, 9]))
    pool.free(pool.take(6))
    assert (one.length, two.length, shared(pool, tree, [7, 8, 9])) == (3, 3, 0)
    pool.free(pool.take(7))
    assert (one.length, two.length) == (0, 3)
    tree.drop(two)
    tree.clear()
    assert pool.used == 0


class Leftovers(RuleBasedStateMachine):
    """Any history: slots hold what belongs to their tokens, and no slot is lost or used twice."""

    def __init__(self):
        super().__init__()
        self.pool, self.tree = tree_of(limit=60)
        self.running, self.kept = [], [TokenSequence(self.pool, []) for _ in range(2)]

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=9))
    def begin(self, tokens):
        if sum(each.length for each in self.running) <= 40:
            self.running.append(read(self.pool, self.tree, tokens))

    @rule(data=st.data())
    def add(self, data):
        if self.running:
            self.tree.add(data.draw(st.sampled_from(self.running)))

    @rule(data=st.data(), keeps=st.none() | st.integers(0, 1))
    def end(self, data, keeps):
        if self.running:
            number = data.draw(st.integers(0, len(self.running) - 1))
            sequence = self.running.pop(number)
            self.tree.add(sequence)
            if keeps is not None:
                self.tree.keep(self.kept[keeps], sequence)
            sequence.free()

    @rule(number=st.integers(1, 60))
    def evict(self, number):
        used = self.pool.used
        held = {slot for each in self.running for slot in each.slots.tolist()}
        self.tree.evict(number)
        assert used - self.pool.used == min(number, used - len(held))

    @invariant()
    def rows_are_those_of_their_tokens(self):
        for each in (*self.running, *self.kept):
            paths = [path_number(each.tokens[: n + 1]) for n in range(each.length)]
            assert self.pool.arrays["pool.0"][0, 0, each.slots, 0].tolist() == paths

    def teardown(self):
        for each in self.running:
            each.free()
        for each in self.kept:
            self.tree.drop(each)
        self.tree.clear()
        assert self.pool.used == 0


TestLeftovers = Leftovers.TestCase


def test_sequences_share_with_those_of_their_salt_alone():
    pool, tree = tree_of()
    for salt in ("", "one"):
        sequence = TokenSequence(pool, [1, 2, 3])
        sequence.salt = salt
        sequence.append(pool.take(3))
        leave(tree, sequence)
    assert pool.used == 6
    for salt, known in (("", 3), ("one", 3), ("two", 0)):
        other = TokenSequence(pool, [1, 2, 3, 4])
        other.salt = salt
        assert tree.extend(other, 3) == known
        other.free()
    tree.clear()
    assert pool.used == 0
