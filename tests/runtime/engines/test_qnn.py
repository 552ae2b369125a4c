"""A small stage by Qualcomm's compiler for their NPU, and what it makes, emulated."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest
from commandline import fails
from npus import NpuOnCpu
from onnx import TensorProto, helper
from pairs import SHORT_PROMPT
from parity import distance, load, made, tree_logits

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import stage_file
from edgespec.runtime.shapes import Shapes
from edgespec.tuning.precompiling import precompile

pytestmark = pytest.mark.slow

CPU = "onnxruntime:cpu"
SHAPES = "8x64"
EMULATED = f"qnn:emulated#{SHAPES}"


@pytest.fixture(scope="module")
def emulated():
    try:
        return engine(EMULATED)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def exported(emulated, tmp_path_factory):
    """Two layers of random weights, in fp32 and for NPUs."""
    folder = tmp_path_factory.mktemp("qnn")
    made(folder / "checkpoint", "llama")
    options = ExportOptions("fp32", npu_precision="fp16")
    export_bundle(folder / "checkpoint", folder / "bundle", folder / "checkpoint", options)
    return folder / "bundle"


@pytest.fixture(scope="module")
def cut(exported, tmp_path_factory):
    """A stage for each layer."""
    path, source = tmp_path_factory.mktemp("cut") / "bundle", exported.parent / "checkpoint"
    options = ExportOptions("fp32", npu_precision="fp16", cut_layers=(1,))
    export_bundle(source, path, source, options)
    return path


@pytest.fixture(scope="module")
def compiled(exported, tmp_path_factory):
    """The same, compiled ahead of time."""
    path = shutil.copytree(exported, tmp_path_factory.mktemp("compiled") / "bundle")
    precompile(path, "qnn:x-elite", Shapes.parse(SHAPES))
    return path


@pytest.fixture(scope="module")
def logits(exported):
    """As the emulated NPU computes them from what it compiles itself."""
    return _logits(load(bundles.load(exported), EMULATED))


def _logits(runner):
    found = tree_logits(runner)
    runner.commit([0, 2, 6])
    return np.vstack([found, runner.prefill([7, 8])["logits"]])


def test_it_computes_what_the_cpu_does(exported, logits):
    wanted = _logits(load(bundles.load(exported), CPU))
    assert distance(logits, wanted) < 1e-2
    assert logits.argmax(-1).tolist() == wanted.argmax(-1).tolist()


def test_nothing_is_left_to_the_cpu(cli, exported):
    facts = cli("inspect", exported, "--device", EMULATED, "--json")
    assert facts.code == 0
    [stage] = json.loads(facts.out)["assignment"]
    assert stage["stage"] == "target-npu.onnx"
    assert stage["elsewhere"] == []
    assert sum(stage["here"].values()) > 30
    shown = cli("inspect", exported, "--device", EMULATED).out
    assert "left to the CPU" in shown


def test_the_text_is_that_of_plain_decoding(exported, caplog):
    options = {"device": EMULATED, "draft_device": CPU, "threads": 1}
    with caplog.at_level(logging.WARNING, "edgespec"):
        plain = LLM(exported, draft="none", **options)
    assert "slow" in plain._loaded[TARGET].engines[0].hardware
    wanted = plain.generate(SHORT_PROMPT, max_new_tokens=12)
    found = LLM(exported, draft="lookup", **options).generate(SHORT_PROMPT, max_new_tokens=12)
    assert found.tokens == wanted.tokens
    assert found.engine == EMULATED


@pytest.mark.parametrize("pipeline", ["serial", "overlap"])
def test_drafts_on_the_cpu_make_no_difference(exported, pipeline):
    """The draft is the target in fp32, whose first guesses are mostly the target's own."""
    options = {"device": EMULATED, "draft_device": CPU, "threads": 1}
    wanted = LLM(exported, draft="none", **options).generate(SHORT_PROMPT, max_new_tokens=24)
    drafting = LLM(exported, draft="model", pipeline=pipeline, **options)
    found = drafting.generate(SHORT_PROMPT, max_new_tokens=24)
    assert found.tokens == wanted.tokens
    assert (found.engine, found.draft_engine) == (EMULATED, CPU)
    assert found.accepted > 0
    assert (found.begun > 0) == (pipeline == "overlap")


@pytest.mark.parametrize("place", [f"0={EMULATED},1={CPU}", f"0={CPU},1={EMULATED}"])
def test_some_stages_there_and_the_others_on_the_cpu(cut, place):
    options = {"draft_device": CPU, "threads": 1}
    wanted = LLM(cut, draft="none", device=CPU, **options).generate(SHORT_PROMPT, max_new_tokens=12)
    for draft in ("none", "model"):
        found = LLM(cut, draft=draft, place=place, **options)
        assert sorted(each.name for each in found._loaded[TARGET].engines) == [CPU, EMULATED]
        assert found.generate(SHORT_PROMPT, max_new_tokens=12).tokens == wanted.tokens


def test_memory_grows_by_the_second_pair(exported):
    one, two = (
        LLM(exported, draft="none", threads=1, device=f"qnn:emulated#{shapes}").deployment
        for shapes in (SHAPES, "8/32x64")
    )
    assert [each.shape for each in two.shapes] == [(8, 64), (32, 64)]
    assert one.devices[0].repacked == 0
    assert two.devices[0].repacked == two.devices[0].weights == one.devices[0].weights > 0
    assert two.devices[0].total > one.devices[0].total


@pytest.mark.parametrize("precision", ["w8a16", "w4a16"])
def test_integers_run_there_as_well(cli, exported, tmp_path, precision):
    path = tmp_path / "bundle"
    words = ["--precision", "fp32", "--npu-precision", precision]
    assert cli("export", exported.parent / "checkpoint", "-o", path, *words).code == 0
    facts = json.loads(cli("inspect", path, "--device", EMULATED, "--json").out)
    assert facts["assignment"][0]["elsewhere"] == []
    opened = bundles.load(path)
    same = Runner(Model.load(opened, TARGET, NpuOnCpu(), 1))
    assert distance(_logits(load(opened, EMULATED)), _logits(same)) < 0.03


# What cannot run there


@pytest.fixture
def with_determinant(tmp_path, exported):
    """A stage with a node that no NPU computes."""
    matrix = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["S", 8])
    square = helper.make_tensor_value_info("next_hidden", TensorProto.FLOAT, ["S", 8])
    nodes = [
        helper.make_node("Det", ["hidden"], ["number"], name="the_determinant"),
        helper.make_node("Mul", ["hidden", "number"], ["next_hidden"], name="the_product"),
    ]
    graph = helper.make_graph(nodes, "graph", [matrix], [square])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "stage.onnx"
    path.write_bytes(model.SerializeToString())
    stage = stage_file(bundles.load(exported), TARGET, 0, engine(EMULATED))
    return replace(stage, graph=path, cache_groups=())


def test_nodes_that_would_run_on_the_cpu_are_refused_and_named(emulated, with_determinant):
    with pytest.raises(DeviceError, match=r"would leave the_determinant \(Det\).* to the CPU"):
        emulated.compile(with_determinant, 1)
    assert any("Det" in node for node in emulated.assignment(with_determinant).elsewhere)


def test_they_may_run_there_where_that_is_allowed(with_determinant):
    device = engine(f"{EMULATED}#partly")
    assert device.name == f"{EMULATED}#partly"
    device.compile(with_determinant, 1)


# What is compiled ahead of time


def test_it_is_loaded_as_it_is_and_gives_the_same(compiled, logits, monkeypatch):
    from edgespec.runtime.engines.npu import qnn

    monkeypatch.setattr(qnn, "open_fixed", None)
    assert np.array_equal(_logits(load(bundles.load(compiled), EMULATED)), logits)


def test_its_shapes_are_chosen_and_nothing_is_compiled(compiled, monkeypatch):
    from edgespec.runtime.engines.npu import qnn

    monkeypatch.setattr(qnn, "open_fixed", None)
    llm = LLM(compiled, device="qnn:emulated", draft="none", threads=1)
    assert llm.deployment.engines[TARGET] == (EMULATED,)
    assert llm.context_length == 64
    assert [each.ready for each in llm.deployment.shapes] == [True]
    assert llm.generate(SHORT_PROMPT, max_new_tokens=2).engine == EMULATED


def test_a_bundle_with_it_is_as_good_as_before_elsewhere(compiled, exported):
    assert np.array_equal(
        _logits(load(bundles.load(compiled), CPU)), _logits(load(bundles.load(exported), CPU))
    )


def test_it_is_replaced_and_not_gathered(compiled, tmp_path):
    path = shutil.copytree(compiled, tmp_path / "bundle")
    names = {file.name for file in path.iterdir()}
    precompile(path, "qnn:x-elite", Shapes.parse(SHAPES))
    assert len({file.name for file in path.iterdir()}) == len(names)
    [variant] = bundles.load(path).manifest.variants
    assert [each.device for each in variant.compiled] == ["qnn:x-elite"]
    bundles.load(path).verify()


@pytest.mark.parametrize("fault", ["stale", "wrong"])
def test_what_is_of_no_use_is_compiled_anew_with_a_notice(compiled, logits, fault, caplog):
    opened = bundles.load(compiled)
    [variant] = opened.manifest.variants
    [old] = variant.compiled
    graph = {"stale": old.graph, "wrong": "tokenizer.json"}[fault]
    compiler = {"stale": "onnxruntime-qnn 1.0", "wrong": old.compiler}[fault]
    new = replace(variant, compiled=(replace(old, graph=graph, compiler=compiler),))
    opened = replace(opened, manifest=replace(opened.manifest, variants=(new,)))
    with caplog.at_level(logging.WARNING, "edgespec"):
        model = Model.load(opened, TARGET, engine(EMULATED), 1)
    assert np.array_equal(_logits(Runner(model)), logits)
    [notice] = [
        each.getMessage() for each in caplog.records if "cannot be used" in each.getMessage()
    ]
    assert notice.endswith("compiling again")
    why = {"stale": "compiled by onnxruntime-qnn 1.0", "wrong": "the plug-in refused it"}[fault]
    assert why in notice


def test_what_is_compiled_without_a_list_is_what_is_chosen(exported, tmp_path):
    path = shutil.copytree(exported, tmp_path / "bundle")
    precompile(path, "qnn:x-elite")
    opened = bundles.load(path)
    [variant] = opened.manifest.variants
    capacity = opened.target.context_length
    assert [(each.rows, each.capacity) for each in variant.compiled] == [
        (8, capacity), (32, capacity)
    ]  # fmt: skip
    plan = deploy(opened, LoadOptions(device="qnn:emulated", draft="none"))
    assert [each.ready for each in plan.shapes] == [True, True]


def test_export_compiles_for_a_soc_by_name(cli, exported, tmp_path):
    words = ["--compile-for", "qnn:x-elite", "--compile-shapes", SHAPES]
    source = exported.parent / "checkpoint"
    found = cli("export", source, "-o", tmp_path / "bundle", *words)
    assert found.code == 0
    assert "compiled for qnn:x-elite: " in found.out
    opened = bundles.load(tmp_path / "bundle")
    [variant] = opened.manifest.variants
    [each] = variant.compiled
    assert (each.device, each.stage, each.rows, each.capacity) == ("qnn:x-elite", 0, 8, 64)
    assert (variant.precision.weights, opened.target.precision.weights) == ("fp16", "int4")
    assert "qnn:x-elite 8x64" in cli("inspect", tmp_path / "bundle").out


# What is missing


def test_an_npu_that_is_not_here(emulated, cli):
    try:
        engine("qnn:npu")
    except DeviceError:
        fails(cli("run", "x", "--device", "qnn:npu"), "qnn:npu: no Qualcomm NPU was found")
    else:
        pytest.skip("there is one")


def test_nothing_but_json_is_printed(exported, start):
    """Whatever the emulator would like to say."""
    process = start(
        "run", exported, "def", "-n", "2", "--json", "--draft", "none", "--device", EMULATED
    )
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["engine"] == EMULATED
    assert "slow" in err.decode()
