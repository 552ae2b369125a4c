"""The graph contract: what a stage's ONNX file may contain, and what lies beside it."""

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
from checkpoints import edit_json, make_checkpoint, write_tokenizer
from onnx import TensorProto, helper
from safetensors.numpy import load_file, save_file

from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.graph_builder import DataFile

STANDARD = {
    "Add", "Cast", "Concat", "Gather", "Gemm", "Identity", "MatMul", "Mul", "RMSNormalization",
    "Reshape", "Sigmoid", "Softmax", "Split",
    "Sub", "Transpose", "Unsqueeze",
}  # fmt: skip
ORDERED = {"GatherElements"}  # of targets
CANDIDATES = {"Exp", "Log", "ReduceSum", "Slice", "Squeeze", "Sub", "TopK"}
CONTRIB = {"MatMulNBits", "GatherBlockQuantized"}

EXPORTS = {
    "llama-fp32": ({"intermediate_size": 4352}, ExportOptions("fp32")),
    "mistral-fp16-kv-fp16": ({}, ExportOptions("fp16", kv_precision="fp16")),
    "qwen2-int8-tied": ({"tie_word_embeddings": True}, ExportOptions("int8")),
    "qwen3-int4-kv-fp16": ({}, ExportOptions("int4", draft_precision="int8", kv_precision="fp16")),
}


@dataclass(frozen=True)
class Stage:
    """One role's stage, its graph read without the weights."""

    bundle: bundles.Bundle
    role: bundles.Role
    name: str

    @property
    def graph(self):
        return self.model.graph

    @property
    def model(self):
        return onnx.load(str(self.path(self.role.stages[0].graph)), load_external_data=False)

    def path(self, name):
        return self.bundle.path / name


def save_pair(folder, architecture, **shapes):
    """A target, and a draft of one layer with another vocabulary size."""
    make_checkpoint(folder / "target", architecture, **shapes)
    make_checkpoint(
        folder / "draft", architecture, num_hidden_layers=1, vocab_size=352, seed=1, **shapes
    )
    for name in ("target", "draft"):
        write_tokenizer(folder / name, 331)


@pytest.fixture(scope="module", params=EXPORTS)
def bundle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    shapes, options = EXPORTS[request.param]
    save_pair(folder, request.param.split("-")[0], **shapes)
    export_bundle(folder / "target", folder / "bundle", folder / "draft", options)
    return bundles.load(folder / "bundle")


@pytest.fixture(params=[bundles.TARGET, bundles.DRAFT])
def stage(bundle, request):
    return Stage(bundle, bundle.manifest.roles[request.param], request.param)


def test_operators_are_those_that_both_engines_know(stage):
    assert {(o.domain, o.version) for o in stage.model.opset_import} == {
        ("", 23), ("com.microsoft", 1),
    }  # fmt: skip
    used = {(node.domain, node.op_type) for node in stage.graph.node}
    standard = STANDARD | (CANDIDATES if stage.name == bundles.DRAFT else ORDERED)
    assert {kind for domain, kind in used if domain == ""} <= standard
    assert {kind for domain, kind in used if domain} <= CONTRIB
    assert {domain for domain, _ in used} <= {"", "com.microsoft"}
    quantized = stage.role.precision.weights.startswith("int")
    # Level 4: products of integers, the fast ones.
    levels = {a.i for n in stage.graph.node for a in n.attribute if a.name == "accuracy_level"}
    assert levels == ({4} if quantized else set())
    assert (("com.microsoft", "MatMulNBits") in used) == quantized
    onnx.checker.check_model(str(stage.path(stage.role.stages[0].graph)))


def test_boundary_tensors(stage):
    role, kv = stage.role, {"fp16": "float16", "fp32": "float32"}[stage.role.precision.kv]
    past = ("1", "C", "24")
    inputs = {
        "input_ids": ("int64", ("S",)),
        "rope_cos": ("float32", ("S", "24")),
        "rope_sin": ("float32", ("S", "24")),
        "attention_bias": ("float32", ("S", "C+S")),
        "lengths": ("int64", ("2",)),
        "logit_rows": ("int64", ("R",)),
    }
    if stage.name == bundles.TARGET:
        inputs["attention_bias"] = ("float32", ("S", "N+C"))
        inputs["window_rows"] = ("int64", ("W",))
        inputs["recent_rows"] = ("int32", ("S", "N"))
        inputs["recent_columns"] = ("int32", ("S", "W+S"))
    for layer in range(role.layers):
        inputs[f"past.{layer}.key"] = inputs[f"past.{layer}.value"] = (kv, past)
    outputs = {"new_kv": (kv, (str(role.layers), "2", "1", "S", "24"))}
    if stage.name == bundles.TARGET:
        outputs["logits"] = ("float32", ("R", "331"))
    else:
        outputs["top_ids"] = ("int64", ("R", "128"))
        outputs["top_logits"] = ("float32", ("R", "128"))
        outputs["logsumexp"] = ("float32", ("R",))
    (listed,) = role.stages
    for expected, listing, values in (
        (inputs, listed.inputs, stage.graph.input),
        (outputs, listed.outputs, stage.graph.output),
    ):
        assert {t.name: (t.dtype, t.shape) for t in listing} == expected
        assert {value.name: boundary(value) for value in values} == expected
    assert (listed.start, listed.stop) == (0, 2 * role.layers + 1)


def boundary(value):
    tensor = value.type.tensor_type
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return dtype, tuple(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)


def test_the_past_is_multiplied_with_and_nothing_else(stage):
    """It may change type and be transposed, and is never copied into anything that grows.

    Of a target's, only the window's rows are.
    """
    past = {value.name for value in stage.graph.input if value.name.startswith("past.")}
    assert len(past) == 2 * stage.role.layers
    multiplied = 0
    for node in stage.graph.node:
        if past & set(node.input):
            if stage.name == bundles.TARGET and "window_rows" in node.input:
                assert node.op_type == "Gather"
                continue
            assert node.op_type in {"Cast", "Transpose", "MatMul"}
            if node.op_type == "MatMul":
                multiplied += 1
            else:
                past |= set(node.output)
    assert multiplied == 2 * stage.role.layers


def test_bounds_and_shapes_come_from_the_host(stage):
    """Some engines have gone wrong with bounds that a graph computes."""
    fixed = {tensor.name for tensor in stage.graph.initializer} | {"lengths"}
    shaped = {"Reshape", "Slice", "Split", "Squeeze", "Unsqueeze", "TopK", "ReduceSum"}
    for node in stage.graph.node:
        if node.op_type in shaped:
            assert set(node.input[1:]) <= fixed, node.name


def external(tensor):
    """Offset and length in the data file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return int(entries["offset"]), int(entries["length"])


def bytes_of(tensor):
    return int(np.prod(tensor.dims)) * np.dtype(
        helper.tensor_dtype_to_np_dtype(tensor.data_type)
    ).itemsize  # fmt: skip


def test_weights_lie_aligned_in_the_data_file_and_nothing_else_does(stage):
    data = stage.role.stages[0].data
    places = set()
    for tensor in stage.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            assert {e.value for e in tensor.external_data if e.key == "location"} == {data}
            offset, length = external(tensor)
            assert length == bytes_of(tensor)
            assert offset % (4096 if length >= 1 << 20 else 64) == 0
            places.add((offset, length))
        else:
            assert bytes_of(tensor) <= 64, tensor.name
    assert (max(length for _, length in places) >= 1 << 20) == (
        stage.role.precision.weights == "fp32"
    )
    # Weights share all of their bytes or none, and only alignment lies between them.
    end = 0
    for offset, length in sorted(places):
        assert 0 <= offset - end < 4096
        end = offset + length
    assert end == stage.path(data).stat().st_size


def test_every_file_is_listed(bundle):
    found = {file.name for file in bundle.path.iterdir()} - {bundles.MANIFEST}
    assert found == bundle.manifest.files.keys()
    for name, entry in bundle.manifest.files.items():
        data = (bundle.path / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_draft_has_a_precision_of_its_own(tmp_path):
    save_pair(tmp_path, "llama")
    options = ExportOptions("int4-small", draft_precision="fp16", block_size=32)
    export_bundle(tmp_path / "target", tmp_path / "bundle", tmp_path / "draft", options)
    bundle = bundles.load(tmp_path / "bundle")
    assert bundle.target.precision == bundles.Precision("int4", "int4", "fp32", 32, "fp16")
    assert bundle.draft.precision == bundles.Precision("fp16", "fp16", "fp32", 0)


@pytest.mark.parametrize(
    ("precision", "nbytes"),
    [("int4-small", 331 * (32 + 2 * 2)), ("int8", 331 * (64 + 2 * 2)), ("fp16", 331 * 128),
     ("fp32", 331 * 256)],
)  # fmt: skip
def test_a_tied_matrix_is_stored_once(tmp_path, precision, nbytes):
    sizes, places = {}, {}
    for tied in (False, True):
        folder = tmp_path / str(tied)
        make_checkpoint(folder, "llama", tie_word_embeddings=tied)
        write_tokenizer(folder, 331)
        bundle_path = tmp_path / f"bundle-{tied}"
        export_bundle(folder, bundle_path, options=ExportOptions(precision))
        bundle = bundles.load(bundle_path)
        sizes[tied] = (bundle_path / bundle.target.stages[0].data).stat().st_size
        places[tied] = [
            external(tensor)
            for tensor in Stage(bundle, bundle.target, bundles.TARGET).graph.initializer
            if tensor.name.startswith(("model.embed_tokens.", "lm_head."))
        ]
    assert len(set(places[True])) * 2 == len(set(places[False]))
    assert sum(length for _, length in set(places[True])) == nbytes
    # But for alignment, of the packed bytes and of the scales.
    assert abs(sizes[False] - sizes[True] - nbytes) <= 2 * 4096


EXPORT = """
import sys
from pathlib import Path
from edgespec.export import export_bundle
target, draft, output = map(Path, sys.argv[1:])
export_bundle(target, output, draft)
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
    write_tokenizer(path, 331)
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
    # Measured 2 and 10: two threads each take a few tiles' memory to quantize one.
    [("fp32", 4), ("fp16", 4), ("int8", 13), ("int4", 13)],
)
def test_a_large_matrix_passes_in_tiles_however_slow_the_disk(
    wide, tmp_path, precision, tiles, monkeypatch
):
    write, waits = DataFile.write, [2.0]

    def slowly(self, array):
        if waits and array.nbytes > TILE // 16:
            time.sleep(waits.pop())  # there is time to quantize all of it
        write(self, array)

    monkeypatch.setattr(DataFile, "write", slowly)
    tracemalloc.start()
    try:
        export_bundle(wide, tmp_path / "bundle", options=ExportOptions(precision))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < tiles * TILE
