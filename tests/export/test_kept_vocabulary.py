"""Sources that hold every matrix in blocks, the vocabulary's too, and the forms that hold them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import EMBEDDING, HEAD, PROMPT, SAME, devices, distance, float_activations, load
from quantized import IN_8_BITS, stored, unpacked

from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.formats.kept import Form, form_of, keep
from edgespec.models import checkpoint as checkpoints
from edgespec.models import load_checkpoint
from edgespec.models.parts import Part, Parts
from edgespec.models.tensors import BlockRows, Blocks, multiplied_out
from edgespec.runtime.execution.sizes import stage_sizes


class InBlocks:
    """A folder whose matrices are rounded to blocks, also those of the vocabulary."""

    def __init__(self, tensors, blocks, symmetric, half):
        self._tensors = tensors
        self._blocks = blocks
        self._kept = {}
        rng = np.random.default_rng(0)
        for name in sorted(tensors.names):
            if len(tensors.shape(name)) == 2:
                self._kept[name] = self._rounded(tensors.shape(name), symmetric, half, rng)
        self.names, self.nbytes = tensors.names, tensors.nbytes

    def _rounded(self, shape, symmetric, half, rng):
        rows, width = shape
        count = -(-width // self._blocks.size)
        scales = rng.uniform(0.5, 1.5, (rows, count)).astype(np.float16).astype(np.float32)
        scales *= np.float32(0.5 ** (self._blocks.bits + 2))  # about as large as weights are
        if not half:
            scales *= np.float32(1 + 2**-14)
        levels = rng.integers(0, 2**self._blocks.bits, shape).astype(np.uint8)
        zeros = None
        if not symmetric:
            middle = 2 ** (self._blocks.bits - 1)
            zeros = rng.integers(middle - 1, middle + 2, (rows, count)).astype(np.uint8)
        return BlockRows(levels, scales, zeros)

    def place(self, name):
        return "blocks"

    def shape(self, name):
        return self._tensors.shape(name)

    def read(self, name):
        return self.read_rows(name, 0, self.shape(name)[0])

    def read_rows(self, name, start, stop):
        if name not in self._kept:
            return self._tensors.read_rows(name, start, stop)
        return multiplied_out(self.read_blocks(name, start, stop), self._blocks)

    def blocks(self, name):
        return self._blocks if name in self._kept else None

    def encoding(self, name):
        return None

    def read_blocks(self, name, start, stop):
        whole = self._kept[name]
        zeros = None if whole.zeros is None else whole.zeros[start:stop]
        return BlockRows(whole.levels[start:stop], whole.scales[start:stop], zeros)


SOURCES = {
    "8-bits-of-32": (Blocks(8, 32), True, True),
    "4-bits-of-32": (Blocks(4, 32), True, True),
    "4-bits-with-zero-points": (Blocks(4, 32), False, True),
    "6-bits-of-16": (Blocks(6, 16), True, False),
    "3-bits-of-16-with-zero-points": (Blocks(3, 16), False, False),
}


@pytest.fixture(params=SOURCES)
def in_blocks(request, monkeypatch):
    """Lets checkpoints be read as a source of blocks."""
    opened = checkpoints.unpacked

    def read(tensors, config):
        source, format_ = opened(tensors, config)
        return InBlocks(source, *SOURCES[request.param]), format_

    monkeypatch.setattr(checkpoints, "unpacked", read)
    return request.param


@devices
@pytest.mark.parametrize("tied", [True, False])
def test_vocabularies_are_kept_too(in_blocks, tied, device, saved_checkpoint, tmp_path):
    source = saved_checkpoint("qwen2", tie_word_embeddings=tied)
    held = load_checkpoint(source).tensors
    export_bundle(source, tmp_path / "bundle")
    export_bundle(source, tmp_path / "fp32", options=ExportOptions("fp32"))
    bundle = bundles.load(tmp_path / "bundle")
    role = bundle.target
    assert set(role.quantization_error.values()) == {0}
    parts = {each.part for each in role.precision.kept}
    assert parts == {"layers", "lm_head"} | ({"embedding"} if not tied else set())
    found = stored(bundle)
    head = EMBEDDING if tied else HEAD
    assert np.array_equal(found[head][0], held.read(head))
    assert np.array_equal(found[f"rows of {EMBEDDING}"][0], held.read(EMBEDDING))
    (stage,) = stage_sizes(bundle, bundles.TARGET)
    packed = bundle.manifest.files["target.data"].size
    together = stage.matmul_bytes + (0 if tied else stage.embedding_bytes)
    assert abs(together - packed) < 0.02 * packed

    text = PROMPT[:40]
    expected = load(bundles.load(tmp_path / "fp32"), device).prefill(text)["logits"][0].copy()
    floats = float_activations(bundle, tmp_path / "floats")
    # ONNX Runtime looks rows up in the precision of the scales.
    half = device == "onnxruntime:cpu" and SOURCES[in_blocks][2]
    near = 1e-3 if half else SAME
    assert distance(load(floats, device).prefill(text)["logits"][0], expected) < near
    found = distance(load(bundle, device).prefill(text)["logits"][0], expected)
    assert found < IN_8_BITS


# The form


class One:
    """A source of one matrix in blocks."""

    def __init__(self, rows, blocks):
        self.rows, self.held = rows, blocks

    def blocks(self, name):
        return self.held

    def shape(self, name):
        return self.rows.levels.shape

    def place(self, name):
        return "file"

    def read_blocks(self, name, start, stop):
        zeros = None if self.rows.zeros is None else self.rows.zeros[start:stop]
        return BlockRows(self.rows.levels[start:stop], self.rows.scales[start:stop], zeros)


@st.composite
def matrices(draw):
    bits, size = draw(st.integers(2, 8)), draw(st.sampled_from([16, 32, 48, 64, 128, 160, 256, 20]))
    width = draw(st.sampled_from([16, 48, 64, 96, 160, 256, 320]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    count = -(-width // size)
    scales = rng.standard_normal((3, count)).astype(np.float32)
    if draw(st.booleans()):
        scales = scales.astype(np.float16).astype(np.float32)
    zeros = rng.integers(0, 2**bits, (3, count)).astype(np.uint8) if draw(st.booleans()) else None
    levels = rng.integers(0, 2**bits, (3, width)).astype(np.uint8)
    return BlockRows(levels, scales, zeros), Blocks(bits, size)


@settings(max_examples=200, deadline=None)
@given(matrices())
def test_every_form_holds_its_rows_exactly(made):
    rows, blocks = made
    width = rows.levels.shape[1]
    form = form_of(One(rows, blocks), "m", 8)
    if form is None:
        common = np.gcd(min(blocks.size, width), width)
        assert common % 16 or (rows.zeros is not None and blocks.bits <= 4 and width % 32)
        return
    assert form.bits == (4 if blocks.bits <= 4 else 8)
    found = keep(rows, blocks, form)
    count = width // form.block_size
    assert found.scales.dtype == form.scales
    zeros = np.full((3, count), 2 ** (form.bits - 1))
    if found.zeros is not None:
        zeros = unpacked(found.zeros, form.bits)[:, :count]
    levels = unpacked(found.packed, form.bits).reshape(3, count, -1)
    values = (levels - zeros[:, :, None]) * found.scales.astype(np.float64)[:, :, None]
    assert np.array_equal(values.reshape(3, -1).astype(np.float32), multiplied_out(rows, blocks))


def test_what_no_form_holds():
    rng = np.random.default_rng(0)
    rows = BlockRows(
        rng.integers(0, 16, (2, 96)).astype(np.uint8),
        np.ones((2, 3), np.float32),
        np.full((2, 3), 7, np.uint8),
    )
    whole = One(rows, Blocks(4, 32))
    # Zero points of 4 bits fill whole bytes, so that there are six blocks and not three.
    assert form_of(whole, "m", 4) == Form(4, 16, np.float16, True)
    narrow = replace(rows, levels=rows.levels[:, :48], zeros=rows.zeros, scales=rows.scales)
    assert form_of(One(narrow, Blocks(4, 16)), "m", 4) is None
    assert form_of(One(replace(narrow, zeros=None), Blocks(4, 16)), "m", 4).block_size == 16
    assert form_of(whole, "m", 0) is None
    large = replace(rows, scales=rows.scales * 60000)
    assert form_of(One(large, Blocks(4, 32)), "m", 4) is None
    assert form_of(One(rows, Blocks(8, 32)), "m", 4) is None


def test_rows_of_a_part_of_a_tensor():
    rng = np.random.default_rng(0)
    rows = BlockRows(
        rng.integers(0, 16, (9, 32)).astype(np.uint8),
        rng.random((9, 2)).astype(np.float32),
        rng.integers(0, 16, (9, 2)).astype(np.uint8),
    )
    ids = np.array([0, 1, 4, 7, 8])
    source = Parts(One(rows, Blocks(4, 16)), {"part": Part("m", ids, 9)})
    assert source.blocks("part") == source.blocks("m") == Blocks(4, 16)
    for start, stop in ((0, 5), (1, 3), (3, 5)):
        found = source.read_blocks("part", start, stop)
        for part in ("levels", "scales", "zeros"):
            assert np.array_equal(getattr(found, part), getattr(rows, part)[ids[start:stop]])
    whole = source.read_blocks("m", 2, 4)
    assert np.array_equal(whole.levels, rows.levels[2:4])
