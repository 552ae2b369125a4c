"""Bundles of GGUF files compute what the bundles of their checkpoints' folders compute."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import RECURRENT, make_checkpoint, write_tokenizer
from ggufs import write_gguf
from parity import PROMPT, SAME, SAME_STATES, distance, load, tree_logits

from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle

# Experts with and without biases, states, fused and partly rotated projections, windows.
FAMILIES = ("glm4", "gpt_oss", "lfm2", "olmo3", "phi3", "qwen3_5_text", "qwen3_moe")


@pytest.mark.parametrize("architecture", FAMILIES)
def test_logits_are_those_of_the_folder(tmp_path, architecture):
    folder, file = tmp_path / "folder", tmp_path / "file.gguf"
    make_checkpoint(folder, architecture)
    write_tokenizer(folder, 331)
    write_gguf(folder, file)
    runners = []
    for name, source in (("a", folder), ("b", file)):
        export_bundle(source, tmp_path / name, options=ExportOptions("fp32"))
        runners.append(load(bundles.load(tmp_path / name), "onnxruntime:cpu"))
    expected, found = (runner.prefill(PROMPT[:60])["logits"][0].copy() for runner in runners)
    same = SAME_STATES if architecture in RECURRENT else SAME
    assert distance(found, expected) < same
    assert np.argmax(found) == np.argmax(expected)
    trees = [tree_logits(runner) for runner in runners]
    assert distance(trees[1], trees[0]) < same
