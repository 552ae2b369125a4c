"""Calls over several texts on GPUs: each text stays what it is alone, its cache on the device."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from caches import GROUPS, STAGE, followed, operations
from gpus import CPU
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from sessions import check_cancelling_leaves_others, together
from twins import Twins, joint_bundle, make_round

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.model import Model
from edgespec.runtime.shapes import BORDER

pytestmark = pytest.mark.slow

KINDS = {
    "llama": ("llama", {}, ExportOptions("fp32")),
    "in stages": ("qwen3", {}, ExportOptions("fp32", cut_layers=(1,))),
    "windows": ("gemma3_text", {"sliding_window": 24}, ExportOptions("fp32")),
    "small weights": ("llama", {}, ExportOptions("int4")),
}
PROMPTS = ("def fibonacci(n):\n", "import os\n\nclass Foo:\n", "# quicksort\n")


@pytest.fixture(scope="module")
def models(tmp_path_factory, gpu):
    known = {}

    def model(kind):
        if kind not in known:
            bundle = joint_bundle(tmp_path_factory.mktemp("joint"), *KINDS[kind])
            engines = (engine(gpu),) * len(bundle.target.stages)
            known[kind] = exactness.load(bundle, TARGET, engines, 1)
        return known[kind]

    return model


# Texts


@pytest.mark.parametrize("kind", KINDS)
def test_texts_share_a_pass_and_each_stays_what_it_is(models, kind):
    model = models(kind)
    assert model.joins_texts
    rng, passes = np.random.default_rng(0), JointPasses(model)
    texts = [Twins(model, rng, length) for length in (5, 70, 31)]
    for sizes in ((0, 0, 0), (3, 0, 6), (0, 0, 12), (4, 4, 4)):
        assert make_round(passes, dict(zip(texts, sizes, strict=True))) == [3]


@settings(
    max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(data=st.data())
def test_texts_come_and_go_at_any_round(models, data):
    """Seats become more, caches grow, and texts go on alone from a seat and begin anew in it."""
    model = models("llama")
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    passes, texts = JointPasses(model), []
    for _ in range(data.draw(st.integers(3, 6))):
        if len(texts) < 5 and data.draw(st.integers(0, 3)):
            texts.append(Twins(model, rng, data.draw(st.integers(1, 300))))
        if texts and data.draw(st.integers(0, 3)) == 0:
            over = texts.pop(data.draw(st.integers(0, len(texts) - 1)))
            passes.leave(over.joined)
            kept = data.draw(st.integers(0, over.joined.length))
            for runner in (over.joined, over.alone):
                runner.resume([*runner.tokens[:kept], 1])
                runner.prefill([7, 8, 9])  # where it sits, alone
            texts.append(over)
        asking = [each for each in texts if data.draw(st.integers(0, 5))]
        if asking:
            make_round(passes, {each: data.draw(st.integers(0, 7)) for each in asking})


@pytest.mark.parametrize("draft", ["none", "model"])
def test_texts_of_threads_are_what_they_are_alone(pairs, gpu, draft, monkeypatch):
    """Token for token, in fp32; drafts share calls of their own model, too."""
    shared, together_ = Counter(), JointPasses._together

    def count(passes, table, asked):
        shared[id(passes._model)] += len(asked) > 1
        return together_(passes, table, asked)

    monkeypatch.setattr(JointPasses, "_together", count)
    path = pairs.pair("llama").path
    asked = [
        (prompt, {"max_new_tokens": 12 + 2 * n, "temperature": n % 2, "seed": n})
        for n, prompt in enumerate(PROMPTS)
    ]
    on_cpu = pairs.llm("llama", CPU, "none")
    alone = [on_cpu.generate(prompt, **options).tokens for prompt, options in asked]
    with LLM(path, device=gpu, draft_device=gpu, draft=draft, sessions=3, threads=1) as llm:
        shared.clear()  # those that try whether rows are alike
        assert [each.tokens for each in together(llm, asked)] == alone
        assert shared[id(llm.target)]
        if draft == "model":
            assert shared[id(llm._loaded[DRAFT].model)]


def test_a_target_on_a_gpu_and_the_cpu_joins_texts(pairs, gpu):
    path, greedy = pairs.pair("cut").path, {"max_new_tokens": 10}
    alone = [pairs.llm("cut", CPU, "none").generate(each, **greedy).tokens for each in PROMPTS]
    with LLM(path, place=f"0={CPU},1={gpu}", draft="none", sessions=3, threads=1) as llm:
        assert llm.target.joins_texts
        found = together(llm, [(prompt, greedy) for prompt in PROMPTS])
    assert [each.tokens for each in found] == alone


def test_a_text_that_is_cancelled_leaves_the_others(pairs, gpu):
    on_cpu = pairs.llm("llama", CPU, "none")
    alone = [on_cpu.generate(prompt, max_new_tokens=14).tokens for prompt in PROMPTS]
    path = pairs.pair("llama").path
    with LLM(path, device=gpu, draft="none", sessions=3, threads=1) as llm:
        check_cancelling_leaves_others(llm, PROMPTS, alone, 14)


@pytest.mark.parametrize(("sessions", "joins"), [(1, False), (2, True)])
def test_one_text_at_once_has_the_graph_with_fewer_operators(pairs, gpu, sessions, joins):
    path = pairs.pair("llama").path
    with LLM(path, device=gpu, draft="none", sessions=sessions, threads=1) as llm:
        assert llm.target.joins_texts is joins
        assert llm.target.role.several_texts is joins


def test_texts_go_on_after_a_device_had_no_room_for_more(models, monkeypatch):
    model = models("llama")
    rng, passes = np.random.default_rng(1), JointPasses(model)
    texts = [Twins(model, rng, length) for length in (9, 20)]
    assert make_round(passes, dict.fromkeys(texts, 2)) == [2]
    stages = passes._tables[BORDER]._stages
    monkeypatch.setattr(type(stages[0]), "grow", lambda *_: (_ for _ in ()).throw(MemoryError))
    long = [Twins(model, rng, 300), texts[0]]
    with pytest.raises(DeviceError, match="failed"):
        make_round(passes, dict.fromkeys(long, 0))
    monkeypatch.undo()
    others = [Twins(model, rng, length) for length in (300, 20)]
    assert make_round(passes, dict.fromkeys(others, 1)) == [2]


def test_seats_are_as_many_as_planned_and_go_with_the_last_text(models, gpu):
    if gpu == "openvino:gpu":
        pytest.skip("openvino:gpu keeps its cache on the host")
    model = models("llama")
    sizes, model.sizes = model.sizes, replace(model.sizes, texts=3)
    try:
        rng, passes = np.random.default_rng(1), JointPasses(model)
        texts = [Twins(model, rng, length) for length in (9, 20)]
        make_round(passes, dict.fromkeys(texts, 0))
        table = passes._tables[BORDER]
        assert len(table._seated) == 4
        for each in texts:
            passes.stand(each.joined)
        make_round(passes, {texts[0]: 0})
        assert (table._seated, table._stages) == ([], [])
    finally:
        model.sizes = sizes


# Caches


def seats_of(onnx_gpu, stage, count, capacity):
    from edgespec.runtime.engines.gpu.device_cache import CacheGraphs, DeviceSeats

    return DeviceSeats(CacheGraphs(onnx_gpu, stage), count, capacity)


SIDE_BY_SIDE = replace(
    STAGE, several_texts=True, cache_groups=(GROUPS[0], replace(GROUPS[1], dtype="float32"))
)


def test_caches_side_by_side_do_not_touch_each_other(onnx_gpu):
    from edgespec.runtime.engines.gpu.device_cache import CacheGraphs, DeviceSeats
    from edgespec.runtime.engines.gpu.device_rows import TextRows

    graphs, capacity = CacheGraphs(onnx_gpu, SIDE_BY_SIDE), 300

    def of_three(array):
        """New rows of three texts, of which the last are those of the text."""
        layers, two, heads, rows, width = array.shape
        every = np.full((layers, two, 3, heads, rows, width), 99, array.dtype)
        every[:, :, 2] = array
        return TextRows(onnx_gpu.placed(every.reshape(-1, heads, rows, width)), 2)

    @given(operations(capacity, 100))
    @settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
    def run(steps):
        seats = DeviceSeats(graphs, 3, capacity)
        others = {}
        for number in (0, 2):
            rng = np.random.default_rng(number)
            others[number] = [
                rng.standard_normal(each.shape).astype(each.dtype)
                for each in seats.seat(number).read(200)
            ]
            seats.seat(number).load(others[number], 200)
        for expected in followed(seats.seat(1), SIDE_BY_SIDE, steps, of_three, capacity):
            values = seats.seat(1).values
            assert values.keys() == expected.keys()
            for name, value in values.items():
                np.testing.assert_array_equal(value.numpy()[0], expected[name])
        for number, rows in others.items():
            for found, wanted in zip(seats.seat(number).read(200), rows, strict=True):
                np.testing.assert_array_equal(found, wanted)

    run()


def test_a_call_reads_the_first_texts_in_place(onnx_gpu):
    seats = seats_of(onnx_gpu, SIDE_BY_SIDE, 4, 300)
    values = seats.among(range(2)).values
    assert values is seats.among(range(4)).values
    assert {name: value.shape()[0] for name, value in values.items()} == dict.fromkeys(values, 4)
    with pytest.raises(ValueError, match="the first must be 0"):
        seats.among(range(1, 3))
    seats.grow(400)
    assert seats.seat(3).capacity == 400
    assert seats.among(range(2)).values is not values
    assert values == {}  # no tensor outlives its growth


def test_memory_of_seats_is_freed_with_them(onnx_gpu):
    """At once, without waiting for the garbage collector."""
    seats = seats_of(onnx_gpu, SIDE_BY_SIDE, 2, 300)
    room = weakref.ref(seats.among(range(2)))
    del seats
    assert room() is None


# What the host computes


def test_only_where_rows_are_is_computed_on_the_cpu(pairs, onnx_gpu):
    opened = bundles.load(pairs.pair("llama").path)
    for role, placing in ((TARGET, 7), (DRAFT, 0)):
        [executable] = Model.load(opened, role, onnx_gpu, 1).executables
        left = Counter()
        for part in executable.session.get_provider_graph_assignment_info():
            if part.ep_name != onnx_gpu.provider:
                left.update(node.op_type for node in part.get_nodes())
        assert sum(left.values()) == placing
        assert not left.keys() - {
            "Gather",
            "Slice",
            "ReduceProd",
            "Range",
            "Reshape",
            "Unsqueeze",
            "Add",
        }


def test_what_reads_the_device_is_not_for_the_cpu():
    from edgespec.runtime.engines.gpu.graphs import on_host

    def tensor(name, kind):
        return helper.make_tensor_value_info(name, kind, ["n"])

    nodes = [
        helper.make_node("Shape", ["numbers"], ["size"], name="size"),
        helper.make_node("Add", ["size", "given"], ["place"], name="a place"),
        helper.make_node("Gather", ["numbers", "place"], ["taken"], name="of numbers"),
        helper.make_node("ArgMax", ["numbers"], ["best"], name="the best"),
        helper.make_node("Add", ["best", "given"], ["found"], name="of the best"),
    ]
    inputs = [tensor("numbers", TensorProto.FLOAT), tensor("given", TensorProto.INT64)]
    graph = helper.make_graph(nodes, "graph", inputs, [tensor("found", TensorProto.INT64)])
    assert on_host(graph) == {"a place"}
