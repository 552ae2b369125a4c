"""Tests of drafts on the target's own stages: same text, nothing computed twice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint, write_tokenizer
from parity import PROMPT, devices, tree_rows

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import Promise, SkipScore, SkipSet
from edgespec.errors import BundleError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.decoding.generate import Limits, generate
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters import ModelDrafter, NoDrafter, SkipCalls, TreeBudget
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.model import Model, TextSizes
from edgespec.runtime.execution.paths import StagePath
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import finished
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions

LAYERS = 4
SETS = ((3, 4), (3, 4, 7))
WRITTEN = ("1m,2a", "1m,2a,3m")


SHARP = 12.0
OPTIONS = [
    {},
    {"repetition_penalty": 1.3},
    {"temperature": 3.0, "seed": 1},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.9, "seed": 2},
]
NEW_TOKENS = 60


def texts(bundle, device, draft, budget, fields):
    """The tokens of a text, and how many drafted ones were accepted."""
    model = Model.load(bundle, bundles.TARGET, engine(device), 1)
    runner, options = Runner(model), SamplingOptions(**fields)
    pipeline = Serial(runner, NoDrafter() if draft is None else draft(runner))
    limits = Limits(NEW_TOKENS, bundle.target.context_length, frozenset())
    sampler = Sampler(options, 331)
    rounds = list(generate(pipeline, sampler, PROMPT[:20], limits=limits, budget=budget))
    tokens = [token for step in rounds for token in step.tokens]
    return tokens, sum(step.drafted for step in rounds), sum(step.accepted for step in rounds)


def skipping(skipped):
    def drafter(runner):
        calls = SkipCalls(runner, StagePath.without(runner.model.role, skipped))
        return ModelDrafter(calls, Calibration(), "skip")

    return drafter


def sharpened(folder, architecture, skip_sets, **config):
    """A model with clear choices, which rounding cannot change, in which every sublayer matters."""
    checkpoint = folder / "checkpoint"
    fields = {"num_hidden_layers": LAYERS, "eos_token_id": None, "seed": 3, **config}
    model = make_checkpoint(checkpoint, architecture, **fields)
    with torch.no_grad():
        model.lm_head.weight.mul_(SHARP)
    model.save_pretrained(checkpoint)
    write_tokenizer(checkpoint, 331)
    options = ExportOptions("fp32", skip_sets=skip_sets)
    export_bundle(checkpoint, folder / "sharp", options=options)
    return bundles.load(folder / "sharp")


@pytest.fixture(scope="module")
def sharp(tmp_path_factory):
    return sharpened(tmp_path_factory.mktemp("sharp"), "llama", WRITTEN)


@pytest.mark.slow
@devices
@pytest.mark.parametrize("skipped", SETS)
@pytest.mark.parametrize("fields", OPTIONS, ids=str)
def test_drafting_on_the_own_stages_never_changes_the_text(sharp, device, skipped, fields):
    accepted = 0
    plain, _, _ = texts(sharp, device, None, TreeBudget(0, 0, 1), fields)
    for budget in (TreeBudget(3, 3, 1), TreeBudget(7, 7, 3), TreeBudget(12, 4, 2)):
        tokens, drafted, right = texts(sharp, device, skipping(skipped), budget, fields)
        assert tokens == plain
        assert drafted > NEW_TOKENS
        accepted += right
    assert accepted > 0


@pytest.mark.slow
@devices
@pytest.mark.parametrize("skipped", ["1m,2a", "3a", "2-3", "1i,3i"])
def test_so_it_is_where_layers_read_keys_of_others(tmp_path, device, skipped):
    bundle = sharpened(tmp_path, "gemma4_text", (skipped,))
    [skips] = bundle.manifest.skip_sets
    plain, _, _ = texts(bundle, device, None, TreeBudget(0, 0, 1), {})
    accepted = 0
    for budget in (TreeBudget(3, 3, 1), TreeBudget(7, 7, 3)):
        tokens, drafted, right = texts(bundle, device, skipping(skips.skipped), budget, {})
        assert tokens == plain
        assert drafted > NEW_TOKENS
        accepted += right
    assert accepted > 0


@pytest.mark.parametrize(
    "budget", [TreeBudget(7, 7, 3), TreeBudget(12, 4, 2), TreeBudget(15, 15, 4)]
)
def test_drafts_fit_the_rows_that_were_planned_up_to_the_last_one(sharp, budget):
    """The text ends where the cache does; rejected drafts need rows, too."""
    model = Model.load(sharp, bundles.TARGET, engine(CPU_ENGINES[0]), 1)
    model.sizes = TextSizes(cache_rows=256)
    found = []
    for draft in (lambda _: NoDrafter(), skipping(SETS[0])):
        runner = Runner(model)
        pipeline, sampler = Serial(runner, draft(runner)), Sampler(SamplingOptions(), 331)
        prompt, limits = (PROMPT * 3)[:200], Limits(NEW_TOKENS, 256, frozenset())
        rounds = list(generate(pipeline, sampler, prompt, limits=limits, budget=budget))
        assert runner.bytes == Runner(model).bytes
        found.append([token for step in rounds for token in step.tokens])
    assert found[0] == found[1]
    assert len(found[0]) == 56
    assert sum(step.drafted for step in rounds[-8:]) > 0


def watched(model, monkeypatch):
    """Rows of each call, by stage."""
    calls = [[] for _ in model.executables]
    for stage, executable in enumerate(model.executables):

        def run(feeds, cache, stage=stage, original=executable.run):
            calls[stage].append(len(feeds["hidden" if stage else "input_ids"]))
            return original(feeds, cache)

        monkeypatch.setattr(executable, "run", run)
    return calls


def chain(tokens):
    n = len(tokens)
    return Rows(tokens, range(n), np.tri(n, dtype=np.bool_), [START, *range(n - 1)])


def draft_chain(runner, tokens, path):
    """The rows that a drafter would run, one call each."""
    for depth, token in enumerate(tokens):
        mask = np.ones((1, depth + 1), np.bool_)
        runner.draft(Rows([token], [depth], mask, [depth - 1 if depth else START]), path)


@pytest.fixture(params=CPU_ENGINES)
def runner(request, sharp):
    runner = Runner(Model.load(sharp, bundles.TARGET, engine(request.param), 1))
    runner.prefill(PROMPT[:50])
    return runner


def test_a_path_is_what_is_left(sharp):
    """Stages end before sublayers 3, 5, 7 and 8."""
    role = sharp.target
    assert StagePath.without(role, (3, 4)) == StagePath((0, 2, 3, 4), exact=1)
    assert StagePath.without(role, (7,)) == StagePath((0, 1, 2, 4), exact=3)
    assert StagePath.without(role, (3, 4, 7)) == StagePath((0, 2, 4), exact=1)
    with pytest.raises(ValueError, match="stage 1 holds more than what is skipped"):
        StagePath.without(role, (3,))
    with pytest.raises(ValueError, match="the first stage cannot be skipped"):
        StagePath.without(role, (0, 1, 2))


def test_verification_runs_leading_stages_for_new_rows_only(runner, monkeypatch):
    model = runner.model
    model.shapes = replace(model.shapes, rows=(1, *model.shapes.rows))  # so that rows are counted
    path = StagePath.without(model.role, (7,))
    tokens = [11, 12, 13, 14]
    calls = watched(model, monkeypatch)
    draft_chain(runner, tokens[:3], path)
    assert calls == [[1, 1, 1]] * 3 + [[]] + [[1, 1, 1]]
    for stage in calls:
        stage.clear()
    runner.verify(chain(tokens))
    assert calls == [[1]] * 3 + [[4], [4]]  # the last row was never drafted with


def test_reused_rows_are_the_whole_models(runner):
    """For any mixture of rows that were run and rows that were not, also after the commit."""
    rows = replace(tree_rows(), parents=[START, 0, 0, 1, 1, 2, 4])

    def verified(path):
        """Logits of a tree's rows, and those that follow when a branch is accepted."""
        text = Runner(runner.model)
        text.prefill(PROMPT[:50])
        if path is not None:
            draft_chain(text, [rows.tokens[row] for row in (0, 1, 4)], path)
        first = text.verify(rows)["logits"][:7].copy()
        text.commit([0, 1, 4, 6])  # the last was not run by the draft
        assert (text.length, text.scratch) == (54, 0)
        return np.vstack([first, text.verify(chain([5, 6]))["logits"][:2]])

    for skipped in (*SETS, (7,)):
        path = StagePath.without(runner.model.role, skipped)
        assert np.array_equal(verified(path), verified(None))


@pytest.mark.parametrize("skipped", [*SETS, (7,)])
def test_levels_of_a_draft_are_one_call_over_them_all(runner, skipped):
    """In the stages behind the skipped ones, too, a level sees the keys of the levels above it."""
    path, tokens = StagePath.without(runner.model.role, skipped), [11, 12, 13]
    expected = runner.draft(chain(tokens), path)["logits"][2].copy()
    runner.forget_scratch()
    draft_chain(runner, tokens[:2], path)
    last = Rows([tokens[2]], [2], np.ones((1, 3), np.bool_), [1])
    assert np.array_equal(runner.draft(last, path)["logits"][0], expected)


def test_more_candidates_are_looked_at_where_the_likeliest_may_not_be_chosen(sharp):
    runner, seen = Runner(Model.load(sharp, bundles.TARGET, engine(CPU_ENGINES[0]), 1)), []
    for fields in OPTIONS:
        calls = SkipCalls(runner, StagePath.without(sharp.target, SETS[0]))
        calls.begin(PROMPT, Sampler(SamplingOptions(**fields), 331))
        seen.append(finished(calls.feed(PROMPT)).tokens.shape[1])
    assert seen[0] < min(seen[1:])


def test_a_verification_may_be_repeated(runner):
    """Rows of the first verification are reused by the second."""
    rows = replace(tree_rows(), parents=[START, 0, 0, 1, 1, 2, 4])
    expected = runner.verify(rows)["logits"][:7].copy()
    draft_chain(runner, [rows.tokens[0]], StagePath.without(runner.model.role, (7,)))
    for _ in range(2):
        assert np.array_equal(runner.verify(rows)["logits"][:7], expected)
    assert runner.scratch == 7


def test_rows_that_a_verification_adds_count_among_the_near_ones(runner):
    """With more than 128 near rows an engine adds up in parts: the draft's rows are given up."""
    rows = chain(range(100, 132))
    expected = runner.verify(rows)["logits"][:32].copy()
    draft_chain(runner, range(10, 26), StagePath.without(runner.model.role, (7,)))
    assert np.array_equal(runner.verify(rows)["logits"][:32], expected)
    assert not runner.scratch


def test_a_draft_forgets_the_one_before(runner):
    """Of two skip sets in one round, the first leaves nothing behind."""
    role, rows = runner.model.role, chain([3, 4, 5])
    expected = runner.verify(rows)["logits"][:3].copy()
    draft_chain(runner, [3, 4], StagePath.without(role, (7,)))
    runner.forget_scratch()
    draft_chain(runner, [3, 9], StagePath.without(role, (3, 4)))
    assert np.array_equal(runner.verify(rows)["logits"][:3], expected)


# Behind the public API


@pytest.fixture(scope="module")
def llms(sharp):
    return {
        (draft, device): LLM(sharp.path, draft=draft, device=device, threads=1)
        for draft in ("none", "layer-skip", "auto")
        for device in CPU_ENGINES
    }


@pytest.mark.slow
@devices
@pytest.mark.parametrize("draft", ["layer-skip", "auto"])
@pytest.mark.parametrize("fields", OPTIONS, ids=str)
def test_the_text_is_plain_decodings(llms, device, draft, fields):
    fields = {"max_new_tokens": NEW_TOKENS, **fields}
    plain = llms["none", device].generate(PROMPT[:20], **fields)
    llm = llms[draft, device]
    llm.forget()
    result = llm.generate(PROMPT[:20], **fields)
    assert result.tokens == plain.tokens
    assert result.draft == draft
    used = [name for name in result.sources if name.startswith("skip ")]
    # Each set is tried in two rounds.
    assert sum(result.sources[name] for name in used) >= 2
    assert {part for name in used for part in name.split("+") if "skip" in part} <= {
        "skip 1m,2a",
        "skip 1m,2a,3m",
    }


def test_near_the_end_of_the_context_nothing_is_drafted_that_would_grow_the_cache(sharp):
    context = 256
    plain = LLM(sharp.path, draft="none", device=CPU_ENGINES[0], threads=1, context=context)
    llm = LLM(sharp.path, draft="layer-skip", device=CPU_ENGINES[0], threads=1, context=context)
    expected = plain.generate(PROMPT[:180], max_new_tokens=1000)
    capacities = set()
    new_cache = llm.target.executables[0].new_cache

    def watch(capacity, most):
        cache = new_cache(capacity, most)
        grow = cache.grow
        cache.grow = lambda rows: (capacities.add(rows), grow(rows))
        return cache

    llm.target.executables[0].new_cache = watch
    result = llm.generate(PROMPT[:180], max_new_tokens=1000)
    assert result.tokens == expected.tokens
    assert result.finish_reason == "context"
    assert result.drafted > 0
    assert capacities == set()


def with_sets(sharp, folder, *sets):
    for file in sharp.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    bundles.save_manifest(folder, replace(sharp.manifest, skip_sets=sets))
    return folder


PAYS, LOSES = Promise(0.9, 3, 150.0), Promise(0.1, 1, 99.0)


def test_a_score_survives_the_manifest(sharp, tmp_path):
    score = SkipScore(0.9, 100.0, "onnxruntime:cpu", greedy=PAYS, sampled=LOSES)
    sets = (SkipSet((3, 4), score), SkipSet((3, 4, 7)))
    found = bundles.load(with_sets(sharp, tmp_path, *sets)).manifest.skip_sets
    assert found == sets
    assert (found[0].score.speedup(sampled=False), found[0].score.speedup(sampled=True)) == (
        1.5, 0.99,
    )  # fmt: skip


def test_a_score_of_both_kinds_of_text_together_is_refused(sharp, tmp_path):
    """Older manifests had one score for both."""
    path = with_sets(sharp, tmp_path, SkipSet((3, 4)))
    manifest = json.loads((path / bundles.MANIFEST).read_text())
    manifest["skip_sets"][0]["score"] = {"agreement": 0.5, "draft_cost": 0.9}
    (path / bundles.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"score\.agreement: unknown field: export .* again"):
        bundles.load(path)


@pytest.mark.parametrize("draft", ["auto", "layer-skip"])
@pytest.mark.parametrize("paying", ["greedy", "sampled"])
def test_a_set_is_tried_where_it_promised_to_pay(sharp, tmp_path, monkeypatch, draft, paying):
    """It is tried in the first two rounds of such text; otherwise it waits for a probe."""
    promises = {"greedy": LOSES, "sampled": LOSES, paying: PAYS}
    score = SkipScore(0.9, 100.0, "onnxruntime:cpu", **promises)
    path = with_sets(sharp, tmp_path, SkipSet((3, 4), score))
    llm = LLM(path, draft=draft, device=CPU_ENGINES[0], threads=1)
    feed = SkipCalls.feed
    for kind, temperature in (("greedy", 0.0), ("sampled", 3.0)):
        stream = llm.stream(PROMPT[:20], max_new_tokens=200, temperature=temperature, seed=1)
        asked = []

        def watched(calls, text, stream=stream, asked=asked):
            asked.append(len(stream.rounds))
            return feed(calls, text)

        monkeypatch.setattr(SkipCalls, "feed", watched)
        for _ in stream:
            pass
        assert asked[:2] == [0, 1] if kind == paying else asked[0] == 31


def test_a_set_that_does_not_fit_the_stages_is_refused(sharp, tmp_path):
    path = with_sets(sharp, tmp_path, SkipSet((3,)))
    with pytest.raises(BundleError, match=r"skip set 1m: stage 1 holds more .* export it again"):
        LLM(path, draft="layer-skip", device=CPU_ENGINES[0], threads=1)
