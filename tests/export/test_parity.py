"""Full precision on both engines against transformers: texts, trees, growth, draft candidates."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from parity import (
    HEAD,
    PARENTS,
    PROMPT,
    SAME,
    SAME_STATES,
    TREE_TOKENS,
    devices,
    distance,
    load,
    made,
    path_to,
    reference,
    tree_rows,
)
from safetensors.numpy import load_file, save_file

from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.components.outputs import CANDIDATES
from edgespec.runtime.execution.feeds import Rows

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
# One list of factors for texts of any length: the long one, which transformers takes behind 64
# positions, or the short one.
LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1 + i / 10 for i in range(12)], "long_factor": [1 + i / 2 for i in range(12)],
    "original_max_position_embeddings": 64,
}  # fmt: skip
PARTIAL_LONG_ROPE = {
    **LONG_ROPE,
    **{name: LONG_ROPE[name][:9] for name in ("short_factor", "long_factor")},
}
SHORT_ROPE = {**LONG_ROPE, "factor": 8.0, "original_max_position_embeddings": 512}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}

MIXED = ["sliding_attention", "full_attention"]

FULL_PRECISION = {
    "llama": {},
    "llama-tied-rope-llama3-bf16": {
        "tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE, "dtype": torch.bfloat16,
    },
    "llama-biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    "mistral-bf16-sharded": {"dtype": torch.bfloat16, "max_shard_size": "60KB"},
    "mistral-tied": {"tie_word_embeddings": True},
    "qwen2-rope-linear": {"rope_parameters": LINEAR_ROPE},
    "qwen2-rope-yarn": {"rope_parameters": YARN_ROPE},
    "llama-rope-longrope-long": {"rope_parameters": LONG_ROPE},
    "llama-rope-longrope-short": {"rope_parameters": SHORT_ROPE},
    "llama-rope-dynamic": {"rope_parameters": DYNAMIC_ROPE},
    "qwen2-tied-fp16": {"tie_word_embeddings": True, "dtype": torch.float16},
    "qwen3-bf16-two-key-heads": {"dtype": torch.bfloat16, "num_key_value_heads": 2},
    "mistral-window": {"sliding_window": 100},
    "qwen2-window-of-the-second-layer": {
        "use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1,
    },
    "gemma3_text-windows-tied": {
        "sliding_window": 24, "layer_types": MIXED, "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
    "gemma3_text-wide-windows": {
        "sliding_window": 150, "num_hidden_layers": 3, "query_pre_attn_scalar": 48,
        "num_key_value_heads": 2,
    },
    "gemma3_text-window-beyond-the-context": {"sliding_window": 4096, "layer_types": MIXED},
    "olmo2": {},
    "lfm2": {},
    "qwen3_5_text": {},
    "lfm2-tied-bf16": {"tie_word_embeddings": True, "dtype": torch.bfloat16, "conv_L_cache": 4},
    "olmo2-two-key-heads-bf16": {"num_key_value_heads": 2, "dtype": torch.bfloat16},
    "exaone4": {},
    "exaone4-no-windows": {"sliding_window": None, "layer_types": MIXED[1:] * 2},
    "gemma2": {},
    "gemma2-no-limits-tied-bf16": {
        "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "query_pre_attn_scalar": 2000,  # sharp attention would amplify rounding beyond `SAME`
        "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "gemma4_text-limited": {"final_logit_softcapping": 0.9},
    "gemma4_text-one-matrix-for-keys-and-values-bf16": {
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
        "num_key_value_heads": 2, "num_global_key_value_heads": 1, "dtype": torch.bfloat16,
    },
    "gemma4_text-experts": {
        "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "num_kv_shared_layers": 0,
        "moe_intermediate_size": 96, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
    },
    "granite": {},
    "granitemoe": {},
    "granitemoe-two-key-heads-tied-bf16": {
        "num_key_value_heads": 2, "tie_word_embeddings": True, "dtype": torch.bfloat16,
    },
    "granitemoehybrid": {},
    "granitemoehybrid-no-rope": {"position_embedding_type": None},
    "ministral": {},
    "ministral3": {},
    "olmo3": {},
    "smollm3": {},
    "phi3": {},
    "phi3-window-wholly-rotated": {"sliding_window": 100, "rope_parameters": PLAIN_ROPE},
    "phi3-rope-longrope-tied-bf16": {
        "hidden_size": 96, "num_key_value_heads": 2, "tie_word_embeddings": True,
        "original_max_position_embeddings": 64, "dtype": torch.bfloat16,
        "rope_parameters": {**PARTIAL_LONG_ROPE, "partial_rotary_factor": 0.75},
    },
    "glm-biases": {},
    "glm4-two-key-heads-wholly-rotated": {
        "num_key_value_heads": 2,
        "rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 1.0},
    },
    "glm4-tied": {"attention_bias": False, "tie_word_embeddings": True},
    "hunyuan_v1_dense-biases-alpha": {
        "attention_bias": True, "num_key_value_heads": 2,
        "rope_parameters": {**DYNAMIC_ROPE, "alpha": 50.0},
    },
    "hunyuan_v1_dense-tied": {"tie_word_embeddings": True},
    "stablelm-biases": {"use_qkv_bias": True},
    "stablelm-tied-rope-linear": {
        "num_key_value_heads": 2, "tie_word_embeddings": True,
        "rope_parameters": {**LINEAR_ROPE, "partial_rotary_factor": 0.5},
    },
    "gpt_oss": {},
    "gpt_oss-wide-windows-bf16": {
        "num_key_value_heads": 2, "sliding_window": 150, "dtype": torch.bfloat16,
    },
    "olmoe": {},
    "olmoe-shares-of-all-experts-bf16": {"norm_topk_prob": False, "dtype": torch.bfloat16},
    "qwen3_moe": {},
    "qwen3_moe-a-dense-layer": {"mlp_only_layers": [0], "num_experts_per_tok": 1},
    "qwen3-tied-sharded": {"tie_word_embeddings": True, "max_shard_size": "90KB"},
}  # fmt: skip


@pytest.fixture(scope="module", params=FULL_PRECISION)
def full(request, tmp_path_factory):
    """transformers' model, and its bundle in fp32."""
    folder = tmp_path_factory.mktemp("full")
    architecture = request.param.split("-")[0]
    model = made(folder / "checkpoint", architecture, **FULL_PRECISION[request.param])
    sharded = (folder / "checkpoint" / "model.safetensors.index.json").exists()
    assert sharded == ("sharded" in request.param)
    export_bundle(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    return model, bundles.load(folder / "bundle")


def same(model):
    return SAME_STATES if model.config.model_type in ("gemma4_text", "qwen3_5_text") else SAME


def agrees(runner, model, text):
    """Every row of a tree behind `text` has the logits of its branch alone."""
    found = runner.verify(tree_rows())["logits"]
    for row in range(len(PARENTS)):
        branch = [TREE_TOKENS[node] for node in path_to(row)]
        assert distance(found[row], reference(model, text + branch)) < same(model), f"row {row}"


@devices
def test_full_precision_equals_transformers(full, device):
    model, bundle = full
    runner = load(bundle, device)
    # A whole chunk and a padded one.
    text = PROMPT[:150]
    assert distance(runner.prefill(text)["logits"][0], reference(model, text)) < same(model)
    agrees(runner, model, text)

    # Accepting a branch moves its rows together; what follows sees them alone.
    accepted = path_to(6)
    assert accepted != list(range(len(accepted)))
    runner.verify(tree_rows())
    runner.commit(accepted)
    text = text + [TREE_TOKENS[row] for row in accepted]
    agrees(runner, model, text)

    # The cache grows between chunks, with what is in it.
    more = PROMPT[150:300]
    text = text + more
    assert len(text) > 256
    assert distance(runner.prefill(more)["logits"][0], reference(model, text)) < same(model)
    agrees(runner, model, text)


@pytest.mark.slow
@devices
def test_a_growing_cache_keeps_what_a_tree_needs(full, device):
    model, bundle = full
    runner = load(bundle, device)
    text = PROMPT[:255]
    runner.prefill(text)
    agrees(runner, model, text)


# Candidates of a draft


@dataclass(frozen=True)
class Draft:
    """A draft whose tokenizer has fewer tokens than its vocabulary has rows."""

    bundle: bundles.Bundle
    model: torch.nn.Module
    tokens: int


@pytest.fixture(scope="module", params=[331, 40])
def draft(request, tmp_path_factory):
    """Padding that is likelier than any token; logits too large for a sum of their exponentials."""
    folder = tmp_path_factory.mktemp("draft")
    tokens = request.param
    padded = 384 if tokens == 331 else 64
    for name, size, seed in (("target", tokens, 0), ("draft", padded, 1)):
        model = make_checkpoint(folder / name, "qwen2", vocab_size=size, seed=seed)
        vocabulary = {f"t{index}": index for index in range(tokens)}
        words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
        (folder / name / "tokenizer.json").write_text(json.dumps({"model": words}))
    weights = folder / "draft" / "model.safetensors"
    tensors = load_file(weights)
    tensors[HEAD] *= 60
    tensors[HEAD][tokens:] *= 10
    save_file(tensors, weights, {"format": "pt"})
    model = type(model).from_pretrained(folder / "draft", dtype=torch.float32).eval()
    options = ExportOptions("int4", draft_precision="fp32")
    export_bundle(folder / "target", folder / "bundle", folder / "draft", options)
    return Draft(bundles.load(folder / "bundle"), model, tokens)


def check_candidates(results, row, draft, text):
    logits = reference(draft.model, text)
    assert logits.argmax() >= draft.tokens
    logits = logits[: draft.tokens].astype(np.float64)
    near = {"rtol": 0, "atol": SAME * np.abs(logits).max()}
    ids, top = results["top_ids"][row], results["top_logits"][row]
    assert len(ids) == len(top) == min(CANDIDATES, draft.tokens)
    assert len(set(ids.tolist())) == len(ids)
    assert (np.diff(top) <= 0).all()
    np.testing.assert_allclose(top, logits[ids], **near)
    np.testing.assert_allclose(top, np.sort(logits)[::-1][: len(top)], **near)
    np.testing.assert_allclose(results["logsumexp"][row], np.logaddexp.reduce(logits), **near)
    return logits.max()


@devices
def test_a_draft_ranks_every_level_of_its_tree(draft, device):
    runner = load(draft.bundle, device, bundles.DRAFT)
    text = [token % draft.tokens for token in PROMPT[:250]]
    nodes = [token % draft.tokens for token in TREE_TOKENS]
    largest = [check_candidates(runner.prefill(text), 0, draft, text)]
    # Levels go behind the text, where the mask alone says who sees whom; the cache grows meanwhile.
    whole = tree_rows()
    for level in ([0], [1, 2], [3, 4, 5], [6]):
        mask = whole.mask[level, : level[-1] + 1]
        depths = [whole.depths[row] for row in level]
        results = runner.draft(Rows([nodes[row] for row in level], depths, mask))
        for index, row in enumerate(level):
            branch = [nodes[node] for node in path_to(row)]
            largest.append(check_candidates(results, index, draft, text + branch))
    assert max(largest) > 89  # exp(89) is no float32

    # Keeping a branch makes it text and forgets its siblings.
    runner.keep(path_to(6))
    text += [nodes[row] for row in path_to(6)]
    assert runner.length == len(text)
    results = runner.draft(Rows([nodes[2]], [0], np.ones((1, 1), np.bool_)))
    check_candidates(results, 0, draft, [*text, nodes[2]])
