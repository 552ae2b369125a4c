"""Matrices that keep the quantized blocks of the checkpoint's file, the vocabulary's too."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ggufs import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes import MISSING
from parity import EMBEDDING, HEAD, PROMPT, SAME, distance, logits_of_bundle
from parity import stored as stored_in
from quantized import IN_8_BITS, Format, config, quantize

from edgespec import bundle as bundles
from edgespec import export
from edgespec.cli import main
from edgespec.errors import CheckpointError, InputError
from edgespec.export import ExportOptions, RoundedMatrices, Texts, calibrate
from edgespec.export.formats.tile_formats import TILE_FORMATS
from edgespec.export.formats.tiles import tile_weights
from edgespec.export.native.weights import TileWeights
from edgespec.export.storage import Storage, blocks_format
from edgespec.models import load_checkpoint
from edgespec.models.formats.tensors import BlockRows, Blocks
from edgespec.models.formats.tensors import block_weights as values_of
from edgespec.tuning.calibrating import opener

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

PACK = {"kind": "pack-quantized"}
# Of which the last ones have no tiles, and are rounded to 8 bits: blocks of 16, scales that half
# precision does not have.
FORMATS = {
    "q4_0": Format("gptq", 4, 32),
    "q4_z": Format("awq", 4, None, symmetric=False),
    "q8_z": Format("gptq", 8, 32, symmetric=False),
    "q8_0": Format("compressed-tensors", 8, None, kind="int-quantized"),
    "blocks of 16": Format("gptq", 4, 16, symmetric=False),
    "wide scales": Format("compressed-tensors", 4, 32, half=False, **PACK),
}


def made(source, folder, form, **options):
    """Exports a quantized checkpoint; returns its matrices and the bundle."""
    matrices = quantize(source, folder / "made", form, folder / "plain")
    export.make(folder / "made", folder / "bundle", options=ExportOptions(**options))
    return matrices, bundles.load(folder / "bundle")


def formats(bundle, role="target"):
    return {name: each.format for name, each in stored_in(bundle, role).items()}


@pytest.fixture
def source(saved_checkpoint):
    return saved_checkpoint("llama")


@pytest.mark.parametrize("name", FORMATS)
def test_levels_scales_and_zero_points_are_those_of_the_file(name, source, tmp_path):
    matrices, bundle = made(source, tmp_path, FORMATS[name])
    role = bundle.target
    found = stored_in(bundle)
    assert (role.precision.weights, role.precision.lm_head) == ("int8", "int8")
    for key, (values, _) in matrices.items():
        kept = found[key].values[:, : values.shape[1]]
        if name in TILE_FORMATS:
            assert np.array_equal(kept, values), key
            assert found[key].format == name
            assert role.quantization_error[key] == 0
        else:
            assert found[key].format == "q8_0"
            assert 0 < role.quantization_error[key] < 0.01
    assert 0 < role.quantization_error[HEAD] < 0.01


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_values_in_floats(name, source, tmp_path):
    _, bundle = made(source, tmp_path, FORMATS[name], lm_head_precision="fp32")
    export.make(tmp_path / "plain", tmp_path / "fp32", options=ExportOptions("fp32"))
    expected = logits_of_bundle(tmp_path / "fp32", PROMPT[:60])[-1]
    assert SAME < distance(logits_of_bundle(bundle, PROMPT[:60])[-1], expected) < IN_8_BITS


def test_what_was_asked_for_is_the_most_that_is_taken(source, tmp_path):
    matrices = quantize(source, tmp_path / "made", Format("gptq", 8, 32))

    def exact(name):
        export.make(tmp_path / "made", tmp_path / name, options=ExportOptions(name))
        errors = bundles.load(tmp_path / name).target.quantization_error
        return {key for key, error in errors.items() if error == 0}

    assert exact("int8") == matrices.keys()
    assert exact("int4-small") == exact("fp32") == set()
    # Values get more bits, and where these are 8, they are those of the file.
    assert {name.split(".")[-2] for name in exact("int4")} == {"v_proj"}


def test_four_bits_stay_four_bits(source, tmp_path):
    matrices, bundle = made(source, tmp_path, Format("gptq", 4, 32), precision="int4")
    assert bundle.target.precision == bundles.Precision("int4", "int6", "fp16", 32)
    found = formats(bundle)
    assert {found[name] for name in matrices} == {"q4_0"}
    assert {bundle.target.quantization_error[name] for name in matrices} == {0}


def test_act_order_and_fp8_are_rounded_to_eight_bits(source, tmp_path):
    for number, form in enumerate(
        (Format("gptq", 4, 32, order="scattered"), Format("fp8", 0, 48, kind="block"))
    ):
        matrices, bundle = made(source, tmp_path / str(number), form)
        assert set(formats(bundle).values()) == {"q8_0"}
        errors = [bundle.target.quantization_error[name] for name in matrices]
        assert 0 < max(errors) < 0.01


def test_a_draft_gets_the_fewest_bits(source, tmp_path):
    matrices = quantize(source, tmp_path / "made", Format("gptq", 4, 32, symmetric=False))
    export.make(tmp_path / "made", tmp_path / "bundle", tmp_path / "made")
    bundle = bundles.load(tmp_path / "bundle")
    assert bundle.target.precision.weights == "int8"
    assert bundle.draft.precision.weights == bundle.draft.precision.lm_head == "int4"
    for role in ("target", "draft"):
        assert {formats(bundle, role)[name] for name in matrices} == {"q4_z"}


def test_the_precision_of_a_source_that_has_none(source, tmp_path):
    with pytest.raises(InputError, match=r"'source', but .* is not quantized: use one of int4,"):
        export.make(source, tmp_path / "bundle", options=ExportOptions("source"))
    export.make(source, tmp_path / "bundle")
    assert bundles.load(tmp_path / "bundle").target.precision.weights == "int4"


def test_calibration_rounds_nothing_again(source, tmp_path):
    matrices = quantize(source, tmp_path / "made", Format("gptq", 8, 32))
    texts = np.random.default_rng(1).integers(331, size=(2, 24)).tolist()
    loaded = load_checkpoint(tmp_path / "made")
    kept = {name for name in matrices if "mlp" in name or "o_proj" in name}
    with RoundedMatrices(tmp_path, dict.fromkeys(matrices.keys() - kept, "q4_0")) as rounded:
        seen = calibrate(loaded, Texts(texts[:1], texts[1:2]), rounded, opener())
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
        export.make(tmp_path / "made", tmp_path / "bundle")


def test_zero_points_in_the_middle_are_not_stored(source, tmp_path):
    form = Format("gptq", 4, 32, kind="gptq")
    matrices = quantize(source, tmp_path / "made", Format("gptq", 4, 32))
    settings = json.loads((tmp_path / "made/config.json").read_text())
    settings["quantization_config"] = config(form)
    (tmp_path / "made/config.json").write_text(json.dumps(settings))
    export.make(tmp_path / "made", tmp_path / "bundle")
    found = formats(bundles.load(tmp_path / "bundle"))
    assert {found[name] for name in matrices} == {"q4_0"}


def test_what_a_user_is_told(source, tmp_path, capsys):
    quantize(source, tmp_path / "made", Format("gptq", 4, 32, symmetric=False))
    command = ["export", str(tmp_path / "made"), "-o", str(tmp_path / "bundle")]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "target: gptq checkpoint, 14 matrices kept exactly in 4 bits, 2 rounded with a" in told
    assert bundles.load(tmp_path / "bundle").manifest.provenance["target format"] == "gptq"


# Vocabularies


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("encoding", ["Q4_0", "Q8_0"])
def test_vocabularies_are_kept_too(encoding, tied, saved_checkpoint, tmp_path):
    source = saved_checkpoint("qwen2", tie_word_embeddings=tied)
    write_gguf(source, tmp_path / "file.gguf", encoding)
    export.make(tmp_path / "file.gguf", tmp_path / "bundle")
    bundle = bundles.load(tmp_path / "bundle")
    held = load_checkpoint(tmp_path / "file.gguf")
    for name in {EMBEDDING if tied else HEAD, EMBEDDING}:
        found = stored_in(bundle)[name]
        assert found.format == encoding.lower()
        assert np.array_equal(found.values, held.tensors.read(name))


# The format


class One:
    """A source of one matrix in blocks."""

    def __init__(self, rows, blocks):
        self.rows = rows
        self.held = blocks

    def blocks(self, name):
        return self.held

    def encoding(self, name):
        return None

    def shape(self, name):
        return self.rows.levels.shape

    def place(self, name):
        return "file"

    def read_blocks(self, name, start, stop):
        zeros = None if self.rows.zeros is None else self.rows.zeros[start:stop]
        return BlockRows(self.rows.levels[start:stop], self.rows.scales[start:stop], zeros)


@st.composite
def matrices(draw):
    bits = draw(st.integers(2, 8))
    size = draw(st.sampled_from([16, 32, 48, 64, 128, 160, 256, 20]))
    width = draw(st.sampled_from([16, 48, 64, 96, 160, 256, 320]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    count = -(-width // size)
    scales = rng.standard_normal((3, count)).astype(np.float32)
    if draw(st.booleans()):
        scales = scales.astype(np.float16).astype(np.float32)
    zeros = rng.integers(0, 2**bits, (3, count)).astype(np.uint8) if draw(st.booleans()) else None
    levels = rng.integers(0, 2**bits, (3, width)).astype(np.uint8)
    return BlockRows(levels, scales, zeros), Blocks(bits, size)


class Memory:
    """A file of tiles in memory."""

    def __init__(self):
        self.parts = []

    def begin(self, nbytes):
        return 0

    def write(self, array):
        self.parts.append(array)


@settings(max_examples=100, deadline=None)
@given(matrices())
def test_every_format_holds_its_rows_exactly(made):
    rows, blocks = made
    source = One(rows, blocks)
    width = rows.levels.shape[1]
    form = blocks_format(source, "m", 8)
    if form is None:
        halves = np.array_equal(rows.scales, rows.scales.astype(np.float16))
        assert not halves or (blocks.size % 32 and blocks.size < width)
        return
    assert form[1] == ("4" if blocks.bits <= 4 else "8")
    assert blocks_format(source, "m", int(form[1]) - 1) is None
    file = Memory()
    storage = Storage(bundles.Precision("int8", "int8", "fp32", 32), frozenset(), {"m": form})
    TileWeights(file, source, storage, lambda _: None).matrix("m")
    found = tile_weights(form, np.concatenate(file.parts), 3, width)
    assert np.array_equal(found, values_of(rows, blocks))
