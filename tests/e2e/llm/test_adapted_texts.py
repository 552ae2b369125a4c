"""Texts with adapters: the same with any drafts, beside any others, and from any cache."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest
from adapters import write_peft
from native_llms import cheapen, loaded, with_library
from pairs import LONG_PROMPT, SHORT_PROMPT
from safetensors.numpy import load_file, save_file

from edgespec.errors import CheckpointError, DeviceError, InputError, UnsupportedModelError
from edgespec.llm import stored_prompts
from edgespec.llm.llm import inside
from edgespec.llm.load import place

pytestmark = with_library

OPTIONS = {"max_new_tokens": 24, "logprobs": 3}
NAMES = ("poet", "clerk")


@pytest.fixture(scope="module")
def adapters(pairs, tmp_path_factory):
    """Returns the folders of two adapters of a pair's target, each pair's made once."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(f"adapters-{name}")
            model = pairs.pair(name).target
            for seed, own in enumerate(NAMES):
                write_peft(folder / own, model, ("q_proj", "v_proj", "o_proj"), seed=seed)
            made[name] = [folder / own for own in NAMES]
        return made[name]

    return make


@pytest.fixture(scope="module")
def adapted(pairs, adapters):
    """Returns loaded pairs with two adapters, of which none adds to texts that don't say."""
    made = {}

    def load(name, draft="auto"):
        if (name, draft) not in made:
            lora = [f"{each}:0" for each in adapters(name)]
            made[name, draft] = loaded(pairs, name, draft, lora=lora)
        return made[name, draft]

    yield load
    for llm in made.values():
        llm.close()


def bits(result):
    return result.tokens, result.logprobs


@pytest.mark.parametrize("name", ["llama", "head-skip", "lfm2-draft", "qwen3_5_text-draft"])
def test_drafts_change_no_bit_of_texts_with_adapters(adapted, name):
    llm = cheapen(adapted(name))
    plain = {}
    for source in reversed(llm.draft_sources):
        for own in ({}, {"poet": 1.0}, {"poet": 0.5, "clerk": 2.0}):
            found = llm.generate(LONG_PROMPT, adapters=own, draft_source=source, **OPTIONS)
            assert bits(found) == plain.setdefault(str(own), bits(found)), source
    assert len({str(each) for each in plain.values()}) == len(plain)


def test_texts_of_several_adapters_share_passes(adapted):
    llm = adapted("llama")
    asked = [None, "poet", "clerk", {"poet": 0.5}, NAMES]
    alone = [llm.generate(SHORT_PROMPT, adapters=own, **OPTIONS) for own in asked]
    llm.forget()
    streams = [llm.stream(SHORT_PROMPT, adapters=own, **OPTIONS) for own in asked]
    steps = [iter(each) for each in streams]
    while steps:
        steps = [each for each in steps if next(each, None) is not None]
    assert [bits(each.result) for each in streams] == [bits(each) for each in alone]


@pytest.mark.parametrize("name", ["llama", "lfm2-draft"])
def test_what_was_computed_with_one_adapter_is_not_used_with_another(adapted, name):
    llm = adapted(name, "none")
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    fresh = {}
    for own in ((), "poet", "clerk"):
        llm.forget()
        fresh[own] = llm.generate(prompt, adapters=own, **OPTIONS)
    llm.forget()
    with llm.session() as session:
        for own in ("poet", "clerk", (), "poet"):
            found = session.generate(prompt, adapters=own, **OPTIONS)
            assert bits(found) == bits(fresh[own])
            again = session.generate(prompt, adapters=own, **OPTIONS)
            assert (bits(again), again.reused) == (bits(found), len(prompt) - 1)
    llm.forget()
    for own in ("poet", {"poet": 0.25}):  # another scale is another model
        assert llm.generate(prompt, adapters=own, **OPTIONS).reused == 0
    assert llm.generate(prompt, adapters={"poet": 1.0}, **OPTIONS).reused == len(prompt) - 1


def test_saved_sessions_are_those_of_their_adapters(adapted, adapters, pairs, tmp_path):
    llm = adapted("llama", "none")
    prompt = llm.tokenizer.encode(LONG_PROMPT)
    with llm.session() as session:
        expected = session.generate(prompt, adapters="poet", **OPTIONS)
        session.save(tmp_path / "poet.session")
    with loaded(pairs, "llama", "none", lora=adapters("llama")[0]) as other:
        with other.load_session(tmp_path / "poet.session") as session:
            assert len(session.tokens) > len(prompt)
            plain = session.generate(prompt, adapters={}, **OPTIONS)
            assert plain.reused == 0
            assert plain.tokens != expected.tokens
        with other.load_session(tmp_path / "poet.session") as session:
            found = session.generate(prompt, **OPTIONS)
            assert (bits(found), found.reused) == (bits(expected), len(prompt) - 1)


def test_prompts_on_disk_are_those_of_their_adapters(adapters, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_prompts, "BLOCK", 64)
    prompt = np.random.default_rng(0).integers(1, 300, 200).tolist()
    for lora, reused in [((), 0), ("poet", 0), ("clerk", 0), ("poet", 192), ((), 192)]:
        given = [each for each in adapters("llama") if each.name in lora]
        options = {"lora": given, "prompt_cache": tmp_path / "prompts"}
        with loaded(pairs, "llama", "none", **options) as llm:
            assert llm.generate(prompt, **OPTIONS).reused == reused


def test_adapters_of_one_content_and_other_scales_are_told_apart(adapters, pairs, tmp_path):
    folder = adapters("llama")[0]
    other = tmp_path / "other"
    other.mkdir()
    save_file(load_file(folder / "adapter_model.safetensors"), other / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 1}))
    with loaded(pairs, "llama", "none", lora=(folder, other)) as llm:
        known = inside(llm).adapters
        keys = [known.key(known.chosen({name: 1.0})) for name in ("poet", "other")]
        assert len({*keys, known.key(())}) == 3


def test_names_and_scales_are_checked(adapted, pairs, adapters):
    llm = adapted("llama", "none")
    with pytest.raises(
        InputError,
        match=r"adapter 'poets' is not loaded \(did you mean poet\?\): use poet or clerk",
    ):
        llm.generate(SHORT_PROMPT, adapters="poets")
    for wrong in ({"poet": "much"}, [3]):
        with pytest.raises(InputError, match="give names, or scales by names"):
            llm.generate(SHORT_PROMPT, adapters=wrong)
    with pytest.raises(InputError, match="scale of adapter 'poet' is inf"):
        llm.generate(SHORT_PROMPT, adapters={"poet": float("inf")})
    with pytest.raises(InputError, match=r"scale of .*poet is nan"):
        loaded(pairs, "llama", lora=f"{adapters('llama')[0]}:nan")
    with pytest.raises(InputError, match="two adapters have the name 'poet'"):
        loaded(pairs, "llama", lora=[adapters("llama")[0]] * 2)
    with pytest.raises(InputError, match="is not loaded: load the model with it"):
        loaded(pairs, "llama", "none").generate(SHORT_PROMPT, adapters="poet")


def test_adapters_of_other_models_are_refused(pairs, tmp_path):
    with pytest.raises(CheckpointError, match="does not exist: give an adapter's folder or file"):
        loaded(pairs, "llama", lora=tmp_path / "none")
    with pytest.raises(UnsupportedModelError, match="merge it into its model"):
        loaded(pairs, "gemma2", lora=write(tmp_path / "wide", {"model.none": (64, 64)}))
    name = "model.layers.0.self_attn.o_proj"
    with pytest.raises(UnsupportedModelError, match="use an adapter of this model"):
        loaded(pairs, "llama", lora=write(tmp_path / "high", {name: (64, 96 + 16)}))
    with pytest.raises(CheckpointError, match="reads rows of 32, and the model has others there"):
        loaded(pairs, "llama", lora=write(tmp_path / "narrow", {name: (32, 64)}))


def test_devices_without_our_operators_are_refused(pairs, adapters, monkeypatch):
    monkeypatch.setattr(place, "library", lambda: None)
    with pytest.raises(DeviceError, match="adapters add to what edgespec's compiled operators"):
        loaded(pairs, "llama", lora=adapters("llama")[0])


def write(folder, shapes):
    """Writes an adapter of zeros for modules of these sizes of inputs and outputs."""
    tensors = {}
    for name, (width, rows) in shapes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = np.zeros((4, width), np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = np.zeros((rows, 4), np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "lora_alpha": 8, "r": 4}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_a_stream_goes_on_when_nobody_has_its_model(adapted, adapters, pairs):
    expected = adapted("llama", "none").generate(SHORT_PROMPT, adapters="poet", **OPTIONS)
    stream = loaded(pairs, "llama", "none", lora=adapters("llama")[0]).stream(
        SHORT_PROMPT, **OPTIONS
    )
    gc.collect()
    assert bits(stream.finish()) == bits(expected)
