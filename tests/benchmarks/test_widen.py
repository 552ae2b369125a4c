"""A widened checkpoint computes what the original does, in transformers and through our reader."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from edgespec.errors import InputError, UnsupportedModelError
from edgespec.models import load_checkpoint

_PATH = Path(__file__).parents[2] / "benchmarks" / "widen.py"
_SPEC = importlib.util.spec_from_file_location("widen", _PATH)
widening = importlib.util.module_from_spec(_SPEC)
sys.modules["widen"] = widening
_SPEC.loader.exec_module(widening)

WideShape = widening.WideShape
# The checkpoints have hidden 64, intermediate 160, 4 heads of 24, 1 key and value head.
SAME = WideShape(64, 160, head_dim=24, heads=4, kv_heads=1)
SHAPES = {
    "hidden by a power of four": replace(SAME, hidden=256),
    "hidden by another factor": replace(SAME, hidden=192),
    "hidden by a fraction": replace(SAME, hidden=100),
    "intermediate": replace(SAME, intermediate=416),
    "head_dim doubled": replace(SAME, head_dim=48),
    "head_dim quadrupled": replace(SAME, head_dim=96),
    "heads": replace(SAME, heads=8, kv_heads=2),
    "everything": WideShape(320, 512, head_dim=72, heads=8, kv_heads=2),
    "defaults": WideShape(192, 320),
}


def check_same_logits(source: Path, output: Path, original, shape, dtype="fp32") -> None:
    parameters = widening.widen(source, output, shape, dtype)
    wide = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32).eval()
    assert sum(parameter.numel() for parameter in wide.parameters()) == parameters
    ids = torch.randint(0, original.config.vocab_size, (2, 200), generator=torch.manual_seed(1))
    with torch.no_grad():
        expected, logits = original(ids).logits, wide(ids).logits
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_stay(tmp_path, shape):
    original = make_checkpoint(tmp_path / "small", "llama")
    check_same_logits(tmp_path / "small", tmp_path / "wide", original, shape)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 2}),
        ("llama", {"rms_norm_eps": 0.1}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 5000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 128,
                }
            },
        ),
        ("mistral", {}),
        ("qwen2", {}),
    ],
)
def test_logits_stay_whatever_the_config_says(tmp_path, architecture, overrides):
    original = make_checkpoint(tmp_path / "small", architecture, **overrides)
    shape = WideShape(192, 320, head_dim=48)
    check_same_logits(tmp_path / "small", tmp_path / "wide", original, shape)


@pytest.mark.parametrize(("growth", "exact"), [(4, True), (2, False)])
def test_bf16_is_not_rounded_twice(tmp_path, growth, exact):
    make_checkpoint(tmp_path / "small", "llama", dtype=torch.bfloat16)
    original = AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype=torch.float32)
    shape = WideShape(64 * growth, 320, head_dim=24 * growth)
    check_same_logits(tmp_path / "small", tmp_path / "wide", original, shape, "bf16")
    dtypes = {
        name: tensor.dtype
        for file in (tmp_path / "wide").glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }
    scaled = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert scaled == {name for name in dtypes if not exact and ("norm" in name or "q_proj" in name)}


def test_the_folder_is_a_checkpoint_that_says_widened(tmp_path):
    make_checkpoint(tmp_path / "small", "llama")
    (tmp_path / "small" / "tokenizer.json").write_text("{}")
    widening.widen(tmp_path / "small", tmp_path / "wide", WideShape(256, 512, head_dim=24))
    checkpoint = load_checkpoint(tmp_path / "wide")
    assert (checkpoint.config.heads, checkpoint.config.kv_heads) == (16, 4)
    assert checkpoint.tokenizer_files.keys() >= {"tokenizer.json"}
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert config["widened"]["source"] == "small"
    assert config["widened"]["hidden_size"] == 64
    assert "widened" in (tmp_path / "wide" / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 32}, "hidden_size 32"),
        ({"intermediate": 128}, "intermediate_size 128"),
        ({"head_dim": 12}, "head_dim 12"),
        ({"head_dim": 36}, "head_dim 36 is not a multiple"),
        ({"heads": 2}, "heads 2"),
        ({"heads": 6, "kv_heads": 2}, "6 heads over 2"),
        ({"heads": 6, "kv_heads": None}, "6 heads over 1"),
    ],
)
def test_impossible_shapes_leave_nothing_behind(tmp_path, change, message):
    make_checkpoint(tmp_path / "small", "llama")
    with pytest.raises(InputError, match=message):
        widening.widen(tmp_path / "small", tmp_path / "wide", replace(SAME, **change))
    assert not (tmp_path / "wide").exists()


def test_an_output_that_exists_is_kept(tmp_path):
    make_checkpoint(tmp_path / "small", "llama")
    before = (tmp_path / "small" / "config.json").read_bytes()
    with pytest.raises(InputError, match="exists"):
        widening.widen(tmp_path / "small", tmp_path / "small", SAME)
    assert (tmp_path / "small" / "config.json").read_bytes() == before


def test_normalized_heads_are_refused(tmp_path):
    make_checkpoint(tmp_path / "small", "qwen3")
    with pytest.raises(UnsupportedModelError, match="qwen3"):
        widening.widen(tmp_path / "small", tmp_path / "wide", SAME)
