"""Calibration of all families: it reads texts as transformers does, and rounds all matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from nodes import MISSING
from parity import calibration_logits
from small_configs import ARCHITECTURES, CHANGING

from edgespec.export import RoundedMatrices, Texts, calibrate
from edgespec.models import load_checkpoint
from edgespec.tuning.calibrating import opener

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

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
        ("llama4_text", CHANGING),
        ("nemotron_h_moe", {"moe_latent_size": 32}),
        ("olmoe", {"norm_topk_prob": False}),
    ],
)
def test_families(tmp_path, architecture, config):
    original = make_checkpoint(tmp_path, architecture, **config)
    checkpoint = load_checkpoint(tmp_path)
    texts = np.random.default_rng(0).integers(331, size=(3, 40))
    logits = calibration_logits(checkpoint, texts)
    with torch.no_grad():
        expected = original(torch.tensor(texts)).logits.numpy().reshape(len(logits), -1)
    np.testing.assert_allclose(logits, expected, atol=2e-4)

    names = {w.weight for each in checkpoint.decoder.sublayers for w in each.linears}
    with RoundedMatrices(tmp_path, dict.fromkeys(names, "q4_0")) as rounded:
        read = Texts(texts[:2].tolist(), texts[2:].tolist())
        damage = calibrate(checkpoint, read, rounded, opener()).damage
        assert set(damage) == set(rounded) == names
    few = {name for name, each in damage.items() if each == 0 and ".experts." not in name}
    assert not few
