"""Stored precisions on both engines: what differs from transformers, and what explains it."""

from __future__ import annotations

import copy
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from parity import (
    EMBEDDING,
    HEAD,
    PROMPT,
    SAME,
    blocks,
    devices,
    distance,
    float_activations,
    load,
    made,
    reference,
)  # fmt: skip
from transformers import DynamicCache

from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.execution.feeds import Rows

# With a cache in half precision a value between two halves may round either way: measured 1e-5.
SAME_IN_HALF = 1e-4
# How far an engine may go beyond the same roundings made here: measured 1.2 at most, mostly 1.000.
# Some round in groups larger than the blocks, some not at all.
SLACK = 2.0


class HalfCache(DynamicCache):
    """Keys and values rounded to half precision, in float32."""

    def update(self, key_states, value_states, *args, **kwargs):
        rounded = (states.half().float() for states in (key_states, value_states))
        return super().update(*rounded, *args, **kwargs)


@dataclass(frozen=True)
class Stored:
    """An export, and the block size it must choose (0: not quantized)."""

    options: ExportOptions
    block_size: int
    shapes: dict = field(default_factory=dict)
    misfits: str = ""


TIED = {"tie_word_embeddings": True}
K64 = {"head_dim": 32, "intermediate_size": 192}
K128 = {"hidden_size": 128, "head_dim": 64, "intermediate_size": 384}
NO_BLOCK = {"hidden_size": 48, "head_dim": 20, "intermediate_size": 72}

STORED = {
    "fp16": Stored(ExportOptions("fp16"), 0),
    "fp16-tied-kv-fp16": Stored(ExportOptions("fp16", kv_precision="fp16"), 0, TIED),
    "fp32-kv-fp16": Stored(ExportOptions("fp32", kv_precision="fp16"), 0),
    "fp32-head-int8": Stored(ExportOptions("fp32", lm_head_precision="int8"), 32),
    "int4-auto-32": Stored(ExportOptions("int4"), 32),
    "int4-small": Stored(ExportOptions("int4-small"), 32),
    "int4-small-tied": Stored(ExportOptions("int4-small"), 32, TIED),
    "int4-auto-64": Stored(ExportOptions("int4"), 64, K64),
    "int4-auto-128-tied": Stored(ExportOptions("int4"), 128, {**K128, **TIED}),
    "int4-32-where-128-fits": Stored(ExportOptions("int4", block_size=32), 32, K128),
    "int4-padded-128": Stored(ExportOptions("int4", block_size=128), 128, {}, "64, 96, 160"),
    "int4-padded-auto-tied": Stored(ExportOptions("int4"), 32, {**NO_BLOCK, **TIED}, "48, 72, 80"),
    "int4-head-int8-tied-kv-fp16": Stored(
        ExportOptions("int4", lm_head_precision="int8", kv_precision="fp16"), 32, TIED
    ),
    "int4-head-fp16": Stored(ExportOptions("int4", lm_head_precision="fp16"), 32),
    "int8-auto-32-tied": Stored(ExportOptions("int8"), 32, TIED),
    "int8-auto-128": Stored(ExportOptions("int8"), 128, K128),
    "int8-padded-64": Stored(ExportOptions("int8", block_size=64), 64, {}, "96, 160"),
}


quantized = pytest.mark.parametrize(
    "case", [name for name, stored in STORED.items() if stored.block_size], indirect=True
)


@dataclass(frozen=True)
class Case:
    """An export, the original model and one that has the values as stored.

    `matrices` are those values and their bits, by the model's names.
    """

    stored: Stored
    bundle: bundles.Bundle
    original: torch.nn.Module
    rounded: torch.nn.Module
    matrices: dict
    warnings: list

    def expected(self, tokens):
        half = self.stored.options.kv_precision == "fp16"
        return reference(self.rounded, tokens, HalfCache() if half else DynamicCache())


@pytest.fixture(scope="module", params=STORED)
def case(request, tmp_path_factory):
    stored = STORED[request.param]
    folder = tmp_path_factory.mktemp("stored")
    original = made(folder / "checkpoint", "qwen2", **stored.shapes)
    warnings = warnings_of(
        lambda: export_bundle(folder / "checkpoint", folder / "bundle", options=stored.options)
    )
    bundle = bundles.load(folder / "bundle")
    sizes = {name: len(tensor) for name, tensor in original.state_dict().items()}
    matrices = read_back(bundle, sizes)
    rounded = type(original).from_pretrained(folder / "checkpoint", dtype=torch.float32).eval()
    if stored.shapes.get("tie_word_embeddings"):
        # One tensor may be stored in two precisions.
        rounded.lm_head.weight = torch.nn.Parameter(torch.zeros_like(rounded.lm_head.weight))
    tensors = {name: torch.from_numpy(values) for name, (values, _) in matrices.items()}
    rounded.load_state_dict(tensors, strict=True)
    return Case(stored, bundle, original, rounded, matrices, warnings)


def warnings_of(call):
    """Messages of the exporter while `call` runs."""
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("edgespec.export")
    logger.addHandler(handler)
    try:
        call()
    finally:
        logger.removeHandler(handler)
    return messages


def read_back(bundle, sizes):
    """What the graph's nodes read: float32 values and stored bits, by the model's own names.

    Those that one product multiplies with lie one below the other; `sizes` are each one's rows.
    """
    graph = onnx.load(str(bundle.path / bundle.target.stages[0].graph)).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    # Scales are widened before they are multiplied with.
    stored, widened = {}, {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Cast"}
    for node in graph.node:
        attributes = {a.name: a.i for a in node.attribute}
        if node.op_type == "MatMulNBits":
            packed, scales = arrays[node.input[1]], arrays[widened[node.input[2]]]
            assert scales.dtype == np.float16
            values = blocks(packed, scales, attributes["bits"])[:, : attributes["K"]]
            name, bits = node.input[1].removesuffix(".packed"), attributes["bits"]
            stored[HEAD if name == EMBEDDING else name] = (values, bits)
        elif node.op_type == "GatherBlockQuantized":
            packed, scales = arrays[node.input[0]], arrays[node.input[2]]
            packed = packed.reshape(*scales.shape, -1)
            stored[EMBEDDING] = (blocks(packed, scales, attributes["bits"]), attributes["bits"])
    for name, array in arrays.items():
        if name.endswith((".weight", ".bias")):
            values, bits = array.astype(np.float32), array.itemsize * 8
            stored[name] = (values, bits)
    stored.setdefault(HEAD, stored[EMBEDDING])
    apart = {}
    for label, (values, bits) in stored.items():
        names = label.split("+")
        ends = np.cumsum([sizes[name] for name in names])
        assert ends[-1] == len(values)
        for name, part in zip(names, np.split(values, ends[:-1]), strict=True):
            apart[name] = (part, bits)
    return apart


def test_each_matrix_is_stored_in_the_precision_asked_for(case):
    options, precision = case.stored.options, case.bundle.target.precision
    weights = options.precision.removesuffix("-small")
    assert precision.weights == weights
    mixed = options.precision == "int4"
    assert precision.lm_head == (options.lm_head_precision or ("int8" if mixed else weights))
    assert precision.kv == options.kv_precision
    assert precision.block_size == case.stored.block_size

    def bits(name):
        return int(name.removeprefix("int").removeprefix("fp"))

    padded_embedding = case.original.config.hidden_size % max(case.stored.block_size, 1) != 0
    for name, (_, found) in case.matrices.items():
        if case.original.state_dict()[name].ndim == 1:
            assert found == 32
        elif name == HEAD:
            assert found == bits(precision.lm_head)
        elif name == EMBEDDING and padded_embedding:
            assert found == 16
        elif name == EMBEDDING:
            assert found == bits(precision.lm_head)
        elif mixed and name.split(".")[-2] in ("k_proj", "v_proj"):
            assert found == 8
        else:
            assert found == bits(precision.weights)


def test_blocks_that_do_not_divide_are_warned_about(case):
    if case.stored.misfits:
        (warning,) = case.warnings
        expected = (
            f"{case.stored.block_size} does not divide the row sizes {case.stored.misfits}, so"
        )
        assert expected in warning
    else:
        assert case.warnings == []


def test_the_recorded_error_is_that_of_the_stored_bytes(case):
    recorded = dict(case.bundle.target.quantization_error)
    for name, (values, bits) in case.matrices.items():
        original = case.original.state_dict()[name].numpy()
        if bits in (4, 8):
            error = recorded.get(name, recorded.get(EMBEDDING))
            assert error == pytest.approx(distance(values, original), rel=1e-3)
        elif bits == 16:
            np.testing.assert_array_equal(values, original.astype(np.float16).astype(np.float32))
        else:
            np.testing.assert_array_equal(values, original)
    tied = case.original.config.tie_word_embeddings
    assert recorded.keys() == {
        EMBEDDING if name == HEAD and tied else name
        for name, (_, bits) in case.matrices.items()
        if bits in (4, 8)
    }


@contextmanager
def half_rows(case, device):
    """ONNX Runtime looks rows of quantized embeddings up in the precision of their scales."""
    rounded = device == "onnxruntime:cpu" and case.matrices[EMBEDDING][1] in (4, 8)

    def round_output(_layer, _inputs, rows):
        return rows.half().float() if rounded else rows

    hook = case.rounded.get_input_embeddings().register_forward_hook(round_output)
    yield
    hook.remove()


def same(case):
    """The tolerance where activations are not rounded."""
    return SAME_IN_HALF if case.stored.options.kv_precision == "fp16" else SAME


@devices
def test_stored_weights_are_read_as_they_were_meant(case, device, tmp_path):
    runner = load(float_activations(case.bundle, tmp_path / "copy"), device)
    with half_rows(case, device):
        for logits, tokens in both_calls(runner):
            assert distance(logits, case.expected(tokens)) < same(case)


@pytest.mark.parametrize("case", ["fp32-kv-fp16"], indirect=True)
@devices
def test_new_keys_and_values_are_seen_as_the_cache_will_hold_them(case, device):
    """Or logits would depend on which rows came in one call."""
    text = PROMPT[:20]
    whole = load(case.bundle, device).prefill(text)["logits"][0].copy()
    runner = load(case.bundle, device)
    runner.prefill(text[:-1])
    one = Rows(text[-1:], [0], np.ones((1, 1), np.bool_))
    assert distance(runner.verify(one)["logits"][0], whole) < SAME


@quantized
@devices
def test_engines_add_no_more_than_their_rounding_of_activations(case, device):
    for logits, tokens in both_calls(load(case.bundle, device)):
        expected = case.expected(tokens)
        with rounded_activations(case.rounded, case):
            explained = distance(case.expected(tokens), expected)
        assert distance(logits, expected) < SLACK * explained + same(case)


@quantized
@devices
def test_recorded_errors_explain_the_distance_to_the_original(case, device):
    noisy = with_noise(case)
    for logits, tokens in both_calls(load(case.bundle, device)):
        original = reference(case.original, tokens)
        with rounded_activations(noisy, case):
            explained = distance(reference(noisy, tokens), original)
        assert distance(logits, original) < SLACK * explained


def both_calls(runner):
    """Logits of a prefill of 150 tokens and of one row behind it, with the texts they end."""
    yield runner.prefill(PROMPT[:150])["logits"][0], PROMPT[:150]
    one = Rows([PROMPT[150]], [0], np.ones((1, 1), np.bool_))
    yield runner.verify(one)["logits"][0], PROMPT[:151]


@contextmanager
def rounded_activations(model, case):
    """Quantized layers see their input as int8, in blocks that share a scale."""
    size = case.stored.block_size

    def round_input(_layer, inputs):
        (x,) = inputs
        width = x.shape[-1]
        grouped = torch.nn.functional.pad(x, (0, -width % size)).unflatten(-1, (-1, size))
        scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
        return ((grouped / scale).round() * scale).flatten(-2)[..., :width]

    hooks = [
        layer.register_forward_pre_hook(round_input)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and case.matrices[f"{name}.weight"][1] in (4, 8)
    ]
    yield
    for hook in hooks:
        hook.remove()


def with_noise(case):
    """The original with Gaussian noise on each matrix, as large as the error on record."""
    model = copy.deepcopy(case.original)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, error in case.bundle.target.quantization_error.items():
            weight = model.get_parameter(name)
            noise = torch.randn(weight.shape, generator=generator)
            weight += noise * error * weight.square().mean().sqrt()
    return model
