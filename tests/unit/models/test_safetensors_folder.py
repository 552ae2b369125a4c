"""Lazy safetensors: values, slices, memory, and files that are damaged."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from safetensors.numpy import save_file

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models import SafetensorsFolder

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EMBEDDING = "model.embed_tokens.weight"


def rewrite_header(path: Path, change) -> None:
    """Apply a change to the JSON header of a safetensors file, its data untouched."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.fixture
def single(tmp_path):
    make_checkpoint(tmp_path, "llama", dtype=torch.bfloat16)
    return tmp_path


@pytest.fixture
def sharded(tmp_path):
    make_checkpoint(tmp_path, "llama", max_shard_size="100KB")
    return tmp_path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shard_size", "sharded"), [("5GB", False), ("90KB", True)])
def test_every_value_is_what_transformers_saved(tmp_path, dtype, shard_size, sharded):
    model = make_checkpoint(tmp_path, "qwen3", dtype=DTYPES[dtype], max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == sharded
    store = SafetensorsFolder(tmp_path)
    state = model.state_dict()
    assert store.names == state.keys()
    assert store.nbytes == sum(value.numel() for value in state.values()) * DTYPES[dtype].itemsize
    for name, value in state.items():
        tensor = store.read(name)
        assert tensor.dtype == np.float32
        assert tensor.shape == store.shape(name) == tuple(value.shape)
        np.testing.assert_array_equal(tensor, value.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices(tmp_path, dtype):
    model = make_checkpoint(tmp_path, "llama", dtype=DTYPES[dtype])
    expected = model.get_input_embeddings().weight.detach().numpy()
    store = SafetensorsFolder(tmp_path)
    for start, stop in [(0, 1), (0, 331), (7, 130), (330, 331)]:
        rows = store.read_rows(EMBEDDING, start, stop)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, expected[start:stop])
    norm = store.read_rows("model.norm.weight", 3, 5)
    np.testing.assert_array_equal(norm, model.model.norm.weight.detach().numpy()[3:5])
    for start, stop in [(0, 332), (-1, 3), (5, 5), (6, 5)]:
        with pytest.raises(ValueError, match="which has 331"):
            store.read_rows(EMBEDDING, start, stop)


@pytest.mark.parametrize(
    ("dtype", "encoding", "stored"),
    [("bf16", "bf16", ml_dtypes.bfloat16), ("fp16", "f16", "<f2"), ("fp32", "f32", "<f4")],
)
def test_matrices_are_given_as_they_are_stored(tmp_path, dtype, encoding, stored):
    make_checkpoint(tmp_path, "llama", dtype=DTYPES[dtype])
    store = SafetensorsFolder(tmp_path)
    assert store.encoding(EMBEDDING) == encoding
    held = store.read_encoded(EMBEDDING, 7, 130)
    assert held.dtype == np.uint8
    values = held.view(stored).astype(np.float32)
    np.testing.assert_array_equal(values, store.read_rows(EMBEDDING, 7, 130))
    assert store.encoding("model.norm.weight") is None
    with pytest.raises(ValueError, match=r"model\.norm\.weight is no matrix of bf16"):
        store.read_encoded("model.norm.weight", 0, 1)
    with pytest.raises(ValueError, match="rows 0:332 of"):
        store.read_encoded(EMBEDDING, 0, 332)


def test_what_is_read_belongs_to_the_caller(single):
    store = SafetensorsFolder(single)
    first = store.read(EMBEDDING)
    first[:] = 0
    assert store.read(EMBEDDING).any()


def test_a_slice_costs_its_own_memory_only(tmp_path):
    big = np.ones((4096, 2048), dtype=ml_dtypes.bfloat16)
    save_file({"big": big, "other": big}, tmp_path / "model.safetensors")
    tracemalloc.start()
    try:
        store = SafetensorsFolder(tmp_path)
        rows = store.read_rows("big", 100, 164)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.nbytes == 64 * 2048 * 4
    assert peak < rows.nbytes + 200_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_file_stays_mapped(single):
    store = SafetensorsFolder(single)
    tensors = [store.read(name) for name in store.names]
    assert tensors
    assert str(single) not in Path("/proc/self/maps").read_text()


def test_no_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match="has neither model"):
        SafetensorsFolder(tmp_path)


def test_missing_shard(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name} is missing"):
        SafetensorsFolder(sharded)


def test_index_that_names_a_tensor_its_shard_has_not(sharded):
    shards = sorted(file.name for file in sharded.glob("*.safetensors"))
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][EMBEDDING] = next(
        shard for shard in shards if shard != content["weight_map"][EMBEDDING]
    )
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"{EMBEDDING}='model.*is not in that shard"):
        SafetensorsFolder(sharded)


@pytest.mark.parametrize(
    "file", ["../model-00001-of-00003.safetensors", "/etc/passwd", 3, "", ".."]
)
def test_index_that_leaves_the_folder(sharded, file):
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {EMBEDDING: file}}))
    with pytest.raises(CheckpointError, match="must be the name of a file beside the index"):
        SafetensorsFolder(sharded)


@pytest.mark.parametrize(
    ("kept", "fault"),
    [
        (0, "0 bytes with a header of 0"),
        (5, r"5 bytes with a header of \d+"),
        (8, r"8 bytes with a header of \d+"),
        (100, r"100 bytes with a header of \d+"),
        (-1, r"\S+ ends at byte \d+ of \d+"),
        (-20_000, r"\S+ ends at byte \d+ of \d+"),
    ],
)
def test_truncated_file(single, kept, fault):
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    match = rf"model\.safetensors is truncated or corrupt \({fault}\)"
    with pytest.raises(CheckpointError, match=match):
        SafetensorsFolder(single)


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {"dtype": "BF16", "shape": [331, 64]},
        {"dtype": "BF16", "shape": [331, 64], "data_offsets": [0]},
        {"dtype": "BF16", "shape": [331, 64], "data_offsets": ["a", "b"]},
        {"dtype": "BF16", "shape": [331, 64], "data_offsets": [10, 2]},
        {"dtype": "BF16", "shape": [331, -64], "data_offsets": [0, 42368]},
        {"dtype": "BF16", "shape": [-331, -64], "data_offsets": [0, 42368]},
        {"dtype": "BF16", "shape": [331.0, 64], "data_offsets": [0, 42368]},
        {"dtype": "BF16", "shape": [331, 65], "data_offsets": [0, 42368]},
        {"dtype": "BF16", "shape": [331, 64], "data_offsets": [0, 10**12]},
        {"dtype": "I64", "shape": [331, 64], "data_offsets": [0, 10**12]},
        {"dtype": "I64", "shape": [331, 64], "data_offsets": [10, 2]},
    ],
)
def test_corrupt_entry(single, entry):
    rewrite_header(
        single / "model.safetensors", lambda header: header.__setitem__(EMBEDDING, entry)
    )
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        SafetensorsFolder(single)


@pytest.mark.parametrize("header", [b"[]", b"nonsense", b"\xff\xff", b"3"])
def test_corrupt_header(single, header):
    path = single / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        SafetensorsFolder(single)


def test_a_tensor_that_is_missing_is_named(single):
    store = SafetensorsFolder(single)
    for missing in (store.place, store.shape, store.read):
        with pytest.raises(CheckpointError, match=r"has no tensor model\.extra"):
            missing("model.extra")


def test_other_dtypes_are_refused_only_where_needed(tmp_path):
    tensors = {"float": np.ones((2, 2), np.float32), "int": np.ones((2, 2), np.int64)}
    save_file(tensors, tmp_path / "model.safetensors")
    store = SafetensorsFolder(tmp_path)
    assert store.shape("float") == (2, 2)
    for refused in (store.shape, store.read):
        with pytest.raises(UnsupportedModelError, match="int has dtype I64"):
            refused("int")


def test_a_file_that_shrinks_after_opening(single):
    store = SafetensorsFolder(single)
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match="changed while it was read"):
        store.read(EMBEDDING)
