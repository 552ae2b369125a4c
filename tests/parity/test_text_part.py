"""Checkpoints that also read pictures: their text part computes what transformers computes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import edit_json
from parity import calibration_logits
from safetensors.numpy import load_file, save_file
from small_configs import ODD_SHAPES, SPECIAL
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import load_checkpoint

VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
MODELS = {
    "gemma3": (Gemma3Config, Gemma3ForConditionalGeneration, "gemma3_text", VISION, True),
    "gemma4": (Gemma4Config, Gemma4ForConditionalGeneration, "gemma4_text", VISION, True),
    "mistral3": (
        Mistral3Config, Mistral3ForConditionalGeneration, "ministral3",
        {**VISION, "model_type": "pixtral", "head_dim": 16}, False,
    ),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, "qwen2_5_vl_text",
        {"hidden_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}, False,
    ),
    "qwen3_vl": (
        Qwen3VLConfig, Qwen3VLForConditionalGeneration, "qwen3_vl_text",
        {"hidden_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}, False,
    ),
    "qwen3_vl_moe": (
        Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration, "qwen3_vl_moe_text",
        {"hidden_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}, False,
    ),
}  # fmt: skip
TIE = "tie_word_embeddings"


def saved(folder, model_type):
    config_class, model_class, text_type, vision, tied = MODELS[model_type]
    text = {**ODD_SHAPES, **SPECIAL.get(text_type, {}), "model_type": text_type, "pad_token_id": 0}
    config = config_class(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("model_type", MODELS)
def test_the_text_part_computes_what_transformers_does(tmp_path, model_type, caplog):
    model = saved(tmp_path, model_type)
    config = json.loads((tmp_path / "config.json").read_text())
    text = {name: each for name, each in config["text_config"].items() if name != TIE}
    edit_json(tmp_path / "config.json", **{TIE: None, "text_config": text})  # as published ones
    caplog.clear()
    checkpoint = load_checkpoint(tmp_path)
    told = [each.getMessage() for each in caplog.records]  # not of unused tensors
    assert all("reads texts alone" in each for each in told)
    assert checkpoint.decoder.tied == MODELS[model_type][-1]
    assert checkpoint.tensors.names == checkpoint.decoder.tensors().keys()
    texts = np.random.default_rng(0).integers(331, size=(2, 30))
    logits = calibration_logits(checkpoint, texts)
    with torch.no_grad():
        expected = model(torch.tensor(texts)).logits.numpy().reshape(logits.shape)
    np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_names_that_transformers_has_in_memory_are_read_too(tmp_path):
    saved(tmp_path, "mistral3")
    file = tmp_path / "model.safetensors"
    named = {
        name.replace("language_model.model.", "model.language_model.")
        .replace("language_model.lm_head.", "lm_head.")
        .replace("vision_tower.", "model.vision_tower."): each
        for name, each in load_file(file).items()
    }
    before = load_checkpoint(tmp_path).tensors.names
    save_file(named, file, {"format": "pt"})
    assert load_checkpoint(tmp_path).tensors.names == before


def test_a_config_may_have_the_text_part_s_fields_beside_the_others(tmp_path):
    saved(tmp_path, "qwen2_5_vl")
    expected = load_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    named = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): each
        for name, each in load_file(file).items()
    }
    save_file(named, file, {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    scaling = {"type": "mrope", "mrope_section": [4, 2, 2]}
    flat = {**text, **config, "rope_parameters": None, "rope_theta": 1e6, "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    found = load_checkpoint(tmp_path)
    assert replace(found.decoder, ropes={}) == replace(expected.decoder, ropes={})
    ropes = found.decoder.ropes["default"], expected.decoder.ropes["default"]
    np.testing.assert_array_equal(*(each.inv_freq for each in ropes))
    assert found.tensors.names == expected.tensors.names


def test_fields_of_the_whole_model_hold_for_its_text_part(tmp_path):
    saved(tmp_path, "gemma3")
    (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", eos_token_id=[1, 106])
    assert load_checkpoint(tmp_path).config.eos_ids == (1, 106)
    edit_json(tmp_path / "config.json", **{TIE: False})
    with pytest.raises(CheckpointError, match=f"{TIE}=False contradicts the weights"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"model_type": "gemma9_text"}, ["text_config: model_type='gemma9_text'", "gemma3_text"]),
        (None, ["text_config: model_type=(absent)"]),
    ],
)
def test_other_text_parts_are_refused_by_name(tmp_path, text, words):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    with pytest.raises(UnsupportedModelError) as error:
        load_checkpoint(tmp_path)
    assert all(word in str(error.value) for word in words)
