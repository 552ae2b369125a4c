"""Helpers to compare an exported model with transformers: texts, a token tree, a distance."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from checkpoints import make_checkpoint, write_tokenizer

from edgespec import bundle as bundles
from edgespec.export import last_rows
from edgespec.export.formats.blocks import QuantizedRows, dequantize_rows
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.tuning.calibrating import opener
from edgespec.tuning.quality import logits_of

# Float32 sums in another order differ by at most 1e-6, as measured.
SAME = 1e-5
# States make some rows small before a norm, which then shows more of their last digits; so does
# attention that is sharp, as of Gemma 4 with random weights, whose scores are not scaled.
SAME_STATES = 1e-4

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PROMPT = np.random.default_rng(7).integers(0, 331, 400).tolist()
# Parents of rows: two branches that split again; the root is row 0. Seven rows are padded to eight.
PARENTS = (None, 0, 0, 1, 1, 2, 4)
TREE_TOKENS = (17, 3, 250, 99, 3, 41, 330)

devices = pytest.mark.parametrize("device", CPU_ENGINES)


def reference(model, tokens, cache=None):
    """Returns transformers' logits of the last token, [V]."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), past_key_values=cache).logits[0, -1].numpy()


def calibration_logits(checkpoint, texts):
    """Returns the logits [B * T, V] of the float32 layers that calibration reads texts with."""
    return logits_of(checkpoint, last_rows(checkpoint, texts, opener()))


def distance(found, expected):
    assert found.shape == expected.shape
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def path_to(row):
    """Returns the rows from the root to this one."""
    parent = PARENTS[row]
    return [row] if parent is None else [*path_to(parent), row]


def tree_rows():
    n = len(PARENTS)
    mask = np.zeros((n, n), np.bool_)
    for row in range(n):
        mask[row, path_to(row)] = True
    parents = [START if parent is None else parent for parent in PARENTS]
    return Rows(TREE_TOKENS, [len(path_to(row)) - 1 for row in range(n)], mask, parents)


def tree_logits(runner):
    """Returns the logits of the tree's rows behind a short text."""
    runner.prefill(range(1, 20))
    return runner.verify(tree_rows())["logits"][:7].copy()


def blocks(packed, scales, bits):
    """Returns the values of quantized rows, [rows, blocks * block_size] float32."""
    return dequantize_rows(QuantizedRows(packed, scales, 0.0, 0.0), bits)


def load(bundle, device, role=bundles.TARGET):
    return Runner(Model.load(bundle, role, engine(device), 1))


def made(folder, architecture, tokens=331, **options):
    model = make_checkpoint(folder, architecture, **options)
    write_tokenizer(folder, tokens)
    return model


def float_activations(bundle, folder):
    """A copy of the bundle that asks both engines to leave activations in float32."""
    shutil.copytree(bundle.path, folder)
    for stage in (*bundle.target.stages, *bundle.target.stages_of_texts):
        file = folder / stage.graph
        model = onnx.load(str(file), load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 1
        file.write_bytes(model.SerializeToString())
    role = replace(bundle.target, precision=replace(bundle.target.precision, block_size=0))
    manifest = replace(bundle.manifest, roles={bundles.TARGET: role})
    return bundles.Bundle(folder, manifest)
