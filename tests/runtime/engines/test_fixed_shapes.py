"""Shapes that are fixed before a stage is compiled: the same text as with any shapes."""

from __future__ import annotations

import logging
import weakref

import numpy as np
import onnx
import pytest
from pairs import LONG_PROMPT, SHORT_PROMPT
from parity import SAME, distance, tree_rows

from edgespec import LLM, bundle
from edgespec.bundle import TARGET
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.costs import profiles
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.engines.fixed_graph import fixed_graph
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import (
    ANY_SHAPES,
    COLUMNS,
    FIXED_WINDOW,
    ROW_BUCKETS,
    SCRATCH_ROWS,
    Shape,
    Shapes,
    capacity_bucket,
)

GREEDY = {"max_new_tokens": 40}
SAMPLED = {"max_new_tokens": 40, "temperature": 0.7, "seed": 5}

devices = pytest.mark.parametrize("device", CPU_ENGINES)


# Texts


@devices
@pytest.mark.parametrize("draft", ["none", "model", "parallel", "lookup"])
def test_the_text_is_that_of_any_shapes(pairs, device, draft):
    """A prompt of several chunks, and a cache that grows."""
    free = pairs.llm("llama", device, "none")
    fixed = pairs.llm("llama", f"{device}#8/32x256/384/512", draft)
    for prompt in (LONG_PROMPT, SHORT_PROMPT):
        for options in (GREEDY, SAMPLED):
            wanted = free.generate(prompt, **options)
            found = fixed.generate(prompt, **options)
            assert found.tokens == wanted.tokens
            assert found.engine == f"{device}#8/32x256/384/512"


@devices
def test_stages_of_fixed_shapes_mix_with_those_of_any(pairs, device):
    other = CPU_ENGINES[1 - CPU_ENGINES.index(device)]
    plain = pairs.llm("cut", device, "none").generate(SHORT_PROMPT, **GREEDY).tokens
    place = f"0={device}#8x512,1={other}"
    llm = LLM(pairs.pair("cut").path, place=place, draft="none", threads=1)
    assert llm.generate(SHORT_PROMPT, **GREEDY).tokens == plain


@devices
def test_fixed_shapes_that_hold_a_draft_models_window_do_not_end_the_text(pairs, device):
    """It knows 100 positions, and its drafts take 128 rows behind them."""
    plain, place = pairs.llm("stranger", device, "none"), {"device": device, "threads": 1}
    path, windowed = pairs.pair("stranger").path, f"{device}#8/32x256"
    llm = LLM(path, draft="model", draft_device=windowed, **place)
    assert llm.context_length == plain.context_length
    found = llm.generate(2 * LONG_PROMPT, **GREEDY)
    assert found.tokens == plain.generate(2 * LONG_PROMPT, **GREEDY).tokens
    assert found.prompt_tokens > 256
    assert found.drafted > 0
    assert LLM(path, draft="model", draft_device=f"{device}#8/32x192", **place).context_length == 64


@devices
def test_a_tree_may_be_wider_than_a_draft_models_calls(pairs, device):
    place = {"device": device, "draft_device": f"{device}#2x528", "threads": 1}
    llm = LLM(pairs.pair("llama").path, draft="model", **place)
    wanted = pairs.llm("llama", device, "none").generate(SHORT_PROMPT, **GREEDY)
    found = llm.generate(SHORT_PROMPT, tree_width=8, **GREEDY)
    assert found.tokens == wanted.tokens
    assert found.accepted > 0


@devices
def test_logits_of_a_tree_and_of_a_prompt_are_those_of_any_shapes(pairs, device):
    opened = bundle.load(pairs.pair("llama").path)
    logits = []
    for name in (device, f"{device}#8/32x256"):
        runner = Runner(Model.load(opened, TARGET, engine(name), 1))
        found = [runner.prefill(range(1, 80))["logits"].copy()]
        assert found[0].shape[0] == 1
        found.append(runner.verify(tree_rows())["logits"][:7].copy())
        runner.commit([0, 2, 6])
        found.append(runner.prefill([7, 8])["logits"].copy())
        logits.append(np.vstack(found))
    assert distance(logits[1], logits[0]) < SAME


@devices
def test_texts_of_several_capacities_in_turns_leave_no_buffers_behind(pairs, device):
    """Each turn makes buffers of its capacity; who has bound those before is not to keep them."""
    opened = bundle.load(pairs.pair("llama").path)
    model = Model.load(opened, TARGET, engine(f"{device}#8x256/512"), 1)
    texts, buffers = {256: Runner(model), 512: Runner(model)}, []
    texts[512].prefill([5] * 300)
    for _ in range(5):
        for capacity, text in texts.items():
            text.prefill([5])
            feeds = model.feeds(8, capacity, 8, SCRATCH_ROWS)
            buffers.append(weakref.ref(feeds.stages[0]["input_ids"]))
    assert sum(buffer() is not None for buffer in buffers) == 2


# What is compiled


def test_a_fixed_graph_has_numbers_alone(pairs):
    graph = pairs.pair("llama").path / "target.onnx"
    model = onnx.load_from_string(fixed_graph(graph, Shape(8, 64)))
    shapes = {
        each.name: [dimension.dim_value for dimension in each.type.tensor_type.shape.dim]
        for each in (*model.graph.input, *model.graph.output)
    }
    assert "lengths" not in shapes
    assert shapes["attention_bias"] == [8, COLUMNS + 64]
    assert shapes["recent_columns"] == [8, FIXED_WINDOW + 8]
    assert shapes["past.0.key"] == [1, 64, 24]
    assert shapes["logits"] == [8, 331]
    assert all(0 not in shape for shape in shapes.values())


def test_fixed_shapes_are_measured_where_they_end(pairs):
    """Costs are asked in a process of its own, which gets shapes by the device's name."""
    path, device = pairs.pair("llama").path, "onnxruntime:cpu#8x384"
    llm = LLM(path, device=device, draft="auto", draft_device=CPU_ENGINES[0], threads=1)
    points = profiles.recall(bundle.load(path), TARGET, (engine(device),), 1).seconds
    assert {c: sorted(rows) for c, rows in points.items()} == {384: [1, 2, 4, 8]}
    assert llm.deployment.max_tree == 7


# What is refused


def test_a_context_that_fixed_shapes_do_not_hold(pairs, caplog):
    path, place = pairs.pair("llama").path, {"device": "onnxruntime:cpu#8x256", "threads": 1}
    with caplog.at_level(logging.WARNING, "edgespec"):
        llm = LLM(path, draft="none", **place)
    assert llm.context_length == 256
    assert [record.getMessage() for record in caplog.records] == [
        "a context of 256 tokens, since the device has fixed shapes"
    ]
    assert LLM(path, draft="none", context=200, **place).context_length == 200
    with pytest.raises(InputError, match=r"context is 300: the fixed shapes .* allow 256 tokens"):
        LLM(path, draft="none", context=300, **place)


@pytest.mark.parametrize(
    ("text", "part"),
    [("", "give rows"), ("8", "give rows"), ("8x", "give rows"), ("8/x64", "give rows"),
     ("0/8x64", "1 to 128 rows"), ("8/256x512", "1 to 128 rows"), ("8/32x16/64", "that hold them")],
)  # fmt: skip
def test_shapes_that_cannot_be(text, part):
    with pytest.raises(InputError, match=part):
        Shapes.parse(text)


def test_shapes_are_read_as_they_are_written():
    shapes = Shapes.parse("32/8x1024/256")
    assert str(shapes) == "8/32x256/1024"
    assert Shapes.parse(str(shapes)) == shapes
    assert shapes.all == tuple(Shape(s, c) for s in (8, 32) for c in (256, 1024))
    assert [shapes.row_bucket(n) for n in (1, 8, 9, 32)] == [8, 8, 32, 32]
    assert [shapes.capacity_bucket(n) for n in (1, 256, 257)] == [256, 256, 1024]
    with pytest.raises(InputError, match="1025 rows is longer than the fixed shapes"):
        shapes.capacity_bucket(1025)


def test_any_shapes_are_the_buckets():
    assert ANY_SHAPES.all == ()
    assert [ANY_SHAPES.row_bucket(n) for n in (1, 3, 128)] == [1, 4, 128]
    assert ANY_SHAPES.capacity_bucket(300) == capacity_bucket(300)


def test_onnxruntime_goes_in_smaller_steps_alone_but_not_beside_others():
    alone, other = (engine(name).shapes for name in CPU_ENGINES)
    assert [alone.row_bucket(n) for n in (1, 3, 7, 33, 128)] == [1, 3, 8, 48, 128]
    assert other == ANY_SHAPES
    assert alone.common(other) == other.common(alone) == ANY_SHAPES


def test_devices_share_the_shapes_that_both_have():
    fixed = Shapes((8, 32), (256, 512))
    assert ANY_SHAPES.common(fixed) == fixed.common(ANY_SHAPES) == fixed
    assert fixed.common(Shapes((8,), (512,))) == Shapes((8,), (512,))
    assert ANY_SHAPES.common(ANY_SHAPES).rows == ROW_BUCKETS
    for other in (Shapes((16,), (256,)), Shapes((8,), (1024,))):
        with pytest.raises(InputError, match="none in common"):
            fixed.common(other)


def test_devices_that_have_no_fixed_shapes():
    with pytest.raises(DeviceError, match=r"device webgpu:0: its shapes cannot be fixed: use one"):
        engine("webgpu:0#8x256")
    with pytest.raises(InputError, match=r"2 lists of shapes"):
        engine("onnxruntime:cpu#8x256#8x512")
