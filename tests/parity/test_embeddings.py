"""Embeddings: parity with transformers, and what depends on nothing but the text."""

from __future__ import annotations

from shutil import copytree

import numpy as np
import pytest
from checkout import ROOT
from checkpoints import edit_json
from embeddings import (
    END,
    PROMPTS,
    add_dense,
    embedding_of,
    ids_of,
    make_embedding,
    write_modules,
)
from ggufs import write_gguf
from manifests import changed
from native_llms import with_library
from parity import SAME
from transformers import AutoModelForCausalLM

from edgespec import LLM, export
from edgespec.bundle import MANIFEST
from edgespec.errors import BundleError, ContextLengthError, InputError
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.tuning.calibrating import TextCalibration

CHECKPOINT = ROOT / "models/embedded/checkpoints/python-7m"
TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "class Tree:\n    pass\n",
    "the quick brown fox jumps over the lazy dog " * 9,
    "x",
]
MADE = {
    "qwen3-last": {"pooling": "lasttoken", "bare": True, "tie_word_embeddings": True},
    "qwen3-last-untied": {"pooling": "lasttoken", "normalized": False},
    "llama-mean": {"pooling": "mean_tokens", "bare": True},
    "mistral-mean-window": {
        "pooling": "mean_tokens", "normalized": False, "sliding_window": 100,
    },
    "gemma3_text-last": {"pooling": "lasttoken"},
    "qwen2-last-both": {"pooling": "lasttoken", "is_causal": False},
}  # fmt: skip
PLAIN = {"threads": 1}
DENSE = ("dense_2.weight", "dense_3.weight")
pytestmark = with_library


def near(found, expected):
    return bool(np.allclose(found, expected, rtol=0, atol=SAME * np.abs(expected).max()))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Checkpoint, transformers' model and fp32 bundle of each name, made at its first use."""
    found = {}

    def make(name):
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            options = {"prompts": PROMPTS, **MADE[name]}
            model = make_embedding(folder / "checkpoint", name.split("-")[0], **options)
            export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
            found[name] = folder, model
        return found[name]

    return make


@pytest.fixture(scope="module")
def llm(made):
    folder, _ = made("qwen3-last")
    with LLM(folder / "bundle", **PLAIN) as llm:
        yield llm


@pytest.fixture(scope="module")
def mean(made):
    folder, _ = made("llama-mean")
    with LLM(folder / "bundle", **PLAIN) as llm:
        yield llm


@pytest.mark.parametrize("name", MADE)
def test_vectors_are_those_of_transformers(made, name):
    folder, model = made(name)
    options = MADE[name]
    with LLM(folder / "bundle", **PLAIN) as llm:
        found = llm.embed(TEXTS)
    assert found.shape == (len(TEXTS), 64)
    assert found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        ids = ids_of(folder / "checkpoint", text)
        assert ids[-1] == END
        expected = embedding_of(model, ids, options["pooling"], options.get("normalized", True))
        assert near(vector, expected)


def test_what_is_normalized_has_length_one_and_what_is_not_has_its_own(made, llm):
    assert np.linalg.norm(llm.embed(TEXTS), axis=1) == pytest.approx([1] * len(TEXTS), abs=1e-6)
    folder, _ = made("qwen3-last-untied")
    with LLM(folder / "bundle", **PLAIN) as own:
        assert np.linalg.norm(own.embed("x")) > 2


@pytest.mark.parametrize("name", ["llm", "mean"])
def test_order_and_company_change_nothing(request, name):
    llm = request.getfixturevalue(name)
    whole = llm.embed(TEXTS)
    assert np.array_equal(llm.embed(TEXTS[::-1]), whole[::-1])
    for text, vector in zip(TEXTS, whole, strict=True):
        assert np.array_equal(llm.embed(text), [vector])
    assert not inside(llm).engine.target.pool.used


def test_tokens_are_used_unchanged(made, llm):
    folder, model = made("qwen3-last")
    ids = ids_of(folder / "checkpoint", TEXTS[0])
    assert np.array_equal(llm.embed(ids), llm.embed(TEXTS[0]))
    assert np.array_equal(llm.embed([ids, [5, 6]]), llm.embed([TEXTS[0], [5, 6]]))
    assert near(llm.embed([5, 6])[0], embedding_of(model, [5, 6], "lasttoken"))
    assert llm.embed([]).shape == (0, 64)


def test_first_numbers_are_normalized_again(made, llm):
    whole = llm.embed(TEXTS)
    cut = llm.embed(TEXTS, dimensions=24)
    expected = whole[:, :24] / np.linalg.norm(whole[:, :24], axis=1, keepdims=True)
    assert cut.shape == (len(TEXTS), 24)
    assert np.allclose(cut, expected, atol=1e-6)
    folder, _ = made("qwen3-last-untied")
    with LLM(folder / "bundle", **PLAIN) as own:
        assert np.array_equal(own.embed(TEXTS, dimensions=3), own.embed(TEXTS)[:, :3])


def test_prompts_of_the_checkpoint(llm):
    prompted = llm.embed(TEXTS[:2], prompt_name="query")
    assert np.array_equal(prompted, llm.embed([PROMPTS["query"] + text for text in TEXTS[:2]]))
    assert not np.allclose(prompted, llm.embed(TEXTS[:2]), atol=1e-2)
    assert np.array_equal(llm.embed("x", prompt_name="document"), llm.embed("x"))


def test_the_default_prompt_is_used_unasked(made, llm, tmp_path):
    folder, _ = made("qwen3-last")
    source = copytree(folder / "checkpoint", tmp_path / "checkpoint")
    write_modules(source, prompts=PROMPTS, default_prompt="query")
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as own:
        assert np.array_equal(own.embed("x"), llm.embed("x", prompt_name="query"))
        assert np.array_equal(own.embed("x", prompt_name="document"), llm.embed("x"))


def test_an_end_that_only_the_config_asks_for(made, llm, tmp_path):
    """As of models whose slow tokenizer appended it."""
    folder, _ = made("qwen3-last")
    source = copytree(folder / "checkpoint", tmp_path / "checkpoint")
    edit_json(source / "tokenizer.json", post_processor=None)
    assert ids_of(source, "x")[-1:] != [END]
    end = {"add_eos_token": True, "eos_token": "<|endoftext|>"}
    edit_json(source / "tokenizer_config.json", **end)
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as own:
        assert np.array_equal(own.embed(TEXTS), llm.embed(TEXTS))


@pytest.mark.parametrize(
    ("name", "told"),
    [("qwen3-last-untied", {}), ("qwen2-last-both", {"qwen2.attention.causal": False})],
)
def test_a_gguf_file_makes_the_same_vectors(made, tmp_path, name, told):
    folder, _ = made(name)
    kind = name.partition("-")[0]
    fields = {f"{kind}.pooling_type": 3, "tokenizer.ggml.add_eos_token": True, **told}
    write_gguf(folder / "checkpoint", tmp_path / "model.gguf", **fields)
    for bundle, source in (("a", folder / "checkpoint"), ("b", tmp_path / "model.gguf")):
        export.make(source, tmp_path / bundle, options=ExportOptions("fp32"))
    with LLM(tmp_path / "a", **PLAIN) as one, LLM(tmp_path / "b", **PLAIN) as other:
        expected = one.embed(TEXTS)
        found = other.embed(TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(found, expected, atol=1e-5)


def test_embeddinggemmas_file(tmp_path):
    """With its dense layers, as the converter writes them where it is asked to, and without."""
    source = tmp_path / "checkpoint"
    make_embedding(
        source,
        "gemma3_text",
        pooling="mean_tokens",
        use_bidirectional_attention=True,
        tie_word_embeddings=True,
        sliding_window=16,
        query_pre_attn_scalar=24,  # the size of a head, as in the real one
        num_hidden_layers=6,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )
    fields = {"gemma-embedding.pooling_type": 1, "tokenizer.ggml.add_eos_token": True}
    for dense in (False, True):
        extra = dict(zip(DENSE, add_dense(source), strict=True)) if dense else {}
        write_gguf(source, tmp_path / "model.gguf", extra=extra, **fields)
        for name, made in (("a", source), ("b", tmp_path / "model.gguf")):
            export.make(made, tmp_path / f"{name}{dense}", options=ExportOptions("fp32"))
        with (
            LLM(tmp_path / f"a{dense}", **PLAIN) as one,
            LLM(tmp_path / f"b{dense}", **PLAIN) as other,
        ):
            assert np.allclose(other.embed(TEXTS), one.embed(TEXTS), atol=1e-5)


def test_int4_is_near_the_original(tmp_path):
    """With the weights of the embedded model."""
    source = copytree(CHECKPOINT, tmp_path / "checkpoint")
    write_modules(source, "mean_tokens")
    export.make(source, tmp_path / "bundle", calibration=TextCalibration())
    model = AutoModelForCausalLM.from_pretrained(source, dtype="float32").eval()
    with LLM(tmp_path / "bundle", **PLAIN) as llm:
        for text, vector in zip(TEXTS, llm.embed(TEXTS), strict=True):
            ids = ids_of(source, text)
            assert float(vector @ embedding_of(model, ids, "mean_tokens")) > 0.98


# Refusals


def test_vectors_of_another_size_than_the_manifest_says_are_refused(made, tmp_path):
    folder, _ = made("qwen3-last")
    bundle = copytree(folder / "bundle", tmp_path / "bundle")
    text = changed((bundle / MANIFEST).read_text(), "roles.target.embedding.width", 32)
    (bundle / MANIFEST).write_text(text)
    reason = r"makes vectors of 64 numbers, and its manifest says 32: export it again"
    with LLM(bundle, **PLAIN) as llm, pytest.raises(BundleError, match=reason):
        llm.embed("x")


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ("", {}, "give at least one character"),
        (["a", ""], {}, r"texts\[1\]: the prompt is empty"),
        ([[1], [331]], {}, r"texts\[1\]: token id 331 is not in the vocabulary"),
        ([1, "a"], {}, "give a text, or token ids"),
        (b"a", {}, "decode it"),
        ("a", {"dimensions": 65}, "dimensions is 65: the model's vectors have 64"),
        ("a", {"dimensions": 0}, "dimensions is 0: give a whole number of at least 1"),
        ("a", {"prompt_name": "poem"}, "prompt_name is 'poem': the model has query, document"),
        ([1, 2], {"prompt_name": "query"}, "the text is token ids"),
    ],
    ids=str,
)
def test_what_cannot_be_embedded_is_named(llm, given, options, reason):
    with pytest.raises(InputError, match=reason):
        llm.embed(given, **options)


def test_a_text_may_fill_the_context_and_not_more(llm, mean):
    for each in (llm, mean):
        assert each.context_length == 512
        assert each.embed([7] * 512).shape == (1, 64)
        with pytest.raises(ContextLengthError, match=r"it has 513 tokens.* length is 512: shorten"):
            each.embed([7] * 513)


def test_no_text_is_generated(llm):
    for ask in (
        lambda: llm.generate("a"),
        lambda: llm.generate(["a", "b"]),
        lambda: llm.stream("a"),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.session().generate("a"),
    ):
        with pytest.raises(InputError, match=r"makes embeddings, and no text: use LLM\.embed"):
            ask()


def test_a_model_that_generates_text_makes_no_embeddings():
    with LLM(draft="none", **PLAIN) as plain:
        with pytest.raises(InputError, match="makes texts, and no embeddings"):
            plain.embed("a")
        assert plain.generate("def", max_new_tokens=1).new_tokens == 1


@pytest.mark.parametrize("options", [{"draft": "lookup"}, {"draft_memory": "file"}], ids=str)
def test_options_of_drafts_are_refused(made, options):
    folder, _ = made("qwen3-last")
    with pytest.raises(InputError, match=f"{next(iter(options))} is .* no text to draft for"):
        LLM(folder / "bundle", **options)


def test_a_model_that_was_closed(made):
    folder, _ = made("qwen3-last")
    llm = LLM(folder / "bundle", **PLAIN)
    embedder = llm.embedder
    llm.close()
    for ask in (lambda: llm.embed("a"), lambda: embedder.vectors([[1]])):
        with pytest.raises(InputError, match="was closed"):
            ask()


def test_what_a_check_raises_ends_the_work_between_chunks(llm, mean):
    for each in (llm, mean):
        calls = []

        def check(calls=calls):
            calls.append(1)
            if len(calls) == 3:
                raise KeyError("gone")

        with pytest.raises(KeyError, match="gone"):
            each.embedder.vectors([[7] * 500], None, check)
        assert each.embed("a").shape == (1, 64)  # nothing is left locked
