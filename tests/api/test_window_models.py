"""Models whose layers see a window: what is kept of a text, and how far a text can go back."""

from __future__ import annotations

import numpy as np
import pytest
from drafts import engines
from pairs import ENGINES, logits_of
from parity import SAME, distance
from runners import Runners, following
from sessions import OPTIONS

from edgespec import LLM, bundle
from edgespec.api.loading import LoadOptions
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.shapes import ring_rows
from edgespec.runtime.speculation.tree import ROOT, TokenTree

WINDOW = 40
RING = ring_rows(WINDOW)  # 320 of the 512 positions that the models know
TEXT = np.random.default_rng(3).integers(1, 300, 480).tolist()

windows = pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])


@pytest.fixture(scope="module")
def runner(pairs):
    return Runners(pairs)


@windows
def test_layers_with_a_window_keep_no_more_rows_than_it_needs(runner, name):
    held = runner(name)
    role = held.model.role
    [stage] = role.stages
    assert {group.window for group in stage.cache_groups} == {None, WINDOW}
    assert role.rings == {f"window:{WINDOW}": WINDOW}
    widths = {group.window: 4 * group.width for group in stage.cache_groups}
    for length, rows in ((200, 256), (480, RING)):
        capacity = held.model.shapes.capacity_bucket(length)
        held.resume(())
        held.prefill(TEXT[:length])
        assert held.bytes == capacity * widths[None] + rows * widths[WINDOW]
        views = held._caches[0].views
        assert views["past.0.key"].shape[-2] == rows  # the first layer has the window
        assert views["past.1.key"].shape[-2] == capacity


@windows
def test_plans_count_what_windows_leave(pairs, name):
    """A longer context adds rows of the other layers only."""
    found = bundle.load(pairs.pair(name).path)
    [stage] = found.target.stages
    widths = {group.window: 4 * group.width for group in stage.cache_groups}
    kv = {}
    for context in (300, 480):
        options = LoadOptions(device=ENGINES[0], draft="none", context=context)
        [kv[context]] = [each.kv for each in deploy(found, options).devices]
    texts = kv[300] // (384 * widths[None] + RING * widths[WINDOW])
    assert texts >= 1
    assert kv[480] - kv[300] == texts * 128 * widths[None]


@engines
@windows
def test_logits_are_transformers_own_behind_the_end_of_the_ring(pairs, runner, name, engine):
    expected = logits_of(pairs.pair(name).target, TEXT)
    held = runner(name, engine)
    for start in range(0, 480, 60):
        found = held.prefill(TEXT[start : start + 60])["logits"][0]
        assert distance(found, expected[start + 59]) < SAME


@engines
@windows
def test_a_tree_across_the_end_of_the_ring_has_the_bits_of_its_branches(runner, name, engine):
    """Each branch is compared with plain decoding, row by row, in chunks of other sizes."""
    rng = np.random.default_rng(0)
    for length in (RING - 3, RING + 60, 2 * RING - 200):
        tree = runner(name, engine)
        tree.prefill(TEXT[:length])
        tokens, parents, branches = [], [], []
        for _ in range(3):
            branches.append(range(len(tokens) + 1, len(tokens) + 6))
            above = ROOT
            for token in rng.integers(1, 300, 5).tolist():
                tokens.append(token)
                parents.append(above)
                above = len(tokens) - 1
        nodes = TokenTree(np.array(tokens, np.int64), np.array(parents, np.int64))
        found = tree.verify(Rows.tree(9, nodes))["logits"].copy()
        tree.commit([0, *branches[1]])
        assert tree.model.exact
        for rows in branches:
            alone = runner(name, engine)
            for start in range(0, length, 17):
                alone.prefill(TEXT[start : min(start + 17, length)])
            for row, token in zip([0, *rows], [9, *(tokens[r - 1] for r in rows)], strict=True):
                np.testing.assert_array_equal(following(alone, token), found[row])
                alone.commit([0])
        again = runner(name, engine)
        again.prefill(tree.tokens)
        np.testing.assert_array_equal(following(tree), following(again))


@engines
@windows
def test_drafts_beside_the_text_do_not_spoil_its_window(runner, name, engine):
    """As many scratch rows as a draft may leave, on rows of the ring that the text had."""
    held, plain = runner(name, engine), runner(name, engine)
    for each in (held, plain):
        each.prefill(TEXT[:400])
    for start in range(0, 128, 32):  # four branches, each below the text
        mask = np.zeros((32, start + 32), bool)
        mask[:, start:] = np.tri(32, dtype=bool)
        held.draft(Rows(TEXT[start : start + 32], range(32), mask))
    assert held.scratch == 128
    held.keep(range(96, 128))
    assert held.tokens == [*TEXT[:400], *TEXT[96:128]]
    plain.prefill(TEXT[96:128])
    np.testing.assert_array_equal(following(held), following(plain))


@windows
def test_a_text_goes_back_as_far_as_its_window_allows(runner, name):
    held, fresh = runner(name), runner(name)
    held.prefill(TEXT)
    first = len(TEXT) - RING + WINDOW - 1  # 199
    known = {length: held.known(TEXT[:length]) for length in (480, 300, first + 1, first, 100)}
    assert known == {480: 479, 300: 299, first + 1: first, first: 0, 100: 0}
    for length in (300, first + 1):
        held.resume(TEXT[:length])
        assert held.length == length - 1
        fresh.resume(())
        fresh.prefill(TEXT[: length - 1])
        np.testing.assert_array_equal(following(held), following(fresh))
    held.resume(TEXT[:first])
    assert held.length == 0
    held.prefill(TEXT[:100])
    assert held.known(TEXT[:50]) == 49  # nothing of the longer text limits the new one


@windows
def test_a_copied_beginning_is_only_taken_where_its_window_is_held(runner, name):
    source = runner(name)
    source.prefill(TEXT)
    for length, held in ((480, 480), (250, 250), (150, 0)):
        target = runner(name)
        snapshot = source.snapshot(length)
        assert target.fits(snapshot)
        target.restore(snapshot)
        assert target.length == held
    whole = source.snapshot(480)
    for length, held in ((400, 400), (199, 199), (190, 0)):  # as a file for a shorter context
        target = runner(name)
        target.restore(whole.first(length))
        assert target.length == held
        if held:
            fresh = runner(name)
            fresh.prefill(TEXT[:length])
            np.testing.assert_array_equal(following(target), following(fresh))
    damaged = source.snapshot(480)
    damaged.caches[0] = damaged.caches[0].repeat(2, axis=3)
    assert not runner(name).fits(damaged)


@windows
def test_a_saved_session_goes_on_elsewhere(pairs, name, tmp_path):
    place = {"device": ENGINES[0], "threads": 1, "draft": "lookup"}
    prompt = TEXT[:400]
    with LLM(pairs.pair(name).path, **place) as llm, llm.session() as session:
        first = session.generate(prompt, **OPTIONS)
        session.save(tmp_path / "file")
        longer = [*prompt, *first.tokens, 17, 4]
        expected = session.generate(longer, **OPTIONS)
    with (
        LLM(pairs.pair(name).path, **place) as other,
        other.load_session(tmp_path / "file") as session,
    ):
        found = session.generate(longer, **OPTIONS)
    assert found.tokens == expected.tokens
    assert found.reused == expected.reused >= 400
