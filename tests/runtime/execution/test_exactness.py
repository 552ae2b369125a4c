"""Tests that rows are bit for bit the same in all calls, or found not to be."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import make_checkpoint, write_tokenizer
from pairs import ENGINES

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.export import ExportOptions, export_bundle
from edgespec.export import role as export_role
from edgespec.export.components.attention import SplitAttention
from edgespec.measuring.bits import compare_bits
from edgespec.measuring.equality import Judge
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.exactness import Exactness, measure, use_exact_shapes
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import BORDER, RECENT

SHAPES = {"intermediate_size": 256, "hidden_size": 128, "head_dim": 32}
HEADS = {"shared keys": (4, 2), "keys of their own": (4, 4)}
engines = pytest.mark.parametrize("engine_name", ENGINES)


def exported(folder, precision="int4", heads=(4, 2), **options):
    queries, keys = heads
    make_checkpoint(
        folder / "target", "llama", num_attention_heads=queries, num_key_value_heads=keys, **SHAPES
    )
    write_tokenizer(folder / "target", 331)
    export_bundle(folder / "target", folder / "bundle", None, ExportOptions(precision, **options))
    return bundles.load(folder / "bundle")


@pytest.fixture(scope="module", params=["int4", "int8", "fp32"])
def bundle(request, tmp_path_factory):
    return exported(tmp_path_factory.mktemp("exact"), request.param)


def a_text(model, length, seed=0):
    return np.random.default_rng(seed).integers(0, model.role.vocab_size, length).tolist()


def loaded(bundle, name):
    return exactness.load(bundle, TARGET, (engine(name),), 2)


@engines
def test_rows_are_the_same_bits_in_chunks_trees_and_resumed_texts(bundle, engine_name):
    model = loaded(bundle, engine_name)
    assert model.exact
    for seed, start in enumerate((1, 50, 200)):
        found = compare_bits(model, a_text(model, start + 90, seed), start, seed)
        assert found.rows > 90
        assert found.differing == 0, found.where


@pytest.mark.slow
@engines
def test_so_they_are_across_the_border(bundle, engine_name):
    model = loaded(bundle, engine_name)
    found = compare_bits(model, a_text(model, BORDER + 30), BORDER - 40)
    assert found.differing == 0, found.where


@engines
def test_split_attention_is_not_exact_and_that_is_seen(tmp_path, monkeypatch, engine_name):
    """Shows that the tests above can fail."""
    monkeypatch.setattr(export_role, "OrderedAttention", SplitAttention)
    bundle = exported(tmp_path)
    model = loaded(bundle, engine_name)
    assert not model.exact
    assert compare_bits(model, a_text(model, 120), 30).differing > 20


@engines
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_heads_with_keys_of_their_own_need_a_second_row(tmp_path, engine_name, heads):
    bundle = exported(tmp_path, heads=heads)
    model = loaded(bundle, engine_name)
    assert model.exact
    assert compare_bits(model, a_text(model, 90), 20).differing == 0


def test_what_was_tried_is_kept(bundle, monkeypatch):
    one = engine(ENGINES[0])
    loaded(bundle, ENGINES[0])
    kept = exactness.recall(bundle, TARGET, (one,), 2)
    assert kept is not None
    monkeypatch.setattr(
        "edgespec.runtime.execution.exactness.measure", lambda model: pytest.fail("again")
    )
    assert loaded(bundle, ENGINES[0]).exact == kept.exact


@pytest.mark.parametrize(
    ("found", "exact", "rows"),
    [
        (Exactness(exact=True, single=False, texts=True), True, (2, 4, 6, 8)),
        (Exactness(exact=True, single=True, texts=False), True, (1, 2, 3, 4)),
        (Exactness(exact=False, single=False), False, (1, 2, 3, 4)),
    ],
)
def test_shapes_follow_from_what_was_found(bundle, monkeypatch, found, exact, rows):
    one = engine("onnxruntime:cpu")
    model = Model.load(bundle, TARGET, one, 2)
    monkeypatch.setattr(exactness, "recall", lambda *_: found)
    use_exact_shapes(model, bundle, TARGET, (one,), 2)
    assert model.exact == exact
    assert model.shapes.rows[: len(rows)] == rows
    assert model.shapes.rows[-1] == 64
    assert model.joins_texts is (found.texts is not False)


def test_what_was_found_with_a_graph_for_one_text_says_nothing_of_several(bundle, own_cache):
    engines = (engine("onnxruntime:cpu"),)
    assert not exactness.load(bundle, TARGET, engines, 2, texts=False).joins_texts
    found = exactness.recall(bundle, TARGET, engines, 2)
    assert found.exact
    assert found.texts is None
    assert exactness.load(bundle, TARGET, engines, 2).joins_texts
    assert exactness.recall(bundle, TARGET, engines, 2).texts


def test_an_engine_whose_rows_depend_on_their_company_is_found_out(bundle, monkeypatch):
    model = Model.load(bundle, TARGET, engine(ENGINES[0]), 2)
    [executable] = model.executables
    run = executable.run

    def noisy(feeds, cache):
        outputs = run(feeds, cache)
        outputs.results["logits"][:] += 1e-6 * len(feeds["input_ids"])
        return outputs

    monkeypatch.setattr(executable, "run", noisy)
    assert measure(model) == Exactness(exact=False, single=False)


def test_a_call_holds_no_more_tokens_in_a_row_than_are_added_up_apart(bundle):
    model = loaded(bundle, ENGINES[0])
    runner = Runner(model)
    assert runner.reach == RECENT
    deep = Rows([1], [RECENT], np.ones((1, RECENT + 1), np.bool_), [START])
    with pytest.raises(ValueError, match="consecutive tokens"):
        model.feeds(2, 256, 2, 80).fill(deep, 100)
    runner.skip(BORDER - 3)
    assert runner.reach == 3
    assert runner.chunks(100) == [3, 64, 33]
    runner.skip(3)
    assert runner.reach == RECENT


def test_results_say_whether_texts_are_exact(bundle):
    llm = LLM(bundle.path, device=ENGINES[0], draft="lookup", threads=2)
    assert llm.generate([1, 2, 3], max_new_tokens=4).exact


def test_an_exact_target_has_no_near_ties(bundle):
    llm = LLM(bundle.path, device=ENGINES[0], draft="none", threads=2)
    judge = Judge(llm.target, llm.tokenizer)
    made = llm.generate([1, 2, 3], max_new_tokens=4).tokens
    ending = [*made[:-1], (made[-1] + 1) % 300]
    assert judge.verdict([1, 2, 3], made, made) == "yes"
    assert judge.verdict([1, 2, 3], made, ending) == "no"
