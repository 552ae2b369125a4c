"""RoPE against transformers' own, in both spellings of the config."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edgespec.errors import CheckpointError
from edgespec.models.fields import ConfigFields
from edgespec.models.layers.rope import (
    partial_rope_from_config,
    rope_from_config,
    rotated_dimensions,
    rotation_order,
)

HEAD_DIM = 24
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SHORT = [1.0 + i / 10 for i in range(HEAD_DIM // 2)]
LONG = [1.0 + i**1.5 for i in range(HEAD_DIM // 2)]
LONGROPE = {
    "rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
    "original_max_position_embeddings": 512,
}  # fmt: skip
UNANCHORED = {key: LLAMA3[key] for key in LLAMA3 if not key.startswith("original")}
SCALINGS = {
    "absent": None,
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "llama3 from max_position_embeddings": UNANCHORED,
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": YARN,
    "yarn stretched by max_position_embeddings": {**YARN, "factor": None},
    "yarn from max_position_embeddings": {"rope_type": "yarn", "factor": 4.0},
    "yarn that shrinks": {**YARN, "factor": 0.5},
    "yarn with attention_factor": {**YARN, "attention_factor": 0.75},
    "yarn with both mscales": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn with one mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 0},
    "yarn with betas": {**YARN, "beta_fast": 10, "beta_slow": 2},
    "yarn with one beta": {**YARN, "beta_fast": 4, "beta_slow": 4},
    "yarn without truncation": {**YARN, "truncate": False},
    "yarn with a step": {**YARN, "beta_fast": 4, "beta_slow": 4, "truncate": False},
    "longrope": LONGROPE,
    "longrope with factor": {**LONGROPE, "factor": 16.0},
    "longrope with attention_factor": {**LONGROPE, "attention_factor": 1.25},
    "longrope, short": {**LONGROPE, "original_max_position_embeddings": 2048},
    "longrope, short with factor": {
        **LONGROPE, "original_max_position_embeddings": 4096, "factor": 2.0,
    },
}  # fmt: skip


def fields(**values: object) -> ConfigFields:
    return ConfigFields({"max_position_embeddings": 2048, **values}, "config.json")


def reference(theta: float, scaling: dict[str, object] | None) -> tuple[np.ndarray, float]:
    """Frequencies and attention factor of texts that fill the context."""
    config = LlamaConfig(
        hidden_size=96,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": theta, **(scaling or {"rope_type": "default"})},
    )
    compute = LlamaRotaryEmbedding.compute_default_rope_parameters
    if scaling and scaling["rope_type"] != "default":
        compute = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    options = {"seq_len": 2048} if scaling and scaling["rope_type"] == "longrope" else {}
    inv_freq, attention_scaling = compute(config, **options)
    return inv_freq.numpy(), attention_scaling


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_both_spellings_equal_transformers(theta, scaling):
    expected, attention_factor = reference(theta, scaling)
    older = {"rope_theta": theta, "rope_scaling": scaling}
    newer = {"rope_parameters": {"rope_theta": theta, **(scaling or {})}}
    for spelling in (older, newer):
        rope = rope_from_config(fields(**spelling), HEAD_DIM)
        assert rope.inv_freq.dtype == np.float32
        np.testing.assert_allclose(rope.inv_freq, expected, rtol=4e-7)
        assert rope.attention_factor == pytest.approx(attention_factor, rel=1e-12)


def test_attention_factors_differ_as_the_parameters_do():
    """Else equality with transformers would say nothing of them."""
    factors = {name: reference(1e4, scaling)[1] for name, scaling in SCALINGS.items()}
    assert factors["llama3"] == factors["longrope, short"] == factors["yarn that shrinks"] == 1
    assert factors["yarn"] == factors["yarn with one mscale"] == factors["yarn with betas"]
    others = ("yarn", "yarn with attention_factor", "yarn with both mscales", "longrope")
    others += ("longrope with factor", "longrope with attention_factor")
    assert len({1.0, *(factors[name] for name in others)}) == len(others) + 1


def test_llama3_reaches_all_three_ranges():
    ratio = reference(10_000.0, LLAMA3)[0] / reference(10_000.0, None)[0]
    assert ratio[0] == 1.0
    assert np.isclose(ratio[-1], 1 / 8)
    assert np.any((ratio > 0.13) & (ratio < 0.99))


def test_theta_defaults_and_precedence():
    expected, _ = reference(10_000.0, None)
    np.testing.assert_allclose(rope_from_config(fields(), HEAD_DIM).inv_freq, expected, rtol=2e-7)
    inner = fields(rope_theta=5.0, rope_parameters={"rope_theta": 10_000.0})
    np.testing.assert_allclose(rope_from_config(inner, HEAD_DIM).inv_freq, expected, rtol=2e-7)


OUTSIDE = {"rope_theta": 5e3, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    "values",
    [
        {"rope_scaling": LINEAR, "rope_parameters": {**LINEAR, "rope_theta": 5e3, "factor": 2.0}},
        {"rope_scaling": {}, "rope_parameters": LINEAR},
        {"rope_scaling": {**LINEAR, "type": "dynamic"}},
        {"rope_scaling": LLAMA3, **OUTSIDE},
        {"rope_parameters": UNANCHORED, **OUTSIDE},
    ],
)
def test_of_what_is_said_twice_transformers_choice_is_taken(values):
    sizes = {"hidden_size": 96, "num_attention_heads": 4, "head_dim": HEAD_DIM}
    config = LlamaConfig.from_dict({**sizes, "max_position_embeddings": 2048, **deepcopy(values)})
    expected = LlamaRotaryEmbedding(config).inv_freq.numpy()
    found = rope_from_config(fields(**values), HEAD_DIM).inv_freq
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_older_name_of_the_type():
    legacy = rope_from_config(fields(rope_scaling={"type": "linear", "factor": 2}), HEAD_DIM)
    plain = rope_from_config(fields(), HEAD_DIM)
    np.testing.assert_allclose(legacy.inv_freq, plain.inv_freq / 2, rtol=2e-7)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rope_scaling": {"rope_type": "xdrope"}}, ["rope_type='xdrope' is not supported"]),
        ({"rope_scaling": {"type": "mrope"}}, ["rope_scaling: type='mrope' is not supported"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5 is not supported"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ["factor=0.25 is not supported"]),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            ["full_attention={", "is not supported"],
        ),
        ({"rope_theta": "big"}, ["rope_theta='big'"]),
        ({"rope_theta": -1}, ["rope_theta=-1"]),
        ({"rope_theta": True}, ["rope_theta=True"]),
        ({"rope_scaling": "linear"}, ["rope_scaling='linear'"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["factor=(absent)"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, ["factor=0"]),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, ["high_freq_factor=1.0"]),
        ({"rope_scaling": {**YARN, "factor": -4.0}}, ["factor=-4.0"]),
        ({"rope_scaling": {**YARN, "attention_factor": 0}}, ["attention_factor=0"]),
        ({"rope_scaling": {**YARN, "mscale": "x", "mscale_all_dim": 1}}, ["mscale='x'"]),
        ({"rope_scaling": {**YARN, "beta_slow": -1}}, ["beta_slow=-1"]),
        ({"rope_scaling": {**YARN, "beta_fast": 0.5}}, ["beta_fast=0.5", "beta_slow=1.0"]),
        ({"rope_scaling": {**YARN, "truncate": "no"}}, ["truncate='no'"]),
        ({"rope_scaling": YARN, "rope_theta": 1}, ["rope_theta=1 must exceed 1"]),
        ({"rope_scaling": {**YARN, "rope_theta": 0.5}}, ["rope_scaling: rope_theta=0.5"]),
        ({"rope_scaling": {**LONGROPE, "long_factor": None}}, ["long_factor=(absent)", "12"]),
        ({"rope_scaling": {**LONGROPE, "long_factor": 2.0}}, ["long_factor=2.0"]),
        ({"rope_scaling": {**LONGROPE, "short_factor": SHORT[1:]}}, ["short_factor=[", "12"]),
        ({"rope_scaling": {**LONGROPE, "short_factor": [0, *SHORT[1:]]}}, ["short_factor=[0"]),
        ({"rope_scaling": {**LONGROPE, "long_factor": ["1", *SHORT]}}, ["long_factor=['1'"]),
        ({"rope_scaling": {**LONGROPE, "attention_factor": -1}}, ["attention_factor=-1"]),
        (
            {"rope_scaling": {**LONGROPE, "original_max_position_embeddings": 1}},
            ["original_max_position_embeddings=1", "2 or more"],
        ),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1.5}},
            ["original_max_position_embeddings=1.5"],
        ),
    ],
)
def test_what_is_impossible_or_not_implemented_is_named(values, words):
    with pytest.raises(CheckpointError) as error:
        rope_from_config(fields(**values), HEAD_DIM)
    assert all(word in str(error.value) for word in ["config.json", *words])


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"type": "dynamic", "factor": 2.0}, ["type='dynamic'", "2048 tokens"]),
        (LONGROPE, ["long_factor", "max_position_embeddings=2048 exceeds", "=512"]),
        (
            {**LONGROPE, "original_max_position_embeddings": 2048},
            ["short_factor", "max_position_embeddings=2048 is within", "=2048"],
        ),
    ],
)
def test_what_would_depend_on_the_length_of_a_text_is_said(scaling, words, caplog):
    rope_from_config(fields(rope_scaling=scaling), HEAD_DIM)
    [message] = caplog.messages
    assert all(word in message for word in ["config.json: rope_scaling: ", *words])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [2, 10, 18, 24])
def test_an_order_of_dimensions_pairs_those_that_a_checkpoint_rotates(rotated, interleaved):
    first, second = np.split(rotation_order(HEAD_DIM, rotated, interleaved), 2)
    assert sorted([*first, *second]) == list(range(HEAD_DIM))
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))[: rotated // 2]
    if interleaved:
        assert pairs == [(2 * i, 2 * i + 1) for i in range(rotated // 2)]
    else:
        assert pairs == [(i, i + rotated // 2) for i in range(rotated // 2)]


@pytest.mark.parametrize(
    "values",
    [
        {"partial_rotary_factor": 0.5},
        {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5, "rope_scaling": YARN},
        {"partial_rotary_factor": 0.53, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
def test_frequencies_are_those_of_the_part_that_is_rotated(values):
    """A head of half the size has them, and the other pairs stand still."""
    rope = partial_rope_from_config(fields(**values), HEAD_DIM)
    plain = rope_from_config(fields(rope_scaling=values.get("rope_scaling")), HEAD_DIM // 2)
    assert rotated_dimensions(fields(**values), HEAD_DIM) == HEAD_DIM // 2
    np.testing.assert_array_equal(rope.inv_freq[: HEAD_DIM // 4], plain.inv_freq)
    assert not rope.inv_freq[HEAD_DIM // 4 :].any()
    assert rope.attention_factor == plain.attention_factor
    assert rope.scales.tolist() == [plain.attention_factor] * 6 + [1.0] * 6
