"""Matrices that are stored in the quantized blocks of the checkpoint's file, exactly."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from checkpoints import edit_json
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from parity import EMBEDDING, HEAD, PROMPT, SAME, devices, distance, float_activations, load
from quantized import Format, config, quantize

from edgespec import bundle as bundles
from edgespec.errors import CheckpointError, InputError
from edgespec.export import ExportOptions, RoundedMatrices, Texts, calibrate, export_bundle
from edgespec.export.formats.kept import Form, form_of, keep
from edgespec.models import checkpoint as checkpoints
from edgespec.models import load_checkpoint
from edgespec.models.tensors import BlockRows, Blocks, multiplied_out
from edgespec.runtime.execution.exactness import measure
from edgespec.runtime.execution.sizes import stage_sizes

PACK = {"kind": "pack-quantized"}
FORMATS = {
    "gptq": Format("gptq", 4, 32),
    "gptq-asymmetric": Format("gptq", 4, 16, symmetric=False),
    "gptq-8-bits-asymmetric": Format("gptq", 8, 32, symmetric=False),
    "awq-whole-rows": Format("awq", 4, None, symmetric=False),
    "packed-wide-scales": Format("compressed-tensors", 4, 32, half=False, **PACK),
    "int8": Format("compressed-tensors", 8, None, kind="int-quantized"),
}
# Activations are rounded to 8 bits in blocks of weights: measured 0.04 at most.
IN_8_BITS = 0.06


def made(source, folder, form, **options):
    """Exports a quantized checkpoint; returns its matrices and the bundle."""
    matrices = quantize(source, folder / "made", form, folder / "plain")
    export_bundle(folder / "made", folder / "bundle", options=ExportOptions(**options))
    return matrices, bundles.load(folder / "bundle")


def stored(bundle):
    """What the products multiply by and lookups read, by the tensors' names, from the files."""
    graph = onnx.load(str(bundle.path / bundle.target.stages[0].graph)).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    arrays |= {n.output[0]: arrays[n.input[0]] for n in graph.node if n.input[0] in arrays}
    found = {}
    for node in graph.node:
        if node.op_type not in ("MatMulNBits", "GatherBlockQuantized"):
            continue
        attributes = {a.name: a.i for a in node.attribute}
        bits, size = attributes["bits"], attributes["block_size"]
        product = node.op_type == "MatMulNBits"
        packed = arrays[node.input[1 if product else 0]]
        scales = arrays[node.input[2]].astype(np.float64)
        rows, count = scales.shape
        levels = unpacked(packed.reshape(rows, -1), bits).reshape(rows, count, size)
        zeros = np.full((rows, count), 2 ** (bits - 1))
        if len(node.input) > 3:
            zeros = unpacked(arrays[node.input[3]].reshape(rows, -1), bits)[:, :count]
        values = ((levels - zeros[:, :, None]) * scales[:, :, None]).reshape(rows, -1)
        label = node.input[1 if product else 0].split(".packed")[0]
        found[label if product else f"rows of {label}"] = values.astype(np.float32), bits, size
    return found


def unpacked(packed, bits):
    numbers = packed.astype(int)
    if bits == 8:
        return numbers
    return np.stack([numbers % 16, numbers // 16], axis=-1).reshape(len(packed), -1)


def apart(found, matrices):
    """Splits what one product multiplies with into its matrices."""
    for label, (values, *form) in found.items():
        names = label.split("+")
        if names[0] in matrices:
            ends = np.cumsum([len(matrices[name][0]) for name in names])
            for name, part in zip(names, np.split(values, ends[:-1]), strict=True):
                yield name, part, *form


@pytest.fixture
def source(saved_checkpoint):
    return saved_checkpoint("llama")


@pytest.mark.parametrize("name", FORMATS)
def test_levels_scales_and_zero_points_are_those_of_the_file(name, source, tmp_path):
    form = FORMATS[name]
    matrices, bundle = made(source, tmp_path, form)
    role = bundle.target
    assert (role.precision.weights, role.precision.lm_head) == ("int8", "int8")
    assert role.precision.exact == matrices.keys()
    found = {key: rest for key, *rest in apart(stored(bundle), matrices)}
    assert found.keys() == matrices.keys()
    for key, (values, bits, size) in found.items():
        assert np.array_equal(values, matrices[key][0]), key
        assert bits == form.bits
        assert size <= (form.size or values.shape[1])
        assert role.quantization_error[key] == 0
    assert 0 < role.quantization_error[HEAD] < 0.01
    for kept in role.precision.kept:
        assert kept.part == "layers"
        assert kept.scales == ("fp16" if form.half else "fp32")
        assert kept.zero_points == (not form.symmetric)


@devices
@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_values_in_floats(name, device, source, tmp_path):
    _, bundle = made(source, tmp_path, FORMATS[name], lm_head_precision="fp32")
    export_bundle(tmp_path / "plain", tmp_path / "fp32", options=ExportOptions("fp32"))
    text = PROMPT[:60]
    expected = load(bundles.load(tmp_path / "fp32"), device).prefill(text)["logits"][0].copy()
    floats = float_activations(bundle, tmp_path / "floats")
    assert distance(load(floats, device).prefill(text)["logits"][0], expected) < SAME
    found = distance(load(bundle, device).prefill(text)["logits"][0], expected)
    assert SAME < found < IN_8_BITS


@devices
@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_the_same_bits_in_all_company(name, device, source, tmp_path):
    _, bundle = made(source, tmp_path, FORMATS[name])
    assert measure(load(bundle, device).model).exact


def test_what_was_asked_for_is_the_most_that_is_taken(source, tmp_path):
    matrices = quantize(source, tmp_path / "made", Format("gptq", 8, 32))

    def precision(name, **options):
        options = ExportOptions(name, **options)
        export_bundle(tmp_path / "made", tmp_path / name, options=options)
        return bundles.load(tmp_path / name).target.precision

    assert precision("int8").exact == matrices.keys()
    assert precision("int4-small").exact == set()
    # Keys and values get 8 bits, which are those of the file.
    narrow = precision("int4")
    assert narrow.wide == ()
    assert {name.split(".")[-2] for name in narrow.exact} == {"k_proj", "v_proj"}
    assert precision("fp32").kept == ()
    assert precision("w8a8").kept == ()


def test_four_bits_stay_four_bits(source, tmp_path):
    matrices, bundle = made(source, tmp_path, Format("gptq", 4, 32), precision="int4")
    precision = bundle.target.precision
    assert (precision.weights, precision.lm_head, precision.wide) == ("int4", "int8", ())
    assert precision.exact == matrices.keys()


def test_act_order_and_fp8_are_rounded_to_eight_bits(source, tmp_path):
    for number, form in enumerate(
        (Format("gptq", 4, 32, order="scattered"), Format("fp8", 0, 48, kind="block"))
    ):
        matrices, bundle = made(source, tmp_path / str(number), form)
        assert bundle.target.precision.weights == "int8"
        assert bundle.target.precision.kept == ()
        errors = [bundle.target.quantization_error[name] for name in matrices]
        assert 0 < max(errors) < 0.01


def test_a_draft_gets_the_fewest_bits(source, tmp_path):
    quantize(source, tmp_path / "made", Format("gptq", 4, 32, symmetric=False))
    export_bundle(tmp_path / "made", tmp_path / "bundle", tmp_path / "made")
    bundle = bundles.load(tmp_path / "bundle")
    assert bundle.target.precision.weights == "int8"
    assert bundle.draft.precision.weights == bundle.draft.precision.lm_head == "int4"
    assert bundle.draft.precision.exact == bundle.target.precision.exact


def test_the_precision_of_a_source_that_has_none(source, tmp_path):
    with pytest.raises(InputError, match=r"'source', but .* is not quantized: use one of int4,"):
        export_bundle(source, tmp_path / "bundle", options=ExportOptions("source"))
    export_bundle(source, tmp_path / "bundle")
    manifest = (tmp_path / "bundle" / "manifest.json").read_text()
    assert json.loads(manifest)["roles"]["target"]["precision"]["weights"] == "int4"
    assert "kept" not in manifest  # such a bundle is what it was


def test_calibration_rounds_nothing_again(source, tmp_path):
    matrices = quantize(source, tmp_path / "made", Format("gptq", 8, 32))
    texts = np.random.default_rng(1).integers(331, size=(3, 24)).tolist()
    loaded = load_checkpoint(tmp_path / "made")
    kept = {name for name in matrices if "mlp" in name or "o_proj" in name}
    with RoundedMatrices(tmp_path, kept) as rounded:
        seen = calibrate(loaded, Texts(texts[:1], texts[1:2], texts[2:]), 32, rounded)
        assert set(rounded) == matrices.keys() - kept
    assert seen.damage.keys() == seen.sizes.keys() == matrices.keys()
    assert {name for name, damage in seen.damage.items() if damage == 0} == kept


def test_scales_that_are_no_numbers(source, tmp_path):
    form = Format("compressed-tensors", 4, 32, half=False, **PACK)
    quantize(source, tmp_path / "made", form)
    spoiled = (tmp_path / "made" / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(spoiled[:8], "little")
    entries = json.loads(spoiled[8:header])
    start = entries["model.layers.0.mlp.up_proj.weight_scale"]["data_offsets"][0] + header
    spoiled = spoiled[:start] + np.float32("nan").tobytes() + spoiled[start + 4 :]
    (tmp_path / "made" / "model.safetensors").write_bytes(spoiled)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight has scales that are infinity or"):
        export_bundle(tmp_path / "made", tmp_path / "bundle")


# A source of blocks for every matrix, as other formats of files have


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
    opened = checkpoints.opened

    def read(tensors, config):
        source, format_ = opened(tensors, config)
        return InBlocks(source, *SOURCES[request.param]), format_

    monkeypatch.setattr(checkpoints, "opened", read)
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


def test_zero_points_in_the_middle_are_not_stored(source, tmp_path):
    quantize(source, tmp_path / "made", Format("gptq", 4, 32))
    edit_json(
        tmp_path / "made" / "config.json",
        quantization_config=config(Format("gptq", 4, 32, kind="gptq")),
    )
    export_bundle(tmp_path / "made", tmp_path / "bundle")
    kept = bundles.load(tmp_path / "bundle").target.precision.kept
    assert [each.zero_points for each in kept] == [False]
