"""The graph contract: what a role's ONNX file may contain, and what lies beside it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from checkpoints import edit_json, make_checkpoint
from onnx import TensorProto, helper
from onnx.external_data_helper import ExternalDataInfo
from parity import stored
from safetensors.numpy import load_file, save_file

from edgespec import bundle as bundles
from edgespec import export
from edgespec.export import ExportOptions
from edgespec.export.graph_builder import DataFile

STANDARD = {"Gather", "Identity"}
OURS = {"BlockEmbedding", "BlockLinear", "GatedUnit", "Norm", "TreeAttention"}

EXPORTS = {
    "llama-fp32": ({"intermediate_size": 4352}, ExportOptions("fp32")),
    "mistral-fp16-kv-fp16": ({}, ExportOptions("fp16", kv_precision="fp16")),
    "qwen2-int8-tied-kv-int8": (
        {"tie_word_embeddings": True}, ExportOptions("int8", kv_precision="int8"),
    ),
    "qwen3-int4": ({}, ExportOptions("int4", draft_precision="int8")),
}  # fmt: skip


@dataclass(frozen=True)
class Role:
    """A role, and its graph without the weights."""

    bundle: bundles.Bundle
    role: bundles.Role

    @property
    def model(self):
        return onnx.load(str(self.path(self.role.native.graph)), load_external_data=False)

    @property
    def graph(self):
        return self.model.graph

    def path(self, name):
        return self.bundle.path / name


def save_pair(folder, architecture, **shapes):
    """A target, and a draft of one layer with another vocabulary size."""
    make_checkpoint(folder / "target", architecture, **shapes)
    make_checkpoint(
        folder / "draft", architecture, num_hidden_layers=1, vocab_size=352, seed=1, **shapes
    )


@pytest.fixture(scope="module", params=EXPORTS)
def bundle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    shapes, options = EXPORTS[request.param]
    save_pair(folder, request.param.split("-")[0], **shapes)
    export.make(folder / "target", folder / "bundle", folder / "draft", options)
    return bundles.load(folder / "bundle")


@pytest.fixture(params=[bundles.TARGET, bundles.DRAFT])
def role(bundle, request):
    return Role(bundle, bundle.manifest.roles[request.param])


def test_few_operators_are_used(role):
    nodes = role.graph.node
    assert {(o.domain, o.version) for o in role.model.opset_import} == {
        ("", 23),
        ("com.microsoft", 1),
        ("edgespec", 1),
    }
    assert {node.op_type for node in nodes if node.domain == ""} <= STANDARD
    assert {node.op_type for node in nodes if node.domain == "edgespec"} == OURS
    assert {node.domain for node in nodes} == {"", "edgespec"}
    assert len(nodes) <= 8 * role.role.layers + 5


def test_boundary_tensors(role):
    kv = {"fp16": "float16", "fp32": "float32", "int8": "int8"}[role.role.precision.kv]
    inputs = {
        name: ("int32", (size,))
        for name, size in (
            ("write", "S"),
            ("parent", "S"),
            ("sequence", "S"),
            ("context", "P"),
            ("starts", "B"),
        )
    } | {
        "input_ids": ("int64", ("S",)),
        "logit_rows": ("int64", ("R",)),
        "rope_cos": ("float32", ("S", "12")),
        "rope_sin": ("float32", ("S", "12")),
    }
    for layer in range(role.role.layers):
        inputs[f"pool.{layer}"] = (kv, ("2", "1", "C", "32"))
        if kv == "int8":
            inputs[f"scales.{layer}"] = ("float32", ("2", "1", "C"))
    outputs = {"logits": ("float32", ("R", str(role.role.vocab_size)))}
    assert {value.name: boundary(value) for value in role.graph.input} == inputs
    assert {value.name: boundary(value) for value in role.graph.output} == outputs
    assert role.role.native.pools == tuple(
        bundles.PoolShape(layer, 1, 32) for layer in range(role.role.layers)
    )


def boundary(value):
    tensor = value.type.tensor_type
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return dtype, tuple(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)


def test_weights_lie_aligned_in_the_file_of_tiles_and_nothing_else_does(role):
    data = role.role.native.data
    places = set()
    end = 0
    for tensor in role.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            place = ExternalDataInfo(tensor)
            assert place.location == data
            assert place.length == tensor.dims[0]
            places.add((place.offset, place.length))
        else:
            assert len(tensor.raw_data) <= 4 * 331, tensor.name  # norms and biases
    # Weights share all of their bytes or none, and only alignment lies between them.
    for offset, length in sorted(places):
        assert offset % 4096 == 0
        assert 0 <= offset - end < 4096
        end = offset + length
    assert end == role.path(data).stat().st_size


def test_every_file_is_listed(bundle):
    found = {file.name for file in bundle.path.iterdir()} - {bundles.MANIFEST}
    assert found == bundle.manifest.files.keys()
    for name, entry in bundle.manifest.files.items():
        data = (bundle.path / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_bundle_holds_nothing_else(bundle):
    assert {file.name for file in bundle.path.iterdir()} == {
        "manifest.json",
        "tokenizer.json",
        *bundle.manifest.tokenizer,
        *(f"{name}.{kind}" for name in ("target", "draft") for kind in ("native.onnx", "tiles")),
    }


def test_a_draft_has_a_precision_of_its_own(tmp_path):
    save_pair(tmp_path, "llama")
    options = ExportOptions("int4-small", draft_precision="fp16")
    export.make(tmp_path / "target", tmp_path / "bundle", tmp_path / "draft", options)
    bundle = bundles.load(tmp_path / "bundle")
    assert bundle.target.precision == bundles.Precision("int4", "int4", "fp16", 32)
    assert bundle.draft.precision == bundles.Precision("fp16", "fp16", "fp16", 0)


@pytest.mark.parametrize("precision", ["int4-small", "int8", "fp16", "fp32"])
def test_a_tied_matrix_is_stored_once(tmp_path, precision):
    sizes = {}
    matrices = {}
    for tied in (False, True):
        folder = tmp_path / str(tied)
        make_checkpoint(folder, "llama", tie_word_embeddings=tied)
        export.make(folder, folder / "bundle", options=ExportOptions(precision))
        bundle = bundles.load(folder / "bundle")
        sizes[tied] = sum(bundle.target.native.formats.values())
        matrices[tied] = stored(bundle).keys()
    assert sizes[False] - sizes[True] == 331 * 64
    assert matrices[False] - matrices[True] == {"lm_head.weight"}


EXPORT = """
import sys
from pathlib import Path
from edgespec import export
target, draft, output = map(Path, sys.argv[1:])
export.make(target, output, draft)
"""


def test_two_exports_are_identical(tmp_path):
    save_pair(tmp_path, "qwen3")
    contents = []
    for seed in ("1", "2"):
        output = tmp_path / f"bundle-{seed}"
        paths = [tmp_path / "target", tmp_path / "draft", output]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", EXPORT, *map(str, paths)]
        subprocess.run(run, cwd=tmp_path, env=environment, check=True)
        contents.append({file.name: file.read_bytes() for file in output.iterdir()})
    first, second = contents
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} == set()


TILE = 1 << 20  # bytes of float32
TILES = 40


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A checkpoint with a tied embedding of 40 tiles."""
    path = tmp_path_factory.mktemp("wide")
    make_checkpoint(path, "llama", tie_word_embeddings=True)
    rows = TILES * TILE // (64 * 4)
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"] = np.random.default_rng(0).standard_normal(
        (rows, 64), np.float32
    )
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    edit_json(path / "config.json", vocab_size=rows)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "tiles"),
    # Measured 8, 6 and 10: two threads each take a few tiles' memory to move or quantize rows.
    [("fp32", 13), ("fp16", 13), ("int8", 13), ("int4", 13)],
)
def test_a_large_matrix_passes_in_tiles_however_slow_the_disk(
    wide, tmp_path, precision, tiles, monkeypatch
):
    write = DataFile.write
    waits = [2.0]

    def slowly(self, array):
        if waits and array.nbytes > TILE // 16:
            time.sleep(waits.pop())  # there is time to quantize all of it
        write(self, array)

    monkeypatch.setattr(DataFile, "write", slowly)
    tracemalloc.start()
    try:
        export.make(wide, tmp_path / "bundle", options=ExportOptions(precision))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < tiles * TILE
