"""Models with recurrent layers: their texts, sessions, files, memory, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoints import RECURRENT
from drafts import engines
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS, logits_of
from parity import SAME_STATES, distance
from runners import Runners, following
from sessions import OPTIONS, turns

from edgespec import LLM
from edgespec.bundle import TARGET
from edgespec.bundle.sublayers import CHUNK
from edgespec.errors import DeviceError, InputError, UnsupportedModelError
from edgespec.export import ExportOptions, export_bundle
from edgespec.models import load_checkpoint
from edgespec.runtime.engines.recurrence import recurrent_bytes
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.slots import Slots
from edgespec.runtime.speculation.tree import ROOT, TokenTree

recurrent = pytest.mark.parametrize("name", RECURRENT)


@pytest.fixture(scope="module")
def runner(pairs):
    return Runners(pairs)


# Texts


@pytest.mark.slow
@engines
@recurrent
def test_greedy_text_is_transformers_own_for_every_draft(pairs, name, engine):
    expected, accepted = pairs.greedy(name), 0
    for draft in ("none", "lookup", "recycling", "auto"):
        llm = pairs.llm(name, engine, draft)
        result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)
        assert result.tokens == expected, draft
        accepted += result.accepted
    assert accepted > 0


@pytest.mark.slow
@engines
@recurrent
def test_sampled_text_is_the_same_for_every_draft(pairs, name, engine):
    options = {"temperature": 1.5, "seed": 5, "max_new_tokens": NEW_TOKENS}
    plain = pairs.llm(name, engine, "none").generate(LONG_PROMPT, **options)
    for draft in ("lookup", "recycling", "auto"):
        result = pairs.llm(name, engine, draft).generate(LONG_PROMPT, **options)
        assert result.tokens == plain.tokens, draft


@engines
@recurrent
def test_a_text_that_repeats_itself_loses_no_digits(pairs, runner, name, engine):
    """Equal keys are the worst case of the delta rule's inverse."""
    text = [7] * 90
    expected = logits_of(pairs.pair(name).target, text)
    assert distance(runner(name, engine).prefill(text)["logits"][0], expected[-1]) < SAME_STATES


@engines
@recurrent
@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 2])
def test_a_tree_at_a_border_has_the_bits_of_its_branches(runner, name, engine, length):
    """Each branch is compared with plain decoding, row by row."""
    rng = np.random.default_rng(length)
    text = rng.integers(1, 300, length).tolist()
    tree = runner(name, engine)
    tree.prefill(text)
    depth = min(tree.reach, 5)
    tokens, parents, branches = [], [], []
    for _ in range(3):
        branch, above = rng.integers(1, 300, depth - 1).tolist(), ROOT
        branches.append(range(len(tokens) + 1, len(tokens) + depth))
        for token in branch:
            tokens.append(token)
            parents.append(above)
            above = len(tokens) - 1
    nodes = TokenTree(np.array(tokens, np.int64), np.array(parents, np.int64))
    found = tree.verify(Rows.tree(9, nodes))["logits"].copy()
    tree.commit([0, *branches[1]])
    assert tree.length == length + depth
    assert tree.model.exact
    for rows in branches:
        alone = runner(name, engine)
        alone.prefill(text)
        for row, token in zip([0, *rows], [9, *(tokens[row - 1] for row in rows)], strict=True):
            logits = alone.verify(Rows.chain([token]))["logits"][0]
            np.testing.assert_array_equal(logits, found[row])
            alone.commit([0])
    again = runner(name, engine)
    again.prefill(tree.tokens)
    np.testing.assert_array_equal(*(following(each) for each in (tree, again)))


# Sessions


@pytest.mark.slow
@engines
@recurrent
def test_texts_of_a_session_are_those_of_its_prompts_alone(pairs, name, engine):
    plain = pairs.llm(name, engine, "none")
    place = {"device": engine, "threads": 1}
    with LLM(pairs.pair(name).path, draft="lookup", **place) as llm, llm.session() as session:
        reused = 0
        for prompt in turns(llm, 8):
            result = session.generate(prompt, **OPTIONS)
            assert result.tokens == plain.generate(prompt, **OPTIONS).tokens
            reused += result.reused
    assert reused > 200


@recurrent
def test_a_text_goes_back_by_some_tokens_or_begins_anew(runner, name):
    text = np.random.default_rng(1).integers(1, 300, 100).tolist()
    expected = runner(name).prefill(text[:70])["logits"][0].copy()
    held = runner(name)
    held.prefill(text)  # the last border is 96, and the state at 64 is held, too
    known = {length: held.known(text[:length]) for length in (100, 97, 96, 65, 64, 40)}
    assert known == {100: 99, 97: 96, 96: 95, 65: 64, 64: 0, 40: 0}
    held.resume(text[:70])
    assert held.length == 69
    np.testing.assert_array_equal(held.prefill(text[69:70])["logits"][0], expected)


@recurrent
def test_a_saved_session_goes_on_elsewhere(pairs, name, tmp_path):
    place = {"device": ENGINES[0], "threads": 1, "draft": "none"}
    with LLM(pairs.pair(name).path, **place) as llm, llm.session() as session:
        first = session.generate(LONG_PROMPT, **OPTIONS)
        session.save(tmp_path / "file")
        prompt = [*llm.tokenizer.encode(LONG_PROMPT), *first.tokens, 17, 4]
        expected = session.generate(prompt, **OPTIONS)
    with (
        LLM(pairs.pair(name).path, **place) as other,
        other.load_session(tmp_path / "file") as session,
    ):
        found = session.generate(prompt, **OPTIONS)
    assert found.tokens == expected.tokens
    assert found.reused == expected.reused > 200


@recurrent
def test_a_copied_beginning_is_only_taken_where_its_state_is_held(runner, name):
    text = np.random.default_rng(2).integers(1, 300, 150).tolist()
    source = runner(name)
    source.prefill(text)
    for length, held in ((150, 150), (129, 129), (100, 100), (60, 0)):
        target = runner(name)
        target.restore(source.snapshot(length))
        assert target.length == held
        assert target.fits(source.snapshot(length))
        expected = runner(name)
        expected.prefill(text[: max(length, 1)])
        target.prefill(text[held : max(length, held + 1)][: max(length - held, 0)] or [5])
        if held < length:
            np.testing.assert_array_equal(*(following(each) for each in (target, expected)))
    slots = Slots({TARGET: source.model}, 1 << 40, shared=True)
    with slots.enter(None, text, 400) as slot:
        slot.runners[TARGET].prefill(text)
    with slots.enter(None, text[:50], 400) as slot:
        assert slot.runners[TARGET].known(text[:50]) == 0


# Memory, and refusals


@recurrent
def test_plans_and_slots_count_what_layers_hold(pairs, runner, name):
    role = pairs.llm(name, ENGINES[0], "none").bundle.target
    held = list(role.layout.recurrent(range(role.layout.head)).values())
    one = runner(name)
    rows = sum(cache.bytes_at(cache.capacity) for cache in one._caches)
    assert one.bytes == rows + recurrent_bytes(held)


@recurrent
def test_other_devices_fixed_shapes_and_half_models_are_refused(pairs, name, tmp_path):
    path = pairs.pair(name).path
    with pytest.raises(DeviceError, match="recurrent layers, which only onnxruntime:cpu and openv"):
        LLM(path, device="onnxruntime:cpu#8x256", draft="none")
    target = path.parent / "target"
    with pytest.raises(InputError, match="recurrent layers, whose states a layer-skip draft"):
        export_bundle(target, tmp_path / "b", options=ExportOptions("fp32", skip_sets=("1",)))
    assert not (tmp_path / "b").exists()
    with pytest.raises(DeviceError, match=r"its draft has recurrent layers.* --draft lookup"):
        LLM(pairs.pair(f"{name}-draft").path)


def test_a_family_without_recurrent_layers_refuses_them(pairs, tmp_path):
    source = pairs.pair("llama").path.parent / "target"
    config = json.loads((source / "config.json").read_text())
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config["layer_types"] = ["conv"] + ["full_attention"] * (config["num_hidden_layers"] - 1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"layer_types=.*conv.*llama models have att"):
        load_checkpoint(tmp_path)
