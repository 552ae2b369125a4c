"""Bundles of GGUF files compute what the bundles of their checkpoints' folders compute."""

from __future__ import annotations

import pytest
from checkpoints import RECURRENT, RECURRENT_MIXTURES, make_checkpoint
from ggufs import write_gguf
from nodes import MISSING
from parity import PROMPT, SAME, SAME_STATES, Text, distance, load

from edgespec import export
from edgespec.export import ExportOptions

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

# Experts with and without biases, states, fused and partly rotated projections, windows.
FAMILIES = (
    "gemma3n_text", "gemma4_text", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_oss",
    "granitemoehybrid", "lfm2", "lfm2_moe", "mistral4", "nemotron_h", "nemotron_h_moe", "olmo3",
    "phi3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe",
)  # fmt: skip
SIZES = {"lfm2_moe": {"routed_scaling_factor": 1.0, "tie_word_embeddings": True}}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_logits_are_those_of_the_folder(tmp_path, architecture):
    folder = tmp_path / "folder"
    file = tmp_path / "file.gguf"
    make_checkpoint(folder, architecture, **SIZES.get(architecture, {}))
    write_gguf(folder, file)
    texts = []
    for name, source in (("a", folder), ("b", file)):
        export.make(source, tmp_path / name, options=ExportOptions("fp32"))
        texts.append(Text(load(tmp_path / name)))
    expected, found = (text.read(PROMPT[:60]) for text in texts)
    same = SAME_STATES if architecture in RECURRENT + RECURRENT_MIXTURES else SAME
    assert distance(found, expected) < same
    trees = [text.tree() for text in texts]
    assert distance(trees[1], trees[0]) < same
