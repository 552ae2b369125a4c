"""The cache against a plain array, and a text's progress against computing it afresh."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from caches import CAPACITY, STAGE, followed, operations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import ENGINES, logits_of

from edgespec.runtime.buckets import ROW_BUCKETS, capacity_bucket, row_bucket
from edgespec.runtime.engines.host import HostCache
from edgespec.runtime.feeds import Rows
from edgespec.runtime.model import Model
from edgespec.runtime.runner import Runner
from edgespec.runtime.tree import ROOT, TokenTree

VOCABULARY = 331


@pytest.fixture(scope="module", params=ENGINES)
def model(request, pairs):
    return pairs.llm("qwen3", request.param, "none").target


def text_of(length, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, length).tolist()


def next_logits(runner):
    """What follows the committed text and one more token, [V]; nothing is kept."""
    return runner.verify(Rows([7], [0], probe(runner)))["logits"][0].copy()


def probe(runner):
    """One row that sees the text and itself, but no scratch row."""
    return np.array([[False] * runner.scratch + [True]])


def fresh_logits(model, text):
    runner = Runner(model)
    runner.prefill(text)
    return next_logits(runner)


def close(found, expected):
    """To 1e-5 of the logits' size: other calls add up in another order."""
    np.testing.assert_allclose(found, expected, atol=1e-5 * abs(expected).max(), rtol=0)
    return True


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
    """Whatever room was set aside: none, some of what is needed, or all."""
    stage = replace(STAGE, kv_dtype=dtype)
    cache = HostCache(stage, CAPACITY, most)
    for expected in followed(cache, stage, steps, lambda new_kv: new_kv):
        # Engines read the views; what was never written is zero, also after growth.
        assert cache.views.keys() == expected.keys()
        for name, view in cache.views.items():
            assert view.flags.c_contiguous
            assert view.dtype == dtype
            np.testing.assert_array_equal(view, expected[name])


def test_only_growth_makes_new_views():
    cache = HostCache(STAGE, 4, 0)
    before = cache.views
    cache.write(np.ones((2, 2, 3, 2, 4), np.float32), [0, 1], 0)
    cache.move([1], 0)
    assert cache.views is before
    cache.grow(8)
    assert cache.views is not before


def test_a_cache_grows_in_place_up_to_what_a_text_may_have():
    """A second copy would be the largest that a plan knows nothing of."""
    cache = HostCache(STAGE, 4, 16)
    for capacity, same in ((8, True), (16, True), (32, False)):
        before = [*cache.views.values()]
        cache.grow(capacity)
        assert np.shares_memory(before[0], cache.views["past.0.key"]) is same


# A text's progress


def test_results_of_all_shapes_lie_in_the_same_memory(pairs):
    runner = Runner(pairs.llm("llama", "onnxruntime:cpu", "none").target)
    many = runner.verify(Rows.chain(range(1, 9)))["logits"]
    expected, few = many[:3].copy(), runner.verify(Rows.chain(range(1, 4)))["logits"]
    assert few.shape == (3, many.shape[1])
    assert np.shares_memory(many, few)
    np.testing.assert_allclose(few, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("length", "chunks"), [(300, [128, 128, 44]), (256, [128, 128])])
def test_prefill_by_chunks_is_prefill_by_tokens(model, length, chunks):
    """Of 300 tokens the cache grows on the way."""
    text = text_of(length)
    whole, single, uneven = Runner(model), Runner(model), Runner(model)
    assert whole.chunks(length) == chunks
    last = whole.prefill(text)["logits"].copy()
    assert last.shape == (1, VOCABULARY)
    for token in text:
        results = single.prefill([token])
    assert close(results["logits"], last)
    for start, stop in ((0, 1), (1, 130), (130, 131), (131, length)):
        results = uneven.prefill(text[start:stop])
    assert close(results["logits"], last)
    assert whole.length == single.length == uneven.length == length
    assert close(next_logits(single), next_logits(whole))
    assert close(next_logits(uneven), next_logits(whole))


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
        assert close(logits[node + 1], alone["logits"][0])
    assert runner.length == 40


def step_prefill(runner, rng):
    tokens = rng.integers(1, VOCABULARY, rng.choice([1, 3, 60, 150])).tolist()
    runner.prefill(tokens)
    return tokens


def step_verify(runner, rng):
    """A tree of which a branch is accepted, or nothing: rolling back is forgetting."""
    tree = random_tree(rng, int(rng.integers(0, 12)))
    rows = Rows([7, *tree.tokens], [0, *tree.depths], tree.ancestor_mask())
    runner.verify(rows)
    if rng.random() < 0.25:
        return []
    path = tree.path(int(rng.integers(ROOT, len(tree))))
    runner.commit([0, *(node + 1 for node in path)])
    return [7, *tree.tokens[path].tolist()]


def step_draft(runner, rng):
    """Levels of scratch rows, each seeing its ancestors, of which a branch is kept."""
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
    assert close(next_logits(runner), fresh_logits(model, text))


def test_scratch_rows_are_seen_by_those_alone_whose_mask_says_so(model):
    text = text_of(20)
    runner = Runner(model)
    runner.prefill(text)
    runner.draft(Rows([11, 12], [0, 0], np.eye(2, dtype=bool)))
    for seen, before in ((0, 11), (1, 12)):
        mask = np.zeros((1, 2 + 1), bool)
        mask[0, [seen, 2]] = True
        logits = runner.verify(Rows([7], [1], mask))["logits"][0].copy()
        assert close(logits, fresh_logits(model, [*text, before]))
    assert close(next_logits(runner), fresh_logits(model, text))
    runner.prefill([30])  # forgets the scratch rows
    assert close(next_logits(runner), fresh_logits(model, [*text, 30]))


def test_texts_of_one_model_do_not_touch_each_other(model):
    """Of different lengths, so in caches of different capacities."""
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
        assert close(next_logits(runner), fresh_logits(model, text))


def test_a_cache_takes_what_its_longest_text_took(model):
    runner = Runner(model)
    runner.prefill(text_of(300))
    row = sum(array.nbytes for array in runner.snapshot(1))
    sizes = [runner.bytes, *(runner.bytes_for(length) for length in (10, 500))]
    assert sizes == [capacity_bucket(length) * row for length in (300, 300, 500)]


def test_time_inside_the_engine_is_counted(model):
    before = model.seconds
    Runner(model).prefill([1, 2])
    assert model.seconds > before


# What the host feeds


def inputs_of(theta=1e4, attention_factor=1.0):
    """The inputs of a model that never runs."""
    frequencies = tuple(theta ** (-i / 12) for i in range(12))
    names = ("input_ids", "rope_cos", "rope_sin", "attention_bias", "lengths", "logit_rows")
    stage = SimpleNamespace(inputs=[SimpleNamespace(name=name) for name in names])
    role = SimpleNamespace(
        inv_freq=frequencies, attention_factor=attention_factor, head_dim=24, bias_off=-1e9,
        stages=[stage],
    )  # fmt: skip
    return Model(role, [], "nowhere"), frequencies


@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_rotations_are_right_at_large_positions(theta):
    model, frequencies = inputs_of(theta)
    drift = 0.0
    for capacity, length in ((256, 0), (256, 200), (6144, 4095), (131_072, 100_000)):
        feeds = model.feeds(4, capacity, 4)
        feeds.fill(Rows([5, 6, 7], [0, 1, 55], np.eye(3, dtype=bool)), length, False)
        cos, sin = feeds.stages[0]["rope_cos"], feeds.stages[0]["rope_sin"]
        assert cos.dtype == sin.dtype == np.float32
        assert cos.shape == sin.shape == (4, 24)
        for row, position in enumerate((length, length + 1, length + 55)):
            for i, frequency in enumerate(frequencies):
                angle = position * frequency
                for column, sign in ((i, -1), (i + 12, 1)):  # the first half of sin is negated
                    assert abs(cos[row, column] - math.cos(angle)) < 1e-7
                    assert abs(sin[row, column] - sign * math.sin(angle)) < 1e-7
                rounded = float(np.float32(position) * np.float32(frequency))
                drift = max(drift, abs(math.cos(rounded) - math.cos(angle)))
    assert drift > 1e-3  # float32 angles would not have been


def test_rotations_are_scaled_by_the_attention_factor():
    plain, scaled = (inputs_of(1e4, factor)[0].feeds(4, 256, 4) for factor in (1.0, 1.25))
    for feeds in (plain, scaled):
        feeds.fill(Rows.chain([5, 6, 7]), 100, False)
    for name in ("rope_cos", "rope_sin"):
        one, other = (feeds.stages[0][name] for feeds in (plain, scaled))
        np.testing.assert_allclose(other, 1.25 * one, rtol=1e-6)


def test_rows_of_padding_may_lie_behind_all_positions():
    """They keep what the call before had, here a draft's deep level behind a short text."""
    feeds = inputs_of()[0].feeds(4, 256, 4)
    feeds.fill(Rows([5, 6], [30, 31], np.eye(2, dtype=bool)), 0, False)
    feeds.fill(Rows.chain([5]), 255, False)
    assert np.isfinite(feeds.stages[0]["rope_cos"]).all()


@given(st.data())
def test_the_bias_shows_text_mask_and_nothing_else(data):
    model, _ = inputs_of()
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for _ in range(3):  # buffers are used again
        n, length = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 200))
        scratch = data.draw(st.integers(0, 20))
        mask = rng.random((n, scratch + n)) < 0.5
        last_only = data.draw(st.booleans())
        feeds = model.feeds(8, 256, 1 if last_only else 8)
        feeds.fill(Rows([1] * n, [0] * n, mask), length, last_only)
        seen = np.zeros((8, 256 + 8), bool)
        seen[:n, :length] = True
        seen[:n, length : length + scratch] = mask[:, :scratch]
        seen[:n, 256 : 256 + n] = mask[:, scratch:]
        seen[range(n, 8), range(256 + n, 264)] = True  # else padding would be all masked, so NaN
        np.testing.assert_array_equal(feeds.stages[0]["attention_bias"], np.where(seen, 0, -1e9))
        wanted = [n - 1] if last_only else list(range(8))
        assert feeds.stages[0]["logit_rows"].tolist() == wanted
