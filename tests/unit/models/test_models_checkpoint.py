"""Checkpoints of every architecture: the tensors that transformers saved, and what is refused."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from checkpoints import edit_json, make_checkpoint, write_tokenizer
from safetensors.numpy import load_file, save_file
from small_configs import ARCHITECTURES

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import load_checkpoint


@pytest.mark.parametrize("tied", [False, True], ids=["separate", "tied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exactly_the_saved_tensors_are_expected(tmp_path, architecture, tied, caplog):
    if tied and architecture in ("kimi_linear", "kimi_linear_moe", "nemotron_h"):
        pytest.skip("transformers gives it an output projection of its own, whatever the config")
    make_checkpoint(tmp_path, architecture, tie_word_embeddings=tied)
    checkpoint = load_checkpoint(tmp_path)
    expected = checkpoint.decoder.tensors()
    assert expected.keys() == checkpoint.tensors.names
    assert checkpoint.decoder.tied == tied
    assert (checkpoint.decoder.lm_head.weight == checkpoint.decoder.embedding) == tied
    assert not [each for each in caplog.records if each.name.startswith("edgespec")]


def rewrite(path, change) -> None:
    """Apply a change to the tensors of a single-file checkpoint."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("tied", "fields", "match"),
    [
        (False, {"intermediate_size": 128}, r"gate_proj\.weight has shape \[160, 64\].*128, 64"),
        (False, {"num_hidden_layers": 3, "layer_types": None}, r"has no tensor model\.layers\.2\."),
        (True, {"tie_word_embeddings": False}, r"tie_word_embeddings=False.*lack lm_head\.weight"),
    ],
)
def test_configs_of_other_weights_are_refused(tmp_path, tied, fields, match):
    make_checkpoint(tmp_path, "qwen2", tie_word_embeddings=tied)
    edit_json(tmp_path / "config.json", **fields)
    with pytest.raises(CheckpointError, match=match):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["model.layers.1.self_attn.k_proj.bias", "model.norm.weight", "model.embed_tokens.weight"],
)
def test_missing_tensor(tmp_path, name):
    make_checkpoint(tmp_path, "qwen2")
    rewrite(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"has no tensor {name}"):
        load_checkpoint(tmp_path)


def test_weights_of_gptq_without_a_word_in_the_config(tmp_path):
    make_checkpoint(tmp_path, "llama")
    name = "model.layers.0.self_attn.q_proj"
    rewrite(
        tmp_path, lambda tensors: tensors.update({f"{name}.qweight": tensors.pop(f"{name}.weight")})
    )
    with pytest.raises(
        UnsupportedModelError, match=rf"{name}\.qweight is quantized, but config.json has no"
    ):
        load_checkpoint(tmp_path)


def test_tied_with_a_head_in_the_file(tmp_path):
    """The head may be there if it is the embedding; transformers would use another one untied."""
    make_checkpoint(tmp_path, "llama", tie_word_embeddings=True, vocab_size=2100)
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": embedding.copy()}))
    assert load_checkpoint(tmp_path).decoder.tied
    others = [np.vstack([embedding, embedding[:1]])]
    for row in (0, 1023, 1024, 2099):
        others.append(embedding.copy())
        others[-1][row, 63] += 1
    for head in others:
        rewrite(tmp_path, lambda tensors, head=head: tensors.update({"lm_head.weight": head}))
        with pytest.raises(CheckpointError, match="tie_word_embeddings=True contradicts lm_head"):
            load_checkpoint(tmp_path)


def test_unsupported_dtype(tmp_path):
    make_checkpoint(tmp_path, "llama")
    rewrite(
        tmp_path,
        lambda tensors: tensors.update({"model.norm.weight": np.ones(64, dtype=np.int8)}),
    )
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight has dtype I8"):
        load_checkpoint(tmp_path)


def test_tensors_that_nothing_reads_are_logged_once(tmp_path, caplog):
    make_checkpoint(tmp_path, "llama")
    ones = np.ones(3, dtype=np.float32)
    known = {f"model.layers.{index}.self_attn.rotary_emb.inv_freq": ones for index in range(2)}
    rewrite(tmp_path, lambda tensors: tensors.update(known))
    load_checkpoint(tmp_path)
    assert not caplog.records
    rewrite(tmp_path, lambda tensors: tensors.update({"value_head.weight": ones}))
    with caplog.at_level(logging.WARNING):
        load_checkpoint(tmp_path)
    assert len(caplog.records) == 1
    assert "value_head.weight" in caplog.text


def test_tokenizer_files(tmp_path):
    make_checkpoint(tmp_path, "llama", tokens=0)
    assert load_checkpoint(tmp_path).tokenizer_files.keys() == {"generation_config.json"}
    tokenizer = write_tokenizer(tmp_path, 331)
    text = "def wrap(text):\n    return 'héllo'"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    files = load_checkpoint(tmp_path).tokenizer_files
    assert files.keys() == {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert all((tmp_path / name).read_text("utf-8") == text for name, text in files.items())


def test_chat_template(tmp_path):
    make_checkpoint(tmp_path, "llama")
    settings = tmp_path / "tokenizer_config.json"
    assert load_checkpoint(tmp_path).chat_template is None
    edit_json(settings, chat_template="{{ messages }}")
    assert load_checkpoint(tmp_path).chat_template == "{{ messages }}"
    edit_json(
        settings,
        chat_template=[
            "unnamed",
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "plain"},
        ],
    )
    assert load_checkpoint(tmp_path).chat_template == "plain"
    (tmp_path / "chat_template.jinja").write_text("own file", encoding="utf-8")
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.chat_template == "own file"
    assert "chat_template.jinja" in checkpoint.tokenizer_files


def test_unusable_chat_template(tmp_path):
    make_checkpoint(tmp_path, "llama")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 5}))
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template=5"):
        load_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not UTF-8"):
        load_checkpoint(tmp_path)


def test_an_unknown_type_is_named_whatever_the_weights_are_in(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "newer"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    with pytest.raises(UnsupportedModelError, match="model_type='newer' is not supported"):
        load_checkpoint(tmp_path)
