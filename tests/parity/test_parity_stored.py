"""Stored precisions: what differs from transformers, and what explains it."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from nodes import MISSING
from parity import EMBEDDING, HEAD, PROMPT, SAME, Text, distance, load, reference, stored
from transformers import DynamicCache

from edgespec import bundle as bundles
from edgespec import export
from edgespec.export import ExportOptions

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

# With a cache in half precision a value between two halves may round either way: measured 1e-5.
SAME_IN_HALF = 1e-4
# How far logits may go beyond the same roundings made here.
SLACK = 1.5
BLOCK = 32  # columns of a row that share a scale where activations are rounded
ROUNDED = ("q4_0", "q5_0", "q8_0", "q4_k", "q6_k")


class HalfCache(DynamicCache):
    """Keys and values rounded to half precision, in float32."""

    def update(self, key_states, value_states, *args, **kwargs):
        rounded = (states.half().float() for states in (key_states, value_states))
        return super().update(*rounded, *args, **kwargs)


@dataclass(frozen=True)
class Asked:
    """An export of a model of these shapes."""

    options: ExportOptions
    shapes: dict = field(default_factory=dict)

    @property
    def block_size(self):
        kinds = {self.options.precision, self.options.lm_head_precision}
        return 32 if kinds & {"int4", "int4-small", "int8"} else 0

    @property
    def caches(self):
        usual = "fp32" if self.options.precision == "fp32" else "fp16"
        return self.options.kv_precision or usual


TIED = {"tie_word_embeddings": True}
K256 = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
NO_BLOCK = {"hidden_size": 48, "head_dim": 20, "intermediate_size": 72}

STORED = {
    "fp16": Asked(ExportOptions("fp16")),
    "fp16-tied-kv-fp32": Asked(ExportOptions("fp16", kv_precision="fp32"), TIED),
    "fp32-kv-fp16": Asked(ExportOptions("fp32", kv_precision="fp16")),
    "fp32-head-int8": Asked(ExportOptions("fp32", lm_head_precision="int8")),
    "int4": Asked(ExportOptions("int4")),
    "int4-small": Asked(ExportOptions("int4-small")),
    "int4-small-tied": Asked(ExportOptions("int4-small"), TIED),
    "int4-small-256": Asked(ExportOptions("int4-small"), K256),
    "int4-256-tied": Asked(ExportOptions("int4"), {**K256, **TIED}),
    "int4-padded-tied": Asked(ExportOptions("int4"), {**NO_BLOCK, **TIED}),
    "int4-head-int8-tied-kv-fp32": Asked(
        ExportOptions("int4", lm_head_precision="int8", kv_precision="fp32"), TIED
    ),
    "int4-head-fp16": Asked(ExportOptions("int4", lm_head_precision="fp16")),
    "int8-tied": Asked(ExportOptions("int8"), TIED),
    "int8-256": Asked(ExportOptions("int8"), K256),
}
WIDE = {"q4_k": "q6_k", "q5_0": "q8_0"}


@dataclass(frozen=True)
class Case:
    """An export, the original model and one that has the values as stored; `Stored` by name."""

    asked: Asked
    bundle: bundles.Bundle
    original: torch.nn.Module
    rounded: torch.nn.Module
    matrices: dict

    def expected(self, tokens):
        half = self.asked.caches == "fp16"
        return reference(self.rounded, tokens, HalfCache() if half else DynamicCache())


@pytest.fixture(scope="module", params=STORED)
def case(request, tmp_path_factory):
    asked = STORED[request.param]
    folder = tmp_path_factory.mktemp("stored")
    original = make_checkpoint(folder / "checkpoint", "qwen2", **asked.shapes)
    export.make(folder / "checkpoint", folder / "bundle", options=asked.options)
    bundle = bundles.load(folder / "bundle")
    matrices = stored(bundle)
    rounded = type(original).from_pretrained(folder / "checkpoint", dtype=torch.float32).eval()
    for name, each in matrices.items():
        weight = rounded.get_parameter(name)
        weight.data = torch.from_numpy(each.values[:, : weight.shape[1]].copy())
    return Case(asked, bundle, original, rounded, matrices)


def test_each_matrix_is_stored_in_the_precision_asked_for(case):
    options = case.asked.options
    precision = case.bundle.target.precision
    weights = options.precision.removesuffix("-small")
    mixed = options.precision == "int4"
    head = options.lm_head_precision or ("int6" if mixed else weights)
    assert precision == bundles.Precision(weights, head, case.asked.caches, case.asked.block_size)
    counts = {}
    for name, each in case.matrices.items():
        size = case.original.get_parameter(name)
        apart = HEAD in case.matrices and mixed and options.lm_head_precision is None
        of_head = name == HEAD or (name == EMBEDDING and not apart)
        wanted = format_of(head if of_head else weights, size.shape[1], mixed)
        if mixed and name.split(".")[-2] == "v_proj":
            wanted = WIDE[wanted]
        assert each.format == wanted, name
        counts[each.format] = counts.get(each.format, 0) + size.numel()
    assert case.bundle.target.native.formats == counts


def format_of(precision, width, mixed):
    supers = width % 256 == 0
    formats = {"int6": "q6_k" if supers else "q8_0", "int8": "q8_0", "fp16": "f16", "fp32": "f32"}
    usual = "q4_k" if supers else "q5_0" if mixed else "q4_0"
    return formats.get(precision, usual)


def test_the_recorded_error_is_that_of_the_stored_bytes(case):
    recorded = case.bundle.target.quantization_error
    assert recorded.keys() == {n for n, each in case.matrices.items() if each.format in ROUNDED}
    for name, each in case.matrices.items():
        original = case.original.get_parameter(name).detach().numpy()
        values = each.values[:, : original.shape[1]]
        if each.format in ROUNDED:
            assert recorded[name] == pytest.approx(distance(values, original), rel=1e-3)
            assert not each.values[:, original.shape[1] :].any()
        else:
            kind = np.float16 if each.format == "f16" else np.float32
            np.testing.assert_array_equal(values, original.astype(kind).astype(np.float32))


def test_logits_differ_by_no_more_than_rounding_of_activations(case):
    same = SAME_IN_HALF if case.asked.caches == "fp16" else SAME
    for logits, tokens in both_calls(case):
        expected = case.expected(tokens)
        with rounded_activations(case.rounded, case):
            explained = distance(case.expected(tokens), expected)
        assert distance(logits, expected) < SLACK * explained + same


@pytest.mark.parametrize(
    "case", [n for n, each in STORED.items() if each.block_size], indirect=True
)
def test_recorded_errors_explain_the_distance_to_the_original(case):
    noisy = with_noise(case)
    for logits, tokens in both_calls(case):
        original = reference(case.original, tokens)
        with rounded_activations(noisy, case):
            explained = distance(reference(noisy, tokens), original)
        assert distance(logits, original) < 2 * explained


def both_calls(case):
    """Logits of a prompt of 150 tokens and of one row behind it, with the texts they end."""
    text = Text(load(case.bundle))
    yield text.read(PROMPT[:150])[-1], PROMPT[:150]
    yield text.read(PROMPT[150:151])[0], PROMPT[:151]


@contextmanager
def rounded_activations(model, case):
    """Quantized layers see their input as int8, in blocks that share a scale."""

    def round_input(_layer, inputs):
        (x,) = inputs
        width = x.shape[-1]
        grouped = torch.nn.functional.pad(x, (0, -width % BLOCK)).unflatten(-1, (-1, BLOCK))
        scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
        return ((grouped / scale).round() * scale).flatten(-2)[..., :width]

    rounded = {name for name, each in case.matrices.items() if each.format in ROUNDED}
    rounded |= {HEAD} if EMBEDDING in rounded and HEAD not in case.matrices else set()
    hooks = [
        layer.register_forward_pre_hook(round_input)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and f"{name}.weight" in rounded
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
