"""Adapters beside a model's matrices, against the same adapters merged into them with torch."""

from __future__ import annotations

import numpy as np
import pytest
from adapters import ALL, write_gguf, write_peft
from checkpoints import make_checkpoint
from ggufs import write_gguf as write_gguf_model
from nodes import MISSING, same_bits
from parity import PROMPT, distance, reference

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.llm.instance import ModelInstance
from edgespec.llm.load.options import LoadOptions
from edgespec.runtime.sequences.model import AFTER, Rows

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

SAME = 1e-5  # float32 sums in another order
FAR = 1e-2  # what an adapter changes is far more
TOKENS = PROMPT[:40]

MODELS = {
    "llama": {},
    "llama-tied-biases": {"tie_word_embeddings": True, "attention_bias": True},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {},
    "gemma3_text": {},
    "phi3": {},
    "glm4": {},
    "cohere2": {},
    "stablelm": {},
    "granite": {},
    "mistral": {},
    "qwen3_5_text": {},
    "qwen3_moe": {},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns transformers' model of a name, and a bundle of it in float32; each made once."""
    found = {}

    def make(name):
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            model = make_checkpoint(folder / "model", name.partition("-")[0], **MODELS[name])
            export.make(folder / "model", folder / "bundle", options=ExportOptions("fp32"))
            found[name] = model, bundles.load(folder / "bundle")
        return found[name]

    return make


def load(bundle, *lora, **options):
    return ModelInstance(bundle, LoadOptions(lora=lora, draft="none", threads=1, **options))


def sequence(instance, adapters=None):
    found = instance.engine.target.sequence([])
    found.adapters = instance.adapters.chosen(adapters)
    return found


def chain(own, tokens):
    return Rows(own, tokens, [AFTER, *range(len(tokens) - 1)], [*range(len(tokens))])


def logits(instance, tokens=TOKENS, adapters=None):
    """Logits of all tokens, [n, V]."""
    rows = chain(sequence(instance, adapters), tokens)
    found = instance.engine.target.forward([rows])[0].copy()
    rows.accept([])
    return found


def modules_of(name):
    return [each for each in ALL if each != "lm_head" or not name.startswith("gemma2")]


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_a_model_with_the_adapter_merged(made, name, tmp_path):
    model, bundle = made(name)
    merged = write_peft(tmp_path / "adapter", model, modules_of(name))
    instance = load(bundle, tmp_path / "adapter")
    found = logits(instance)[-1]
    expected = reference(merged, TOKENS)
    assert distance(found, expected) <= SAME
    assert distance(found, reference(model, TOKENS)) > FAR


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 3.0, "self_attn.v_proj": 5.0, "^model.none": 2.0}},
        {"rank": 17, "lora_alpha": 5, "init_lora_weights": "gaussian", "target_modules": ["x"]},
    ],
)
def test_scales_are_those_of_peft(made, config, tmp_path):
    model, bundle = made("llama")
    merged = write_peft(tmp_path / "adapter", model, ALL, **config)
    assert (
        distance(logits(load(bundle, tmp_path / "adapter"))[-1], reference(merged, TOKENS)) < SAME
    )


def test_models_whose_weights_are_read_times_factors_take_none(tmp_path):
    model = make_checkpoint(tmp_path / "model", "falcon_h1")
    export.make(tmp_path / "model", tmp_path / "bundle", options=ExportOptions("fp32"))
    write_peft(tmp_path / "adapter", model, ["q_proj"])
    with pytest.raises(UnsupportedModelError, match="falcon_h1 models are not supported: merge"):
        load(bundles.load(tmp_path / "bundle"), tmp_path / "adapter")


@pytest.mark.parametrize("alpha", [8.0, 0.0])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_files_of_llama_cpp_are_read(made, name, alpha, tmp_path):
    model, bundle = made(name)
    merged = write_gguf(tmp_path / "adapter.gguf", model, alpha=alpha)
    found = logits(load(bundle, tmp_path / "adapter.gguf"))[-1]
    assert distance(found, reference(merged, TOKENS)) <= SAME


def test_a_model_of_a_gguf_file_takes_adapters_of_both_forms(tmp_path):
    model = make_checkpoint(tmp_path / "model", "llama")
    write_gguf_model(tmp_path / "model", tmp_path / "model.gguf")
    export.make(tmp_path / "model.gguf", tmp_path / "bundle", options=ExportOptions("fp32"))
    merged = write_gguf(tmp_path / "adapter.gguf", model)
    write_peft(tmp_path / "adapter", model, tuple(each for each in ALL if each != "lm_head"))
    for path in ("adapter.gguf", "adapter"):
        found = logits(load(bundles.load(tmp_path / "bundle"), tmp_path / path))[-1]
        assert distance(found, reference(merged, TOKENS)) <= SAME


def test_scales_are_those_that_texts_ask_for(made, tmp_path):
    model, bundle = made("llama")
    first = write_peft(tmp_path / "first", model, ALL, scale=0.5)
    both = write_peft(tmp_path / "second", first, ("q_proj", "down_proj"), rank=7, seed=1)
    second = write_peft(tmp_path / "again", model, ("q_proj", "down_proj"), rank=7, seed=1)
    instance = load(bundle, f"{tmp_path / 'first'}:0.5", f"{tmp_path / 'second'}:0")
    for adapters, merged in [
        (None, first),
        ({"first": 0.5, "second": 1.0}, both),
        ({"second": 1.0}, second),
        ({}, model),
        ({"first": 0.0}, model),
    ]:
        assert distance(logits(instance, adapters=adapters)[-1], reference(merged, TOKENS)) <= SAME


def test_without_an_adapter_bits_are_those_of_the_model_alone(made, tmp_path):
    model, bundle = made("llama")
    write_peft(tmp_path / "adapter", model)
    same_bits(logits(load(bundle, tmp_path / "adapter"), adapters={}), logits(load(bundle)))


def test_sequences_of_one_pass_have_adapters_of_their_own(made, tmp_path):
    model, bundle = made("llama")
    for number, rank in enumerate((3, 20)):
        write_peft(tmp_path / f"a{number}", model, rank=rank, seed=number)
    instance = load(bundle, tmp_path / "a0", tmp_path / "a1")
    asked = [{}, {"a0": 1.0}, {"a1": 1.0}, {"a0": 0.5, "a1": -1.0}, {"a0": 1.0}]
    prompts = [TOKENS[n : n + 9 + 4 * n] for n in range(len(asked))]
    alone = [logits(instance, *each) for each in zip(prompts, asked, strict=True)]
    batch = [
        chain(sequence(instance, own), prompt) for prompt, own in zip(prompts, asked, strict=True)
    ]
    for found, expected in zip(instance.engine.target.forward(batch), alone, strict=True):
        same_bits(found, expected)
    for tokens in (1, 5):  # and in chunks
        own = sequence(instance, asked[3])
        parts = []
        for start in range(0, 20, tokens):
            rows = chain(own, TOKENS[start : start + tokens])
            parts.append(instance.engine.target.forward([rows])[0].copy())
            rows.accept(range(len(rows.tokens)))
        same_bits(np.concatenate(parts), logits(instance, TOKENS[:20], asked[3]))
