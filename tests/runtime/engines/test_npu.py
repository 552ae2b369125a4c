"""Variants of a role for NPUs: what a bundle holds of them, and who takes them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import onnx
import pytest
from checkpoints import edit_json
from commandline import fails
from exports import content
from npus import NpuOnCpu
from parity import distance, load, tree_logits

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, MANIFEST, NPU, TARGET, Compiled, Precision
from edgespec.bundle.caches import CacheGroup
from edgespec.cli.commands import export
from edgespec.errors import BundleError, DeviceError, InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.engines import engine
from edgespec.runtime.engines.base import StageSizes
from edgespec.runtime.engines.npu.shared import npu_footprint, weight_count
from edgespec.runtime.engines.npu.socs import SOCS, soc_of
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import stage_file
from edgespec.runtime.shapes import ANY_SHAPES, NPU_SHAPES
from edgespec.tuning.precompiling import precompile
from edgespec.tuning.quantizing import quantize_variant

CPU = "onnxruntime:cpu"


@pytest.fixture(scope="module")
def checkpoint(saved_checkpoint):
    return saved_checkpoint("llama")


@pytest.fixture(scope="module")
def with_variant(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "npu"
    options = ExportOptions(npu_precision="fp16", kv_precision="fp16", cut_layers=(1,))
    export_bundle(checkpoint, path, options=options)
    return bundles.load(path)


@pytest.fixture(scope="module")
def without(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "plain"
    options = ExportOptions(kv_precision="fp16", cut_layers=(1,))
    export_bundle(checkpoint, path, options=options)
    return bundles.load(path)


# What a bundle holds


def test_a_variant_has_files_of_its_own_and_the_roles_cuts(with_variant):
    [variant] = with_variant.manifest.variants
    assert (variant.role, variant.name) == (TARGET, NPU)
    assert with_variant.variant(TARGET, NPU) is variant
    assert with_variant.variant(DRAFT, NPU) is with_variant.variant(TARGET, "other") is None
    assert variant.precision == Precision("fp16", "fp16", "fp32", 0)
    role = with_variant.target
    assert [(s.start, s.stop) for s in variant.stages] == [(s.start, s.stop) for s in role.stages]
    own = {file for stage in role.stages for file in (stage.graph, stage.data)}
    assert not own & {file for stage in variant.stages for file in (stage.graph, stage.data)}
    for stage in variant.stages:
        model = onnx.load(str(with_variant.path / stage.graph), load_external_data=False)
        assert {node.domain for node in model.graph.node} == {""}


def test_all_else_is_as_in_a_bundle_without(with_variant, without):
    assert "variants" not in json.loads((without.path / MANIFEST).read_text())
    assert without.manifest.variants == ()
    same = replace(with_variant.manifest, variants=(), files=without.manifest.files)
    assert same == without.manifest
    for name, entry in without.manifest.files.items():
        assert with_variant.manifest.files[name] == entry


def test_weights_that_suit_an_npu_are_not_stored_twice(checkpoint, tmp_path):
    export_bundle(
        checkpoint, tmp_path / "half", options=ExportOptions("fp16", npu_precision="fp16")
    )
    opened = bundles.load(tmp_path / "half")
    [variant] = opened.manifest.variants
    for own, used in zip(variant.stages, opened.target.stages, strict=True):
        assert own.graph != used.graph  # attention differs
        assert not own.ordered
        assert (own.data, own.start, own.stop) == (used.data, used.start, used.stop)
    assert len([name for name in opened.manifest.files if name.endswith(".data")]) == 1


def test_a_variant_that_is_cut_elsewhere_is_refused(with_variant, tmp_path):
    manifest = with_variant.manifest
    [variant] = manifest.variants
    wrong = replace(variant, stages=variant.stages[:1])
    for name, file in ((file.name, file) for file in with_variant.path.iterdir()):
        (tmp_path / name).write_bytes(file.read_bytes())
    bundles.save_manifest(tmp_path, replace(manifest, variants=(wrong,)))
    with pytest.raises(BundleError, match="the stages of 'target' and its variant 'npu' differ"):
        bundles.load(tmp_path)
    bundles.save_manifest(tmp_path, replace(manifest, variants=(replace(variant, role="judge"),)))
    with pytest.raises(BundleError, match="'judge' and its variant 'npu'"):
        bundles.load(tmp_path)


def test_what_has_no_plain_weights_is_not_quantized(with_variant, without):
    for opened in (with_variant, without):
        with pytest.raises(InputError, match=r"no plain weights for NPUs: export it with --npu"):
            quantize_variant(opened.path, "w8a16")


def test_a_manifest_says_no_more_than_it_knows(with_variant, tmp_path):
    for file in with_variant.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    variants = json.loads((tmp_path / MANIFEST).read_text())["variants"]
    edit_json(tmp_path / MANIFEST, variants=[{**variants[0], "speed": 3}])
    with pytest.raises(BundleError, match=r"manifest\.variants\[0\]\.speed: unknown field"):
        bundles.load(tmp_path)


# Who takes it


def test_who_needs_no_variant_gets_the_role(with_variant):
    for number in range(2):
        stage = stage_file(with_variant, TARGET, number, engine(CPU))
        assert stage.graph.name == f"target-texts-{number}.onnx"
        assert {group.dtype for group in stage.cache_groups} == {"float16"}


def test_an_npu_gets_the_variant(with_variant):
    stage = stage_file(with_variant, TARGET, 1, NpuOnCpu())
    assert stage.graph.name == "target-npu-1.onnx"
    assert {group.dtype for group in stage.cache_groups} == {"float32"}
    assert (stage.block_size, stage.compiled) == (0, ())


def test_an_npu_takes_a_role_of_plain_weights_and_no_other(checkpoint, without, tmp_path):
    with pytest.raises(DeviceError, match=r"has int4 weights and no variant .* --npu-precision"):
        stage_file(without, TARGET, 0, NpuOnCpu())
    export_bundle(checkpoint, tmp_path / "plain", options=ExportOptions("fp32"))
    stage = stage_file(bundles.load(tmp_path / "plain"), TARGET, 0, NpuOnCpu())
    assert stage.graph.name == "target.onnx"


def test_stages_of_a_variant_work_beside_those_of_the_role(checkpoint, with_variant, tmp_path):
    """Half-precision weights against those of four bits: the whole model in fp32 is between."""
    export_bundle(checkpoint, tmp_path / "whole", options=ExportOptions("fp32"))
    wanted = tree_logits(load(bundles.load(tmp_path / "whole"), CPU))
    npu, cpu = NpuOnCpu(), engine(CPU)
    off = [
        distance(tree_logits(Runner(Model.load(with_variant, TARGET, engines, 1))), wanted)
        for engines in ((npu, npu), (npu, cpu), (cpu, cpu))
    ]
    assert off[0] < 1e-2 < off[1] < off[2] < 0.5


def test_what_half_precision_cannot_hold_hides_no_row(with_variant):
    engines = (NpuOnCpu(), engine(CPU))
    assert Model.load(with_variant, TARGET, engines, 1).role.bias_off == -3e4
    assert Model.load(with_variant, TARGET, engine(CPU), 1).role.bias_off == -1e9


# What is compiled ahead of time


def with_compiled(opened, **changes):
    """The bundle as if its second stage had been compiled for an NPU."""
    [variant] = opened.manifest.variants
    stage = variant.stages[1]
    source = tuple(opened.manifest.files[name].sha256 for name in (stage.graph, stage.data))
    facts = {"device": "qnn:x-elite", "compiler": "onnxruntime-qnn 0", "stage": 1, "rows": 8,
             "capacity": 64, "graph": "compiled.onnx", "data": (), "source": source}  # fmt: skip
    compiled = (Compiled(**facts | changes),)
    variants = (replace(variant, compiled=compiled),)
    return replace(opened, manifest=replace(opened.manifest, variants=variants))


def test_an_engine_is_told_what_is_compiled_of_a_stage(with_variant):
    opened = with_compiled(with_variant)
    assert stage_file(opened, TARGET, 0, NpuOnCpu()).compiled == ()
    [compiled] = stage_file(opened, TARGET, 1, NpuOnCpu()).compiled
    assert (compiled.device, compiled.shape) == ("qnn:x-elite", (8, 64))
    assert compiled.graph == with_variant.path / "compiled.onnx"


def test_what_was_compiled_from_another_stage_is_left_out_with_a_word(with_variant, caplog):
    opened = with_compiled(with_variant, source=("", ""))
    with caplog.at_level(logging.WARNING, "edgespec"):
        assert stage_file(opened, TARGET, 1, NpuOnCpu()).compiled == ()
    [record] = caplog.records
    assert "compiled.onnx was compiled from another target-npu-1.onnx: compiling anew" in (
        record.getMessage()
    )


def test_compiled_files_must_be_listed_and_so_checked(with_variant, tmp_path):
    for file in with_variant.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    bundles.save_manifest(tmp_path, with_compiled(with_variant).manifest)
    with pytest.raises(BundleError, match=r"'compiled\.onnx' is used but not listed"):
        bundles.load(tmp_path)


def test_a_compiler_that_refuses_costs_no_bundle(cli, checkpoint, tmp_path, monkeypatch):
    def refuse(path, *_):
        assert bundles.load(path).variant(TARGET, NPU) is not None
        raise DeviceError("it does not fit")

    monkeypatch.setattr(export, "compiler", lambda device: None)
    monkeypatch.setattr(export, "precompile", refuse)
    words = ["export", checkpoint, "-o", tmp_path / "bundle", "--compile-for", "qnn:x-elite"]
    fails(cli(*words), "it does not fit")
    assert list(tmp_path.iterdir()) == []
    export_bundle(checkpoint, tmp_path / "bundle")
    before = content(tmp_path)
    fails(cli(*words, "--overwrite"), "it does not fit")
    assert content(tmp_path) == before


# Systems on a chip


def test_every_known_soc_says_where_its_numbers_are_from():
    assert "x-elite" in SOCS
    for name, soc in SOCS.items():
        assert soc_of(f"qnn:{name}") is soc
        assert (soc.device, soc.arch >= 68, soc.model > 0) == (f"qnn:{name}", True, True)
        assert soc.source
    assert len({soc.model for soc in SOCS.values()}) == len(SOCS)


@pytest.mark.parametrize("device", ["qnn:z80", "qnn", "openvino:npu", "x-elite"])
def test_a_soc_that_is_not_known(device, with_variant, cli, tmp_path):
    with pytest.raises(InputError, match=r"not a device to compile for: use one of qnn:x-elite"):
        precompile(with_variant.path, device)
    words = ["export", "nowhere", "-o", tmp_path / "bundle", "--compile-for", device]
    fails(cli(*words), "not a device to compile for")


def test_shapes_to_compile_for_are_fixed(with_variant, cli):
    with pytest.raises(InputError, match="shapes must be fixed"):
        precompile(with_variant.path, "qnn:x-elite", ANY_SHAPES)
    fails(cli("export", "a", "-o", "b", "--compile-shapes", "8"), "shapes '8': give rows and")


# Memory


def sizes(**changes):
    stage = StageSizes(
        matmul_bytes=1 << 20, embedding_bytes=0, file_bytes=1 << 20, tied=False, precision="fp16",
        block_size=0, scale_bytes=4, cache_groups=(CacheGroup((0, 1), 1, 24),), hidden=64,
        intermediate=160, heads=4, vocab=331, result_bytes=4 * 331, passed_bytes=0,
    )  # fmt: skip
    return replace(stage, **changes)


def test_each_shape_has_weights_of_its_own():
    need = npu_footprint(sizes(), NPU_SHAPES)
    assert (need.weights, need.repacked) == (1 << 20, 1 << 20)
    wide = npu_footprint(sizes(precision="fp32"), NPU_SHAPES)
    assert wide.weights == 1 << 19


@pytest.mark.parametrize(("precision", "block", "scale", "nbytes"), [
    ("int4", 32, 2, 18), ("int4", 32, 4, 20), ("int4", 128, 2, 66), ("int8", 32, 2, 34),
    ("int8", 32, 4, 36), ("fp16", 0, 2, 2), ("fp32", 0, 2, 4),
])  # fmt: skip
def test_weights_are_counted_whatever_they_are_stored_as(precision, block, scale, nbytes):
    stage = sizes(precision=precision, block_size=block, scale_bytes=scale)
    assert weight_count(stage, 1000 * nbytes) == 1000 * (block or 1)
