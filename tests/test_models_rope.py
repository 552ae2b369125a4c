"""RoPE against transformers' own, in both spellings of the config."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.models.fields import Fields
from edgespec.models.rope import rope_from_config

HEAD_DIM = 24
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
UNANCHORED = {key: LLAMA3[key] for key in LLAMA3 if not key.startswith("original")}
SCALINGS = [
    pytest.param(None, id="absent"),
    pytest.param({"rope_type": "default"}, id="default"),
    pytest.param({"rope_type": "linear", "factor": 4.0}, id="linear"),
    pytest.param(LLAMA3, id="llama3"),
    pytest.param(UNANCHORED, id="llama3 from max_position_embeddings"),
]


def fields(**values: object) -> Fields:
    return Fields({"max_position_embeddings": 2048, **values}, "config.json")


def reference(theta: float, scaling: dict[str, object] | None) -> np.ndarray:
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
    inv_freq, attention_scaling = compute(config)
    assert attention_scaling == 1.0
    return inv_freq.numpy()


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_both_spellings_equal_transformers(theta, scaling):
    expected = reference(theta, scaling)
    older = {"rope_theta": theta, "rope_scaling": scaling}
    newer = {"rope_parameters": {"rope_theta": theta, **(scaling or {})}}
    for spelling in (older, newer):
        rope = rope_from_config(fields(**spelling), HEAD_DIM)
        assert rope.inv_freq.dtype == np.float32
        np.testing.assert_allclose(rope.inv_freq, expected, rtol=2.5e-7)


def test_llama3_reaches_all_three_ranges():
    ratio = reference(10_000.0, LLAMA3) / reference(10_000.0, None)
    assert ratio[0] == 1.0
    assert np.isclose(ratio[-1], 1 / 8)
    assert np.any((ratio > 0.13) & (ratio < 0.99))


def test_theta_defaults_and_precedence():
    expected = reference(10_000.0, None)
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
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            ["rope_scaling", "rope_type='yarn'"],
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, ["rope_scaling", "type='dynamic'"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["rope_parameters", "'longrope'"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ["partial_rotary_factor=0.25"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, ["full_attention={"]),
    ],
)
def test_what_is_not_implemented_is_refused(values, words):
    with pytest.raises(UnsupportedModelError) as error:
        rope_from_config(fields(**values), HEAD_DIM)
    assert all(word in str(error.value) for word in ["config.json", *words])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rope_theta": "big"}, ["rope_theta='big'"]),
        ({"rope_theta": -1}, ["rope_theta=-1"]),
        ({"rope_theta": True}, ["rope_theta=True"]),
        ({"rope_scaling": "linear"}, ["rope_scaling='linear'"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["factor=(absent)"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, ["factor=0"]),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, ["high_freq_factor=1.0"]),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1.5}},
            ["original_max_position_embeddings=1.5"],
        ),
    ],
)
def test_impossible_values_are_named(values, words):
    with pytest.raises(CheckpointError) as error:
        rope_from_config(fields(**values), HEAD_DIM)
    assert all(word in str(error.value) for word in ["config.json", *words])
