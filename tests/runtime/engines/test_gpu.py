"""Stages on GPUs: the same text, a cache that stays there, and no node left to the CPU."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from caches import CAPACITY, GROUPS, LONG, STAGE, followed, operations
from gpus import CPU
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper
from pairs import SHORT_PROMPT
from parity import distance, load, made, tree_rows

from edgespec import LLM, bundle
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.costs import profiles
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.shapes import capacity_bucket

pytestmark = pytest.mark.slow

GREEDY = {"max_new_tokens": 16}
SAMPLED = {"max_new_tokens": 12, "temperature": 0.7, "seed": 5}


@pytest.fixture(scope="module")
def plain(pairs):
    """Texts of the target alone, on the CPU."""
    llm = pairs.llm("llama", CPU, "none")
    return [llm.generate(SHORT_PROMPT, **options).tokens for options in (GREEDY, SAMPLED)]


# Texts


@pytest.mark.parametrize("roles", ["draft", "target", "both"])
def test_the_text_is_the_same_whatever_runs_on_the_gpu(pairs, plain, gpu, roles):
    devices = {"device": gpu if roles != "draft" else CPU}
    devices["draft_device"] = gpu if roles != "target" else CPU
    llm = pairs.llm("llama", CPU, "model", **devices)
    for options, wanted in zip((GREEDY, SAMPLED), plain, strict=True):
        result = llm.generate(SHORT_PROMPT, **options)
        assert result.tokens == wanted
        assert result.engine == devices["device"]
        assert result.mean_accepted_length > 1.5  # the draft is of use, so its cache is right


def test_a_text_goes_on_where_the_cache_has_to_grow(pairs, gpu):
    tokens = np.random.default_rng(0).integers(1, 331, 250).tolist()
    wanted = pairs.llm("llama", CPU, "none").generate(tokens, **GREEDY).tokens
    llm = pairs.llm("llama", CPU, "model", device=gpu, draft_device=gpu)
    assert llm.generate(tokens, **GREEDY).tokens == wanted


@pytest.mark.parametrize("place", ["0={cpu},1={gpu}", "0={gpu},1={cpu}"])
def test_stages_on_a_gpu_and_the_cpu_give_the_same_text(pairs, plain, cli, gpu, place):
    place = place.format(cpu=CPU, gpu=gpu)
    words = ["--place", place, "--draft-device", CPU, "--draft", "model", "--threads", 1]
    found = cli("run", pairs.pair("cut").path, SHORT_PROMPT, "-n", 16, "--json", *words)
    assert found.code == 0
    result = json.loads(found.out)
    assert result["tokens"] == plain[0]
    assert gpu in result["engine"].split("+")


def test_costs_on_a_gpu_are_measured_in_a_process_of_its_own(pairs, plain, gpu):
    path = pairs.pair("llama").path
    llm = LLM(path, device=CPU, draft_device=gpu, threads=1)
    assert llm.generate(SHORT_PROMPT, **GREEDY).tokens == plain[0]
    profile = profiles.recall(bundle.load(path), DRAFT, (engine(gpu),), 1)
    assert profile == llm._loaded[DRAFT].profile
    assert profile.curve().seconds(1, 256) > 0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    made(folder, "qwen3", tie_word_embeddings=True)
    return folder


# Of the logits' size. Integer weights: activations are rounded to 8 bits, in other places than on
# the CPU; 0.02 to 0.03 was seen.
CLOSE = {"fp32": 1e-5, "int4": 0.06, "int8": 0.06}


@pytest.mark.parametrize("precision", CLOSE)
def test_a_pass_computes_what_the_cpu_does(checkpoint, tmp_path, gpu, precision):
    export_bundle(checkpoint, tmp_path / "bundle", options=ExportOptions(precision))
    opened = bundle.load(tmp_path / "bundle")
    logits = []
    for device in (CPU, gpu):
        runner = load(opened, device)
        runner.prefill(range(1, 20))
        found = [runner.verify(tree_rows())["logits"][:7].copy()]
        runner.commit([0, 2, 6])  # rows that move past others
        found.append(runner.prefill([7, 8])["logits"].copy())
        logits.append(np.vstack(found))
    assert distance(logits[1], logits[0]) < CLOSE[precision]


# The cache


def test_the_cache_on_the_device_is_an_array_of_rows(onnx_gpu):
    """Rows that nobody writes stay as they are, bit by bit."""
    from edgespec.runtime.engines.gpu.device_cache import CacheGraphs, DeviceCache
    from edgespec.runtime.engines.gpu.device_rows import TextRows

    # GPUs read no caches in 8 bits.
    both = replace(STAGE, cache_groups=(GROUPS[0], replace(GROUPS[1], dtype="float32")))

    def uploaded(array):
        return TextRows(onnx_gpu.placed(array))

    def check(stage, capacity, growth):
        graphs = CacheGraphs(onnx_gpu, stage)

        @given(operations(capacity, growth))
        @settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
        def run(steps):
            cache = DeviceCache.alone(graphs, capacity)
            for expected in followed(cache, stage, steps, uploaded, capacity):
                assert cache.values.keys() == expected.keys()
                for name, value in cache.values.items():
                    np.testing.assert_array_equal(value.numpy(), expected[name])

        run()

    check(STAGE, CAPACITY, 9)
    check(both, LONG, 100)


def test_rows_are_written_in_place(onnx_gpu):
    """The cache's tensors stay the same ones until it grows; so do keys and values of a call."""
    from edgespec.runtime.engines.gpu.device_cache import CacheGraphs, DeviceCache
    from edgespec.runtime.engines.gpu.device_rows import TextRows

    cache = DeviceCache.alone(CacheGraphs(onnx_gpu, STAGE), CAPACITY)
    before, tensors = cache.values, list(cache.values.values())
    cache.write([TextRows(onnx_gpu.zeros((2, 2, 3, 8, 4), "float32"))], [0, 1], 0)
    cache.move([3], 1)
    assert cache.values is before
    assert all(each is other for each, other in zip(before.values(), tensors, strict=True))
    cache.grow(8)
    assert cache.values is not before


def test_rows_go_to_the_host_and_back(onnx_gpu):
    from edgespec.runtime.engines.gpu.device_cache import CacheGraphs, DeviceCache

    graphs, rng = CacheGraphs(onnx_gpu, STAGE), np.random.default_rng(0)
    rows = rng.standard_normal((2, 2, 3, 5, 4)).astype(np.float32)
    one, other = (DeviceCache.alone(graphs, CAPACITY) for _ in range(2))
    one.load([rows], 5)
    np.testing.assert_array_equal(one.read(5), [rows])
    other.load(one.read(3), 3)
    np.testing.assert_array_equal(other.read(3), [rows[:, :, :, :3]])
    [whole] = other.read(CAPACITY)
    assert not whole[:, :, :, 3:].any()
    assert one.bytes_at(5) == rows.nbytes


def test_a_stage_without_attention_has_an_empty_cache(onnx_gpu):
    from edgespec.runtime.engines.gpu.device_cache import CacheGraphs, DeviceCache

    stage = replace(STAGE, cache_groups=())
    cache = DeviceCache.alone(CacheGraphs(onnx_gpu, stage), CAPACITY)
    cache.write([], [0], 0)
    cache.move([1], 0)
    cache.grow(9)
    cache.load(cache.read(2), 2)
    assert (cache.values, cache.capacity, cache.bytes_at(9)) == ({}, 9, 0)


def test_keys_and_values_of_a_call_stay_on_the_device(pairs, onnx_gpu):
    model = Model.load(bundle.load(pairs.pair("llama").path), TARGET, onnx_gpu, 1)
    [executable] = model.executables
    feeds = model.feeds(1, capacity_bucket(1), 1).stages[0]
    outputs = executable.run(feeds, executable.new_cache(capacity_bucket(1), 0))
    assert isinstance(outputs.results["logits"], np.ndarray)
    [new_kv] = outputs.new_kv
    assert new_kv.device_name() == onnx_gpu.kind


# Nothing is left to the CPU


def test_all_nodes_of_a_model_run_on_the_gpu(pairs, onnx_gpu):
    opened = bundle.load(pairs.pair("llama").path)
    for role in (TARGET, DRAFT):
        [executable] = Model.load(opened, role, onnx_gpu, 1, texts=False).executables
        parts = executable.session.get_provider_graph_assignment_info()
        assert {part.ep_name for part in parts} == {onnx_gpu.provider}
        assert sum(len(part.get_nodes()) for part in parts) > 50


def test_nodes_that_would_run_on_the_cpu_are_named(onnx_gpu, tmp_path):
    matrix = helper.make_tensor_value_info("matrix", TensorProto.FLOAT, [4, 4])
    number = helper.make_tensor_value_info("number", TensorProto.FLOAT, [])
    node = helper.make_node("Det", ["matrix"], ["number"], name="the_determinant")
    graph = helper.make_graph([node], "graph", [matrix], [number])
    opsets = [helper.make_opsetid("", 21)]
    path = tmp_path / "stage.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )
    stage = replace(STAGE, graph=path, cache_groups=())
    with pytest.raises(DeviceError, match=r"would leave the_determinant \(Det\) to the CPU"):
        onnx_gpu.compile(stage, 1)


@pytest.mark.parametrize("place", ["draft_device", "device"])
def test_a_head_and_its_target_on_two_devices(pairs, gpu, place):
    """The features go from the target's device to the head's by the host."""
    at = {"device": CPU, "draft_device": CPU, place: gpu, "threads": 1}
    llm = LLM(pairs.pair("head").path, draft="head", **at)
    drafted = llm.generate(SHORT_PROMPT, **GREEDY)
    plain = LLM(pairs.pair("head").path, draft="none", **at).generate(SHORT_PROMPT, **GREEDY)
    assert drafted.tokens == plain.tokens
    assert drafted.drafted > 0
    assert drafted.draft_engine == at["draft_device"]


def test_what_a_device_cannot_compute_is_known_when_it_is_loaded(pairs, onnx_gpu):
    """SwiftShader has no 16-bit floats, which shows at the first call only."""
    refusal = None
    try:
        Model.load(bundle.load(pairs.pair("half").path), TARGET, onnx_gpu, 1)
    except DeviceError as error:
        refusal = str(error)
    if refusal is None:
        wanted = pairs.llm("half", CPU, "none").generate(SHORT_PROMPT, **GREEDY).tokens
        on_gpu = pairs.llm("half", CPU, "none", device=onnx_gpu.name)
        assert on_gpu.generate(SHORT_PROMPT, **GREEDY).tokens == wanted
    else:
        assert "requires f16" in refusal
        assert len(refusal.splitlines()) == 1
