"""What sentence-transformers' files may say of a checkpoint, and what is refused by name."""

from __future__ import annotations

from shutil import copytree

import pytest
from checkpoints import edit_json
from embeddings import PROMPTS, make_embedding, write, write_modules
from ggufs import write_gguf

from edgespec.bundle import Embedding
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import load_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    make_embedding(folder, "qwen3")
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return copytree(saved, tmp_path / "checkpoint")


def test_a_checkpoint_without_modules_writes_text(folder):
    (folder / "modules.json").unlink()
    found = load_checkpoint(folder)
    assert found.embedding is None
    assert not found.decoder.embeds


def test_poolings_prompts_and_normalization_are_read(folder):
    assert load_checkpoint(folder).embedding == Embedding("last", True, {})
    write_modules(folder, "mean_tokens", normalized=False, prompts=PROMPTS, default_prompt="query")
    found = load_checkpoint(folder)
    assert found.embedding == Embedding("mean", False, PROMPTS, "query")
    assert found.decoder.embeds
    assert str(found.embedding) == "the mean of all rows; prompts: query, document"
    (folder / "config_sentence_transformers.json").unlink()
    assert load_checkpoint(folder).embedding == Embedding("mean", False, {})


@pytest.mark.parametrize(
    ("mode", "expected"), [("lasttoken", "last"), ("mean", "mean"), ("cls", "first")]
)
def test_a_pooling_that_is_named_by_one_field(folder, mode, expected):
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": mode})
    assert load_checkpoint(folder).embedding.pooling == expected


def test_no_output_projection_is_needed_or_read(folder):
    found = load_checkpoint(folder).decoder
    assert found.tied
    assert "lm_head.weight" not in found.tensors()


def test_what_a_gguf_file_says_of_its_pooling(saved, tmp_path):
    file = tmp_path / "model.gguf"
    for number, expected in ((None, None), (0, None), (1, "mean"), (2, "first"), (3, "last")):
        write_gguf(saved, file, **{"qwen3.pooling_type": number})
        found = load_checkpoint(file)
        assert found.decoder.embeds == (expected is not None)
        assert found.embedding == (expected and Embedding(expected, True, {}))
    for fields, reason in (
        ({"qwen3.pooling_type": 5}, "qwen3.pooling_type=5 is not supported: use a model with 1"),
        ({"qwen3.attention.causal": False}, "is_causal=False .* writes no text: .*pooling_type"),
    ):
        write_gguf(saved, file, **fields)
        with pytest.raises(UnsupportedModelError, match=reason):
            load_checkpoint(file)


def test_the_longest_text_is_the_smaller_of_two_limits(folder):
    for length, expected in ((128, 128), (9999, 512), (None, 512)):
        limits = {"max_seq_length": length, "do_lower_case": False}
        write(folder / "sentence_bert_config.json", limits)
        assert load_checkpoint(folder).decoder.context_length == expected


def test_poolings_that_are_not_supported_are_named(folder):
    file = folder / "1_Pooling" / "config.json"
    for content, name in (
        ({"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "max"}, r"pooling_mode \(max\)"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, "lasttoken and mean"),
        ({}, "no pooling mode"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": False}, "include_prompt=False"),
    ):
        write(file, content)
        with pytest.raises(UnsupportedModelError, match=f"1_Pooling.*{name}.*: use a model"):
            load_checkpoint(folder)


def step(kind, path=""):
    return {"type": f"sentence_transformers.models.{kind}", "path": path}


FIRST = step("Transformer")
SECOND = step("Pooling", "1_Pooling")


@pytest.mark.parametrize(
    ("steps", "error", "reason"),
    [
        ([FIRST], UnsupportedModelError, "the steps Transformer are not supported"),
        (
            [FIRST, SECOND, step("Normalize"), step("Dense", "3_Dense")],
            UnsupportedModelError,
            "Dense",
        ),
        ([FIRST, SECOND, step("Dense", "2_Dense")], CheckpointError, "2_Dense.*does not exist"),
        ([step("StaticEmbedding")], UnsupportedModelError, "StaticEmbedding"),
        ([], UnsupportedModelError, r"\(none\)"),
        ([step("Transformer", "0_T"), SECOND], UnsupportedModelError, "in the folder '0_T'"),
        ([FIRST, step("Pooling", "../1")], CheckpointError, r"path '\.\./1'"),
        ([FIRST, step("Pooling", "/etc")], CheckpointError, "path '/etc'"),
        ([FIRST, step("Pooling", "9_P")], CheckpointError, "9_P.*does not exist"),
        ([1], CheckpointError, "is no list of modules"),
        ({"a": 1}, CheckpointError, "is no list of modules"),
        (1, CheckpointError, "is no list of modules"),
    ],
    ids=str,
)
def test_steps_that_are_not_supported_are_named(folder, steps, error, reason):
    write(folder / "modules.json", steps)
    with pytest.raises(error, match=reason):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "fields", "reason"),
    [
        (
            "config.json",
            {
                "is_causal": False,
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "is_causal=False is not supported",
        ),
        ("config.json", {"use_bidirectional_attention": True}, "attention=True is not supported"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case=True"),
        ("sentence_bert_config.json", {"max_seq_length": "x"}, "must be a positive integer"),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, "must be texts by name"),
        ("config_sentence_transformers.json", {"default_prompt_name": "b"}, "name of a prompt"),
        ("config_sentence_transformers.json", {"prompts": 1}, "must be an object"),
    ],
    ids=str,
)
def test_fields_that_are_not_supported_are_named(folder, file, fields, reason):
    if not (folder / file).exists():
        write(folder / file, {})
    edit_json(folder / file, **fields)
    with pytest.raises(CheckpointError, match=f"{file}.*{reason}"):
        load_checkpoint(folder)
