"""Tests of caches against plain arrays, and of a text against computing it afresh."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from caches import CAPACITY, GROUPS, LONG, STAGE, WINDOW, followed, operations, shape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import ENGINES, logits_of

from edgespec.runtime.engines.host import HostCache
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import BORDER, RECENT, ROW_BUCKETS, capacity_bucket, row_bucket
from edgespec.runtime.trees.tree import ROOT, TokenTree

VOCABULARY = 331


@pytest.fixture(scope="module", params=ENGINES)
def model(request, pairs):
    return pairs.llm("qwen3", request.param, "none").target


def text_of(length, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, length).tolist()


def next_logits(runner):
    """Logits after the committed text and one more token, [V]; nothing is kept."""
    return runner.verify(Rows([7], [0], probe(runner)))["logits"][0].copy()


def probe(runner):
    """One row that sees the text and itself, but no scratch row."""
    return np.array([[False] * runner.scratch + [True]])


def fresh_logits(model, text):
    runner = Runner(model)
    runner.prefill(text)
    return next_logits(runner)


def close(found, expected):
    """Equal up to 1e-5 of the logits' size, because the order of sums differs."""
    np.testing.assert_allclose(found, expected, atol=1e-5 * abs(expected).max(), rtol=0)
    return True


def same(model, found, expected):
    """Bit for bit equal, if the model says that its rows are alike in all calls."""
    if model.exact:
        np.testing.assert_array_equal(found, expected)
    return close(found, expected)


# Buckets


@given(st.integers(1, 1 << 20))
def test_a_capacity_holds_its_rows_and_wastes_little(rows):
    size = capacity_bucket(rows)
    assert size >= rows
    assert size == 256 or rows > size * (2 / 3 if size <= 1024 else 4 / 5)
    assert capacity_bucket(size) == size  # buckets are the same from wherever one comes
    assert capacity_bucket(size + 1) > size


def test_the_first_capacities():
    sizes = sorted({capacity_bucket(rows) for rows in range(1, 5000)})
    assert sizes[:9] == [256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048]
    assert sizes[9:] == [2560, 3072, 3584, 4096, 5120]


@given(st.integers(1, ROW_BUCKETS[-1]))
def test_rows_come_in_the_smallest_bucket_that_holds_them(rows):
    assert row_bucket(rows) == min(bucket for bucket in ROW_BUCKETS if bucket >= rows)


# The cache


@given(operations(), st.sampled_from(["float32", "float16"]), st.sampled_from([0, 20, 200]))
def test_the_cache_is_an_array_of_rows(steps, dtype, most):
    """With no reserved memory, some of it, or all."""
    check_rows(replace(STAGE, kv_dtype=dtype), steps, CAPACITY, most)


@given(operations(LONG, 100), st.sampled_from([0, 400, 2000]))
def test_the_cache_of_layers_with_a_window_is_a_ring_of_rows(steps, most):
    check_rows(replace(STAGE, cache_groups=GROUPS), steps, LONG, most)


def check_rows(stage, steps, capacity, most):
    cache = HostCache(stage, capacity, most)
    for expected in followed(cache, stage, steps, lambda new_kv: new_kv, capacity):
        # Engines read the views; what was never written is zero, also after growth.
        assert cache.views.keys() == expected.keys()
        for name, view in cache.views.items():
            assert view.flags.c_contiguous
            assert view.dtype == stage.kv_dtype
            np.testing.assert_array_equal(view, expected[name])


def test_only_growth_makes_new_views():
    cache = HostCache(STAGE, 4, 0)
    before = cache.views
    cache.write([np.ones((2, 2, 3, 2, 4), np.float32)], [0, 1], 0)
    cache.move([1], 0)
    assert cache.views is before
    cache.grow(8)
    assert cache.views is not before


def test_a_cache_grows_in_place_up_to_what_a_text_may_have():
    """A second copy would need memory that no plan includes."""
    cache = HostCache(STAGE, 4, 16)
    for capacity, same in ((8, True), (16, True), (32, False)):
        before = [*cache.views.values()]
        cache.grow(capacity)
        assert np.shares_memory(before[0], cache.views["past.0.key"]) is same


@given(st.lists(st.integers(1, 128), min_size=1, max_size=20), st.data())
def test_a_window_can_go_back_as_far_as_its_rows_reach(parts, data):
    """A copy of what is held of an earlier length has the rows of its last positions."""
    stage, length = replace(STAGE, cache_groups=GROUPS), sum(parts)
    cache, other = HostCache(stage, LONG, 0), HostCache(stage, LONG, 0)
    cache.grow(max(LONG, length))
    other.grow(max(LONG, length))
    rng, end = np.random.default_rng(0), 0
    rows = [rng.standard_normal(shape(each, length)) for each in plain(GROUPS)]
    for part in parts:
        cache.write([each[:, :, :, end : end + part] for each in rows], range(part), end)
        end += part
    assert cache.earliest == (length - 320 + WINDOW - 1 if length > 320 else 0)
    kept = data.draw(st.integers(max(cache.earliest, 1), length))
    copied = cache.read(kept)
    for each, whole, group in zip(copied, rows, GROUPS, strict=True):
        seen = kept if group.window is None else min(kept, group.window - 1)
        np.testing.assert_array_equal(
            each[:, :, :, each.shape[3] - seen :], whole[:, :, :, kept - seen : kept].astype("f4")
        )
    other.load(copied, kept)
    assert other.earliest <= kept
    for one, two in zip(other.read(kept), copied, strict=True):
        np.testing.assert_array_equal(one, two)
    cache.clear()
    assert cache.earliest == 0


def plain(groups):
    return [replace(each, window=None) for each in groups]


# A text's progress


def test_results_of_all_shapes_lie_in_the_same_memory(pairs):
    model = pairs.llm("llama", "onnxruntime:cpu", "none").target
    runner = Runner(model)
    many = runner.verify(Rows.chain(range(1, 9)))["logits"]
    expected, few = many[:3].copy(), runner.verify(Rows.chain(range(1, 4)))["logits"]
    assert few.shape == (3, many.shape[1])
    assert np.shares_memory(many, few)
    assert same(model, few, expected)


@pytest.mark.parametrize(("length", "chunks"), [(300, [64] * 4 + [44]), (256, [64] * 4)])
def test_prefill_by_chunks_is_prefill_by_tokens(model, length, chunks):
    """The cache grows during the 300 tokens."""
    text = text_of(length)
    whole, single, uneven = Runner(model), Runner(model), Runner(model)
    assert whole.chunks(length) == chunks
    last = whole.prefill(text)["logits"].copy()
    assert last.shape == (1, VOCABULARY)
    for token in text:
        results = single.prefill([token])
    assert same(model, results["logits"], last)
    for start, stop in ((0, 1), (1, 130), (130, 131), (131, length)):
        results = uneven.prefill(text[start:stop])
    assert same(model, results["logits"], last)
    assert whole.length == single.length == uneven.length == length
    assert same(model, next_logits(single), next_logits(whole))
    assert same(model, next_logits(uneven), next_logits(whole))


def test_no_call_has_rows_on_both_sides_of_the_border(model):
    text, whole, single = text_of(BORDER + 40), Runner(model), Runner(model)
    for runner in (whole, single):
        runner.prefill(text[: BORDER - 24])
    assert whole.chunks(100) == [24, 64, 12]
    assert whole.reach == 24
    last = whole.prefill(text[BORDER - 24 :])["logits"].copy()
    for token in text[BORDER - 24 :]:
        results = single.prefill([token])
    assert same(model, results["logits"], last)
    assert whole.reach == RECENT


@pytest.mark.parametrize("kept", [0, 10, 260])
def test_a_text_that_needs_less_goes_on_in_a_smaller_cache(model, kept):
    """Unused rows cost time in every pass."""
    runner, text = Runner(model), text_of(600)
    runner.prefill(text)
    other = [*text[:kept], *text_of(20, seed=4)]
    runner.resume(other)
    assert runner.length == kept
    assert runner.bytes == Runner(model).bytes_for(len(other))
    runner.prefill(other[kept:])
    assert same(model, next_logits(runner), fresh_logits(model, other))


def test_the_first_token_is_what_transformers_says(model, pairs):
    text = text_of(140, seed=3)
    assert close(
        Runner(model).prefill(text)["logits"][0], logits_of(pairs.pair("qwen3").target, text)[-1]
    )


def random_tree(rng, nodes):
    tokens, parents, edges = [], [], set()
    while len(tokens) < nodes:
        edge = (int(rng.integers(ROOT, len(tokens))), int(rng.integers(1, VOCABULARY)))
        if edge not in edges:
            edges.add(edge)
            parents.append(edge[0])
            tokens.append(edge[1])
    return TokenTree(tokens, parents)


@pytest.mark.parametrize("nodes", [0, 1, 5, 16])
def test_each_row_of_a_verification_is_its_own_branch(model, nodes):
    rng = np.random.default_rng(nodes)
    text, tree = text_of(40), random_tree(rng, nodes)
    runner = Runner(model)
    runner.prefill(text)
    rows = Rows([7, *tree.tokens], [0, *tree.depths], tree.ancestor_mask())
    logits = runner.verify(rows)["logits"].copy()
    for node in range(ROOT, nodes):
        alone = Runner(model).prefill([*text, 7, *tree.tokens[tree.path(node)]])
        assert same(model, logits[node + 1], alone["logits"][0])
    assert runner.length == 40


def step_prefill(runner, rng):
    tokens = rng.integers(1, VOCABULARY, rng.choice([1, 3, 60, 150])).tolist()
    runner.prefill(tokens)
    return tokens


def step_verify(runner, rng):
    """Verify a tree and accept a branch, or nothing."""
    tree = random_tree(rng, int(rng.integers(0, 12)))
    rows = Rows([7, *tree.tokens], [0, *tree.depths], tree.ancestor_mask())
    runner.verify(rows)
    if rng.random() < 0.25:
        return []
    path = tree.path(int(rng.integers(ROOT, len(tree))))
    runner.commit([0, *(node + 1 for node in path)])
    return [7, *tree.tokens[path].tolist()]


def step_draft(runner, rng):
    """Draft levels of scratch rows that see their ancestors, and keep a branch."""
    tokens, sees = [], [[]]
    level = [0]  # places in `sees`; the first stands for the text's end
    for depth in range(int(rng.integers(1, 4))):
        parents = rng.choice(level, int(rng.integers(1, 5)))
        new = rng.integers(1, VOCABULARY, len(parents)).tolist()
        mask = np.zeros((len(new), len(tokens) + len(new)), bool)
        level = []
        for row, parent in enumerate(parents):
            sees.append([*sees[parent], len(tokens) + row])
            mask[row, sees[-1]] = True
            level.append(len(sees) - 1)
        runner.draft(Rows(new, [depth] * len(new), mask))
        tokens += new
    kept = sees[int(rng.integers(len(sees)))]
    # The drafts below stay, and some of them become text in turn.
    below = [row for row, path in enumerate(sees[1:]) if path[: len(kept)] == kept and path != kept]
    runner.keep(kept, below)
    assert runner.scratch == len(below)
    further = sees[1 + int(rng.choice(below))][len(kept) :] if below else []
    runner.keep([below.index(row) for row in further])
    return [tokens[row] for row in (*kept, *further)]


@given(st.lists(st.sampled_from([step_prefill, step_verify, step_draft]), max_size=7), st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_leaves_what_a_fresh_prefill_gives(model, steps, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    runner = Runner(model)
    text = step_prefill(runner, rng)
    for step in steps:
        text += step(runner, rng)
        assert runner.length == len(text)
        assert runner.scratch == 0
    assert same(model, next_logits(runner), fresh_logits(model, text))


def test_scratch_rows_are_seen_by_those_alone_whose_mask_says_so(model):
    text = text_of(20)
    runner = Runner(model)
    runner.prefill(text)
    runner.draft(Rows([11, 12], [0, 0], np.eye(2, dtype=bool)))
    for seen, before in ((0, 11), (1, 12)):
        mask = np.zeros((1, 2 + 1), bool)
        mask[0, [seen, 2]] = True
        logits = runner.verify(Rows([7], [1], mask))["logits"][0].copy()
        assert same(model, logits, fresh_logits(model, [*text, before]))
    assert same(model, next_logits(runner), fresh_logits(model, text))
    runner.prefill([30])  # forgets the scratch rows
    assert same(model, next_logits(runner), fresh_logits(model, [*text, 30]))


def test_texts_of_one_model_do_not_touch_each_other(model):
    """Texts of different lengths, so in caches of different capacities."""
    texts = [text_of(30, seed=1), text_of(290, seed=2), text_of(31, seed=3)]
    runners = [Runner(model) for _ in texts]
    for runner, text in zip(runners, texts, strict=True):
        runner.prefill(text[:-8])
    for place in range(-8, 0):
        for runner, text in zip(runners, texts, strict=True):
            tree = TokenTree.chain([1, 2])
            rows = Rows([text[place], *tree.tokens], [0, *tree.depths], tree.ancestor_mask())
            runner.verify(rows)
            runner.commit([0])
    for runner, text in zip(runners, texts, strict=True):
        assert same(model, next_logits(runner), fresh_logits(model, text))


def test_a_cache_takes_what_its_longest_text_took(model):
    runner = Runner(model)
    runner.prefill(text_of(300))
    row = sum(array.nbytes for array in runner.snapshot(1).caches)
    sizes = [runner.bytes, *(runner.bytes_for(length) for length in (10, 500))]
    assert sizes == [capacity_bucket(length) * row for length in (300, 300, 500)]


def test_time_inside_the_engine_is_counted(model):
    before = model.seconds
    Runner(model).prefill([1, 2])
    assert model.seconds > before
