"""Checkpoints of every architecture: the description must be the model that transformers saved."""

from __future__ import annotations

import json
import logging
from functools import partial

import numpy as np
import pytest
import torch
from checkpoints import (
    ARCHITECTURES,
    MIXTURES,
    RECURRENT,
    edit_json,
    make_checkpoint,
    write_tokenizer,
)
from safetensors.numpy import load_file, save_file

from edgespec.bundle.sublayers import window_of
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import Linear, load_checkpoint
from edgespec.models.layers import LayerNorm

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}


def linear(tensors, layer: Linear, x: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else torch.from_numpy(tensors.read(layer.bias))
    return torch.nn.functional.linear(x, torch.from_numpy(tensors.read(layer.weight)), bias)


def normalized(tensors, norm, x: torch.Tensor) -> torch.Tensor:
    if norm is None:
        return x
    weight = torch.from_numpy(tensors.read(norm.weight)) if norm.weight else torch.ones(norm.size)
    weight = weight + norm.offset
    if isinstance(norm, LayerNorm):
        bias = torch.from_numpy(tensors.read(norm.bias))
        return torch.nn.functional.layer_norm(x, (norm.size,), weight, bias, norm.eps)
    return torch.nn.functional.rms_norm(x, (norm.size,), weight * norm.factor, norm.eps)


def limited(x: torch.Tensor, softcap: float | None) -> torch.Tensor:
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def rotate(x: torch.Tensor, rope) -> torch.Tensor:
    """Apply RoPE to [heads, positions, head_dim]."""
    if rope is None:
        return x
    positions, inv_freq = torch.arange(x.shape[1]).float(), torch.from_numpy(rope.inv_freq)
    angles = torch.outer(positions, inv_freq).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    turned = x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()
    return turned * torch.from_numpy(rope.scales).float().repeat(2)


def attend(tensors, layer, rope, x: torch.Tensor, shared: dict, number: int) -> torch.Tensor:
    normed = normalized(tensors, layer.norm, x)

    def heads(projection):
        return linear(tensors, projection, normed).unflatten(-1, (-1, layer.head_dim))

    def turned(projection, norm):
        split = heads(projection)
        if norm is not None and norm.size != layer.head_dim:
            split, norm = normalized(tensors, norm, split.flatten(1)).view_as(split), None
        if layer.norm_after_rope:
            return normalized(tensors, norm, rotate(split.transpose(0, 1), rope))
        return rotate(normalized(tensors, norm, split).transpose(0, 1), rope)

    q = turned(layer.q, layer.q_norm)
    if layer.source is None:
        values = normalized(tensors, layer.v_norm, heads(layer.v or layer.k))
        shared[number] = turned(layer.k, layer.k_norm), values.transpose(0, 1)
    k, v = shared[number if layer.source is None else layer.source]
    seen = torch.ones(len(x), len(x)).tril()
    if (window := window_of(layer.mask)) is not None:
        seen = seen.triu(1 - window)
    k, v = (each.repeat_interleave(layer.heads // layer.kv_heads, dim=0) for each in (k, v))
    scores = limited(q @ k.mT * layer.scale, layer.softcap)
    mixed = scores.where(seen.bool(), -torch.inf).softmax(dim=-1) @ v
    found = linear(tensors, layer.o, mixed.transpose(0, 1).flatten(1))
    return normalized(tensors, layer.post_norm, found) * layer.output_factor


def logits(checkpoint, ids: torch.Tensor) -> torch.Tensor:
    """Run the description literally, as its docstrings say."""
    decoder, tensors = checkpoint.decoder, checkpoint.tensors
    x = torch.from_numpy(tensors.read(decoder.embedding))[ids] * decoder.embedding_scale
    own, shared = layer_inputs(decoder, tensors, ids, x), {}
    for number, (attention, mlp, *injections) in enumerate(decoder.layers):
        rope = decoder.ropes.get(attention.rope)
        x = x + attend(tensors, attention, rope, x, shared, number)
        normed = normalized(tensors, mlp.norm, x)
        gate = ACTIVATIONS[mlp.activation](linear(tensors, mlp.gate, normed))
        found = linear(tensors, mlp.down, gate * linear(tensors, mlp.up, normed))
        x = x + normalized(tensors, mlp.post_norm, found) * mlp.output_factor
        for each in injections:
            gate = ACTIVATIONS[each.activation](linear(tensors, each.gate, x))
            found = linear(tensors, each.out, gate * own[:, number])
            x = x + normalized(tensors, each.post_norm, found)
        if decoder.layer_factors:
            x = x * torch.from_numpy(tensors.read(decoder.layer_factors[number]))
    found = linear(tensors, decoder.lm_head, normalized(tensors, decoder.norm, x))
    return limited(found, decoder.logit_softcap)


def layer_inputs(decoder, tensors, ids, x):
    """The layers' own inputs, [positions, layers, size]; None if they have none."""
    described = decoder.layer_inputs
    if described is None:
        return None
    found = torch.from_numpy(tensors.read(described.table))[ids] * described.scale
    projected = linear(tensors, described.projection, x).unflatten(-1, (-1, described.norm.size))
    return normalized(tensors, described.norm, projected) + found.view_as(projected)


def assert_same_logits(checkpoint, model) -> None:
    ids = torch.arange(40) * 7 % checkpoint.decoder.vocab_size
    with torch.no_grad():
        expected = model(ids[None]).logits[0]
    assert expected.std() > 0.3
    torch.testing.assert_close(logits(checkpoint, ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True], ids=["separate", "tied"])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES.keys() - {*RECURRENT, *MIXTURES}))
def test_the_description_computes_what_transformers_computes(tmp_path, architecture, tied):
    model = make_checkpoint(tmp_path, architecture, tie_word_embeddings=tied)
    assert_same_logits(load_checkpoint(tmp_path), model)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"mlp_bias": True}, id="the MLP's alone"),
        pytest.param({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, id="theta"),
        pytest.param(
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}},
            id="linear",
        ),
        pytest.param(
            {
                "rope_parameters": {
                    "rope_theta": 1e4,
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
            id="llama3",
        ),
        pytest.param(
            {
                "rope_parameters": {
                    "rope_theta": 1e4,
                    "rope_type": "proportional",
                    "factor": 2.0,
                    "partial_rotary_factor": 0.4,
                }
            },
            id="proportional",
        ),
        pytest.param({"head_dim": None, "num_key_value_heads": None}, id="plain heads"),
    ],
)
def test_llama_variants(tmp_path, overrides):
    model = make_checkpoint(tmp_path, "llama", **overrides)
    assert_same_logits(load_checkpoint(tmp_path), model)


@pytest.mark.parametrize("tied", [False, True], ids=["separate", "tied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exactly_the_saved_tensors_are_expected(tmp_path, architecture, tied, caplog):
    make_checkpoint(tmp_path, architecture, tie_word_embeddings=tied)
    checkpoint = load_checkpoint(tmp_path)
    expected = checkpoint.decoder.tensors()
    assert expected.keys() == checkpoint.tensors.names
    assert checkpoint.decoder.tied == tied
    assert (checkpoint.decoder.lm_head.weight == checkpoint.decoder.embedding) == tied
    assert not caplog.records


def rewrite(path, change) -> None:
    """Apply a change to the tensors of a single-file checkpoint."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def test_wrong_shape(tmp_path):
    make_checkpoint(tmp_path, "qwen2")
    edit_json(tmp_path / "config.json", intermediate_size=128)
    with pytest.raises(CheckpointError, match=r"gate_proj\.weight has shape \[160, 64\].*128, 64"):
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


def test_more_layers_than_weights(tmp_path):
    make_checkpoint(tmp_path, "llama")
    edit_json(tmp_path / "config.json", num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"has no tensor model\.layers\.2\."):
        load_checkpoint(tmp_path)


def test_missing_head_is_an_error_unless_tied(tmp_path):
    make_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    edit_json(tmp_path / "config.json", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings=False.*lack lm_head\.weight"):
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
    make_checkpoint(tmp_path, "llama")
    assert load_checkpoint(tmp_path).tokenizer_files.keys() == {"generation_config.json"}
    tokenizer = write_tokenizer(tmp_path, 331)
    text = "def wrap(text):\n    return 'héllo'"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    files = load_checkpoint(tmp_path).tokenizer_files
    assert files.keys() == {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert all((tmp_path / name).read_text("utf-8") == text for name, text in files.items())


def test_chat_template(tmp_path):
    make_checkpoint(tmp_path, "llama")
    write_tokenizer(tmp_path, 331)
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
