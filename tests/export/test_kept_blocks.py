"""Matrices that are stored in the quantized blocks of the checkpoint's file, exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoints import edit_json
from parity import HEAD, PROMPT, SAME, devices, distance, float_activations, load
from quantized import IN_8_BITS, Format, config, quantize, stored

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.cli import main
from edgespec.errors import CheckpointError, InputError
from edgespec.export import ExportOptions, RoundedMatrices, Texts, calibrate, export_bundle
from edgespec.models import load_checkpoint
from edgespec.runtime.execution.exactness import measure
from edgespec.tuning.calibrating import opener

PACK = {"kind": "pack-quantized"}
FORMATS = {
    "gptq": Format("gptq", 4, 32),
    "gptq-asymmetric": Format("gptq", 4, 16, symmetric=False),
    "gptq-8-bits-asymmetric": Format("gptq", 8, 32, symmetric=False),
    "awq-whole-rows": Format("awq", 4, None, symmetric=False),
    "packed-wide-scales": Format("compressed-tensors", 4, 32, half=False, **PACK),
    "int8": Format("compressed-tensors", 8, None, kind="int-quantized"),
}


def made(source, folder, form, **options):
    """Exports a quantized checkpoint; returns its matrices and the bundle."""
    matrices = quantize(source, folder / "made", form, folder / "plain")
    export_bundle(folder / "made", folder / "bundle", options=ExportOptions(**options))
    return matrices, bundles.load(folder / "bundle")


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
    texts = np.random.default_rng(1).integers(331, size=(2, 24)).tolist()
    loaded = load_checkpoint(tmp_path / "made")
    kept = {name for name in matrices if "mlp" in name or "o_proj" in name}
    with RoundedMatrices(tmp_path, kept) as rounded:
        seen = calibrate(loaded, Texts(texts[:1], texts[1:2]), 32, rounded, opener())
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


def test_zero_points_in_the_middle_are_not_stored(source, tmp_path):
    quantize(source, tmp_path / "made", Format("gptq", 4, 32))
    edit_json(
        tmp_path / "made" / "config.json",
        quantization_config=config(Format("gptq", 4, 32, kind="gptq")),
    )
    export_bundle(tmp_path / "made", tmp_path / "bundle")
    kept = bundles.load(tmp_path / "bundle").target.precision.kept
    assert [each.zero_points for each in kept] == [False]


def test_what_a_user_is_told(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    quantize(source, tmp_path / "made", Format("gptq", 4, 32, symmetric=False))
    command = ["export", str(tmp_path / "made"), "-o", str(tmp_path / "bundle")]
    assert main([*command, "--no-calibration"]) == 0
    told = capsys.readouterr().out
    assert "target: gptq checkpoint, 14 matrices kept exactly in 4 bits, 2 rounded with a" in told
    assert main(["inspect", str(tmp_path / "bundle")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    # Where rows have an odd number of blocks, these are halved.
    assert "of layers in int4, blocks of 32 with zero points" in told
    assert "of layers in int4, blocks of 16 with zero points" in told
    assert "target format gptq" in told
    assert main(["inspect", str(tmp_path / "bundle"), "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["roles"]["target"]["precision"]["kept"]
    assert sum(len(each["names"]) for each in kept) == 14


@devices
def test_a_text_with_drafts_is_that_without(source, device, tmp_path):
    quantize(source, tmp_path / "made", Format("gptq", 4, 32, symmetric=False))
    export_bundle(tmp_path / "made", tmp_path / "bundle", tmp_path / "made")
    texts = []
    for draft in ("none", "model"):
        with LLM(tmp_path / "bundle", device=device, draft=draft) as llm:
            texts.append(llm.generate("def f(", max_new_tokens=24))
    assert texts[0].tokens == texts[1].tokens
    assert all(text.exact for text in texts)
