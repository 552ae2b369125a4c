"""The float32 pass that calibration reads texts with, against transformers."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import ARCHITECTURES, make_checkpoint, write_tokenizer
from parity import calibration_logits

from edgespec.models import load_checkpoint

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


MIXED = ["sliding_attention", "full_attention"]

BESIDE_EXPERTS = {
    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 96,
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        *((name, {}) for name in ARCHITECTURES),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_scaling": LLAMA3}),
        ("qwen2", {"rope_scaling": YARN}),  # whose cosines and sines are scaled
        ("mistral", {"sliding_window": 9}),
        ("gemma3_text", {"sliding_window": 9, "layer_types": MIXED}),
        ("gemma4_text", BESIDE_EXPERTS),
        ("gpt_oss", {"num_experts_per_tok": 1, "sliding_window": 9}),
        ("olmoe", {"norm_topk_prob": False}),
    ],
)
def test_it_computes_what_transformers_does(tmp_path, architecture, config):
    original = make_checkpoint(tmp_path, architecture, **config)
    write_tokenizer(tmp_path, 331)
    checkpoint = load_checkpoint(tmp_path)
    texts = np.random.default_rng(0).integers(331, size=(3, 40))
    logits = calibration_logits(checkpoint, texts)
    with torch.no_grad():
        expected = original(torch.tensor(texts)).logits.numpy().reshape(len(logits), -1)
    np.testing.assert_allclose(logits, expected, atol=2e-4)


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("qwen2", {"num_key_value_heads": 2}),
        ("qwen3", {}),
        ("llama", {"tie_word_embeddings": True}),
    ],
)
def test_a_permuted_checkpoint_computes_the_same(tmp_path, monkeypatch, architecture, config):
    """Heads of one group have their values in one order, norms of heads none."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    permuted = importlib.import_module("permuted_checkpoint")
    original = make_checkpoint(tmp_path / "as-it-is", architecture, dtype=torch.float16, **config)
    write_tokenizer(tmp_path / "as-it-is", 331)
    arguments = ["permuted_checkpoint.py", str(tmp_path / "as-it-is"), "-o", str(tmp_path / "p")]
    monkeypatch.setattr("sys.argv", arguments)
    permuted.main()
    other = type(original).from_pretrained(tmp_path / "p", dtype=torch.float32).eval()
    ids = torch.randint(0, 331, (2, 50), generator=torch.manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(other(ids).logits, original(ids).logits, atol=1e-4, rtol=1e-4)
    weights = [each.model.layers[0].mlp.down_proj.weight for each in (original, other)]
    assert not torch.equal(*weights)
