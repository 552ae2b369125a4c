"""Bundles of GGUF files compute what the bundles of their checkpoints' folders compute."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from checkpoints import make_checkpoint
from ggufs import write_gguf
from nodes import MISSING
from parity import PROMPT, SAME, SAME_STATES, Text, distance, load, stored
from small_configs import RECURRENT, RECURRENT_MIXTURES

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import CheckpointError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint
from edgespec.models.formats.gguf import opening

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

# Experts with and without biases, states, fused and partly rotated projections, windows.
FAMILIES = (
    "gemma3n_text", "gemma4_text", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_oss",
    "granitemoehybrid", "kimi_linear_moe", "lfm2", "lfm2_moe", "mistral4", "nemotron_h",
    "nemotron_h_moe", "olmo3", "phi3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe",
)  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
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


@pytest.mark.parametrize(
    ("encoding", "form"),
    [
        ("Q2_K", "q2_k"), ("Q1_0", "q1_0"), ("TQ1_0", "tq2_0"), ("IQ1_M", "iq1_m"),
        ("IQ2_XS", "iq2_s"), ("IQ3_S", "iq3_s"),
    ],
)  # fmt: skip
def test_matrices_of_few_bits_keep_their_numbers(tmp_path, encoding, form):
    file = tmp_path / "file.gguf"
    make_checkpoint(tmp_path / "folder", "llama", **WIDE)
    write_gguf(tmp_path / "folder", file, encoding)
    export.make(file, tmp_path / "bundle")
    tensors = load_checkpoint(file).tensors
    matrices = stored(bundles.load(tmp_path / "bundle"))
    kept = {name: each for name, each in matrices.items() if each.format == form}
    assert len(kept) > 7
    for name, each in kept.items():
        np.testing.assert_array_equal(each.values, tensors.read(name))


@pytest.mark.parametrize("encoding", ["TQ1_0", "IQ2_XXS"])
def test_scales_of_few_bits_that_are_no_numbers(tmp_path, encoding):
    file = tmp_path / "file.gguf"
    make_checkpoint(tmp_path / "folder", "llama", **WIDE)
    write_gguf(tmp_path / "folder", file, encoding)
    (tensor,) = (
        each for each in gguf.GGUFReader(file).tensors if each.name == "blk.1.ffn_up.weight"
    )
    place = {"TQ1_0": 52, "IQ2_XXS": 0}[encoding]
    with file.open("r+b") as spoiled:
        spoiled.seek(int(tensor.data_offset) + place)
        spoiled.write(np.float16("nan").tobytes())
    with pytest.raises(CheckpointError, match=r"up_proj\.weight has scales that are infinity or"):
        export.make(file, tmp_path / "bundle")


def test_the_tokenizer_of_a_target_is_made_once(tmp_path, monkeypatch):
    """Of a large vocabulary it takes seconds."""
    file = tmp_path / "file.gguf"
    made = []

    def counted(vocabulary):
        made.append(len(vocabulary.tokens))
        return tokenizer_files(vocabulary)

    tokenizer_files = opening.tokenizer_files
    monkeypatch.setattr(opening, "tokenizer_files", counted)
    make_checkpoint(tmp_path / "folder", "gemma3_text")
    write_gguf(tmp_path / "folder", file)
    export.make(file, tmp_path / "bundle")
    assert made == [331]
