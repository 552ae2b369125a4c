"""Sequences of recurrent models: a row's bits never depend on how its sequence came about."""

from __future__ import annotations

import numpy as np
import pytest
from histories import History, chain, load, read
from nodes import assert_same, by_kernel, needs_library, same_bits, usable
from small_configs import RECURRENT

from edgespec.errors import DeviceError

pytestmark = needs_library
families = pytest.mark.parametrize("name", RECURRENT)


@pytest.fixture(scope="module")
def model(pairs):
    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = load(pairs.pair(name).path)
        return loaded[name]

    return get


@families
@pytest.mark.parametrize("seed", range(4))
def test_rows_have_their_bits_in_any_history(model, name, seed):
    history = History(model(name), np.random.default_rng(seed))
    history.run(30)
    assert len(history.logits) > 300


@families
def test_plain_decoding_has_the_bits_of_a_chunk(model, name):
    one = model(name)
    tokens = np.random.default_rng(9).integers(1, 300, 80).tolist()
    sequence = one.sequence(tokens)
    alone = one.sequence([])
    expected = read(sequence, one)
    for row, token in enumerate(tokens):
        alone.tokens.append(token)
        same_bits(read(alone, one)[0], expected[row])
    held = one.pool.recurrent
    assert held.rows.used <= len(tokens) + 2 * held.before + 1
    assert held.states.used == 1  # the long one's rows may all be rejected yet
    sequence.free()
    alone.free()


@families
def test_a_sequence_goes_back_as_far_as_its_state_allows(model, name):
    one = model(name)
    tokens = [*range(1, 61)]
    sequence = one.sequence(tokens[:40])
    read(sequence, one, certain=40)
    sequence.tokens += tokens[40:]
    read(sequence, one)
    other = sequence.fork(45)
    assert (other.length, sequence.fork(39).length) == (45, 0)
    sequence.cut(41)
    assert (sequence.length, sequence.tokens) == (41, tokens)
    same_bits(read(sequence, one), read(one.sequence(tokens), one)[41:])
    sequence.cut(39)
    assert sequence.length == 0
    assert other.length == 45
    other.free()


@families
def test_states_of_passes_that_went_wrong_are_read_again(model, name, monkeypatch):
    one = model(name)
    tokens = [*range(1, 31)]
    sequence = one.sequence(tokens)
    expected = read(sequence, one, certain=30)[-1]
    rows = chain(sequence, [7, 8], certain=2)
    one.forward([rows])
    rows.accept([0])  # although both were certain
    assert sequence.length == 0
    read(sequence, one)

    def fail(_):
        raise DeviceError("no")

    with monkeypatch.context() as patch:
        patch.setattr(one, "graph", fail)
        with pytest.raises(DeviceError):
            one.forward([chain(sequence, [7])])
    assert sequence.length == 0
    same_bits(read(sequence, one)[-1], expected)
    sequence.free()


def test_instruction_sets_agree(pairs):
    folders = [str(pairs.pair(name).path) for name in RECURRENT]
    plain = by_kernel("plain", "histories", "logits", *folders)
    for kernel in usable():
        assert_same(by_kernel(kernel, "histories", "logits", *folders), plain)
