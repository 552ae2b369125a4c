"""Tests of what a draft learns from verifications: its correction, its examples, and its file."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from candidates import candidates_of

from edgespec.errors import InputError
from edgespec.runtime.drafters import learner as module
from edgespec.runtime.drafters.correction import (
    SIZE,
    SPAN,
    WIDTH,
    Correction,
    Examples,
    _places,
)
from edgespec.runtime.drafters.learner import CAPACITY, VERSION, Evidence, Learner

VOCABULARY = 60
BUNDLE = "0123456789abcdef"
HEAD = f"edgespec-draft-correction {VERSION} {BUNDLE}\n".encode()
HELPS = Evidence(alone=2.0, corrected=1.0)


def logits_of(rng, rows):
    return rng.normal(0, 2, (rows, VOCABULARY)).astype(np.float32)


def contexts_of(rng, rows):
    return rng.integers(0, 8, (rows, SPAN)).tolist()


def learn_all(learner):
    while learner.step():
        pass


class Mistaken:
    """A draft that gives every candidate another logit than the target, by its last two tokens.

    Without `systematic` there is nothing to learn: its mistakes are others in every text.
    """

    def __init__(self, systematic=True):
        self._rng = np.random.default_rng(0)
        self._mistakes = self._rng.normal(0, 2, (8, VOCABULARY)).astype(np.float32)
        self._systematic = systematic

    def text(self, learner, rows=100):
        """Has the learner read a text; returns how many of its rows' best tokens were right."""
        contexts, target = contexts_of(self._rng, rows), logits_of(self._rng, rows)
        if not self._systematic:
            self._mistakes = self._rng.normal(0, 2, self._mistakes.shape).astype(np.float32)
        draft = target + self._mistakes[[context[-1] for context in contexts]]
        guesses, improved = learner.improve(contexts, candidates_of(draft, 2 * WIDTH))
        for guess, row in zip(guesses, target, strict=True):
            learner.record(guess, row)
        learn_all(learner)
        return int((improved.tokens[:, 0] == target.argmax(axis=1)).sum())


# The correction


def test_without_weights_candidates_stay_what_they_are():
    rng = np.random.default_rng(1)
    candidates, contexts = candidates_of(logits_of(rng, 5), 40), contexts_of(rng, 5)
    assert Correction().apply(contexts, candidates) is candidates
    learner = Learner(evidence=HELPS)
    assert learner.helps
    _, improved = learner.improve(contexts, candidates)
    assert improved is candidates


@pytest.mark.parametrize("count", [4, WIDTH, 40, VOCABULARY])
def test_corrected_candidates_are_sorted_and_normalized(count):
    """As if the shifts had been added to the logits of the whole vocabulary."""
    rng = np.random.default_rng(2)
    logits, contexts = logits_of(rng, 6), contexts_of(rng, 6)
    candidates = candidates_of(logits, count)
    before = [array.copy() for array in (candidates.tokens, candidates.logits)]
    correction = Correction(rng.normal(0, 0.5, SIZE).astype(np.float32))
    found = correction.apply(contexts, candidates)
    assert (np.diff(found.logits, axis=1) <= 0).all()
    assert (np.sort(found.tokens) == np.sort(candidates.tokens)).all()
    shifted = logits.copy()
    np.put_along_axis(shifted, found.tokens, found.logits, axis=1)
    changed = (shifted != logits).sum(axis=1)
    assert set(changed.tolist()) == {min(count, WIDTH)}
    whole = np.logaddexp.reduce(shifted.astype(np.float64), axis=1)
    np.testing.assert_allclose(found.normalizers, whole, rtol=1e-5)
    assert found.normalizers.dtype == found.logits.dtype == np.float32
    assert (candidates.tokens == before[0]).all()
    assert (candidates.logits == before[1]).all()


def test_a_correction_depends_on_three_tokens_and_shares_shorter_ends():
    correction = Correction()
    candidates = candidates_of(np.zeros((1, VOCABULARY)), WIDTH)
    target = np.zeros((1, WIDTH), np.float32)
    target[0, 3] = 4
    taught = Examples(np.array([[1, 2, 3]]), candidates.tokens, candidates.logits, target)
    for _ in range(20):
        correction.learn(taught)
    leads = []
    for context in ([1, 2, 3], [0, 2, 3], [0, 0, 3], [1, 2, 0]):
        found = correction.apply([context], candidates)
        leads.append(float(np.ptp(found.logits)))
    assert leads[0] > leads[1] > leads[2] > leads[3] == 0
    assert correction.apply([[1, 2, 3]], candidates).tokens[0, 0] == candidates.tokens[0, 3]


def test_a_correction_is_limited():
    rng = np.random.default_rng(3)
    candidates = candidates_of(logits_of(rng, 3), 40)
    for weight in (1e30, -1e30):
        weights = np.full(SIZE, weight, np.float32)
        found = Correction(weights).apply(contexts_of(rng, 3), candidates)
        assert np.abs(np.sort(found.logits) - np.sort(candidates.logits)).max() < 20
        assert np.isfinite(found.normalizers).all()


def test_different_ends_seldom_share_a_weight():
    """As many as places that were drawn at random."""
    rng = np.random.default_rng(9)
    contexts = rng.integers(-1, 40, (500, SPAN))
    tokens = np.tile(rng.permutation(50_000)[:WIDTH], (500, 1))
    places = _places(contexts, tokens)
    assert places.shape == (500, SPAN, WIDTH)
    assert 0 <= places.min() <= places.max() < SIZE
    ends = {
        (*context[-length:], token)
        for context in contexts.tolist()
        for length in range(1, SPAN + 1)
        for token in tokens[0].tolist()
    }
    expected = SIZE * (1 - (1 - 1 / SIZE) ** len(ends))
    assert len(np.unique(places)) == pytest.approx(expected, rel=0.02)


# Learning


def test_learning_makes_a_mistaken_draft_right_more_often():
    learner, draft = Learner(), Mistaken()
    right = [draft.text(learner) for _ in range(40)]
    assert sum(right[:2]) < 70  # of 200; nothing is in use before two texts are learned
    assert sum(right[-5:]) > 350  # of 500
    assert learner.helps
    assert learner.trained == 4000
    # From the same rounds the same is learned, to the last bit.
    again, draft = Learner(), Mistaken()
    assert [draft.text(again) for _ in range(40)] == right
    assert (again.correction.weights == learner.correction.weights).all()


def test_what_does_not_help_on_later_texts_is_not_used():
    learner, draft = Learner(), Mistaken(systematic=False)
    draft.text(learner)
    assert learner.correction.weights.any()
    for _ in range(10):
        draft.text(learner)
        assert not learner.helps
    rng = np.random.default_rng(4)
    candidates = candidates_of(logits_of(rng, 5), 40)
    assert learner.improve(contexts_of(rng, 5), candidates)[1] is candidates


def test_a_text_is_tested_before_any_of_it_is_learned():
    """Otherwise a text that repeats itself would speak for what it taught."""
    learner, rng = Learner(), np.random.default_rng(5)
    draft, target = logits_of(rng, 1), logits_of(rng, 1)
    (guess,), _ = learner.improve([[1, 2, 3]], candidates_of(draft, WIDTH))
    for _ in range(500):
        learner.record(guess, target[0])
    learn_all(learner)
    assert learner.evidence.alone == learner.evidence.corrected > 0
    assert learner.correction.weights.any()
    assert learner.trained == 500


def test_a_correction_that_harms_from_now_on_is_dropped_and_may_come_back():
    learner, draft = Learner(), Mistaken()
    for _ in range(15):
        draft.text(learner)
    assert learner.helps
    mistakes, used = draft._mistakes, []
    for each in [0 * mistakes] * 30 + [mistakes] * 30:  # the user writes about something else
        draft._mistakes = each
        draft.text(learner)
        used.append(learner.helps)
    assert not used[29]
    assert used[-1]


def test_rows_that_are_not_finite_teach_nothing():
    learner, rng = Learner(), np.random.default_rng(6)
    (guess,), _ = learner.improve([[1, 2, 3]], candidates_of(logits_of(rng, 1), 40))
    for value in (np.nan, np.inf, -np.inf):
        target = logits_of(rng, 1)[0]
        target[guess.tokens[5]] = value
        learner.record(guess, target)
    learner.record(guess._replace(logits=guess.logits * np.nan), logits_of(rng, 1)[0])
    assert not learner.step()


def test_a_guess_keeps_what_the_draft_said_when_its_buffers_change():
    learner, rng = Learner(), np.random.default_rng(7)
    candidates = candidates_of(logits_of(rng, 1), 40)
    (guess,), _ = learner.improve([[9]], candidates)
    expected = guess.tokens.copy(), guess.logits.copy()
    candidates.tokens[:] = candidates.logits[:] = 0
    assert (guess.tokens == expected[0]).all()
    assert (guess.logits == expected[1]).all()
    assert list(guess.context) == [-1, -1, 9]


def test_memory_is_bounded():
    learner, rng = Learner(), np.random.default_rng(8)
    size = learner.nbytes
    assert size < 3 << 20
    (guess,), _ = learner.improve([[1, 2, 3]], candidates_of(logits_of(rng, 1), 40))
    target = logits_of(rng, 1)[0]
    for _ in range(CAPACITY + 10):
        learner.record(guess, target)
    assert learner.nbytes == size
    learn_all(learner)
    assert learner.trained == CAPACITY
    assert not learner.step()  # nothing is learned for ever


# The file


@pytest.fixture
def memory(tmp_path):
    learner, draft = Learner(), Mistaken()
    for _ in range(3):
        draft.text(learner)
    path = tmp_path / "learned"
    learner.save(path, BUNDLE)
    return path, learner


def sealed(content):
    return content + hashlib.sha256(content).digest()


def test_a_file_gives_back_what_was_learned(memory, tmp_path):
    path, learner = memory
    found = Learner.load(path, BUNDLE)
    assert (found.correction.weights == learner.correction.weights).all()
    assert (found.correction.squares == learner.correction.squares).all()
    assert (found.trained, found.evidence, found.helps) == (300, learner.evidence, True)
    found.save(tmp_path / "again", BUNDLE)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    draft = Mistaken()
    draft.text(found)  # the arrays can be written
    assert found.trained == 400


def test_the_file_of_another_bundle_or_version_is_refused(memory):
    path, _ = memory
    with pytest.raises(InputError, match="was learned from bundle '0123456789abcdef', this is abc"):
        Learner.load(path, "abc")
    other = path.read_bytes().replace(HEAD, HEAD.replace(b" %d " % VERSION, b" 99 "))
    path.write_bytes(other)
    with pytest.raises(InputError, match=r"a draft correction of version '99', this edgespec"):
        Learner.load(path, BUNDLE)


@pytest.mark.parametrize("content", [b"", b"\n", b"edgespec-draft-memory 1 abc\n", b"\x7fELF" * 99])
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a draft correction: name another file"):
        Learner.load(path, BUNDLE)


@pytest.mark.parametrize("place", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damage_is_refused(memory, place, damage):
    path, _ = memory
    content = bytearray(path.read_bytes())
    at = len(HEAD) + int(place * (len(content) - len(HEAD)))
    if damage == "cut":
        del content[at:]
    else:
        content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="SHA-256 does not match: it is damaged, delete it"):
        Learner.load(path, BUNDLE)


def body(trained=1, evidence=(2.0, 1.0), weight=0.0, square=0.0):
    arrays = np.zeros((2, SIZE), "<f4")
    arrays[0, 7], arrays[1, 7] = weight, square
    return struct.pack("<qdd", trained, *evidence) + arrays.tobytes()


def test_numbers_that_learning_cannot_give_are_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(sealed(HEAD + body()))
    Learner.load(path, BUNDLE)
    for wrong in (
        {"weight": np.nan}, {"weight": np.inf}, {"square": np.nan}, {"square": -1.0},
        {"evidence": (np.nan, 1.0)}, {"evidence": (1.0, -np.inf)}, {"trained": -1},
    ):  # fmt: skip
        path.write_bytes(sealed(HEAD + body(**wrong)))
        with pytest.raises(InputError, match="holds impossible numbers: it is damaged") as caught:
            Learner.load(path, BUNDLE)
        assert "\n" not in str(caught.value)
    path.write_bytes(sealed(HEAD + body()[:-4]))
    with pytest.raises(InputError, match="bytes of content: it is damaged"):
        Learner.load(path, BUNDLE)


def test_a_file_that_cannot_be_written_stays_as_it_was(memory, monkeypatch):
    path, learner = memory
    before = path.read_bytes()

    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", full)
    with pytest.raises(InputError, match="cannot be written"):
        learner.save(path, BUNDLE)
    assert path.read_bytes() == before


def test_examples_of_a_step_are_few():
    """A text that begins waits for one step at most."""
    assert module._BATCH <= 64
