"""Tests of penalties and bias: as a naive reference has them, along every path of a tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from engines import by_model, engine_of, plain_engine, request, tokens_of, toy_engine
from hypothesis import given
from hypothesis import strategies as st
from toys import VOCABULARY, toy_model

from edgespec.errors import InputError
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.penalties import Penalties
from edgespec.runtime.sampling.sampler import Sampler

PENALTIES = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7, "repeat_last_n": 5},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"frequency_penalty": -2.0, "repeat_last_n": -1},
    {"logit_bias": {3: 2.5, 4: -math.inf, 49: -1.0}},
    {
        "repetition_penalty": 1.3, "presence_penalty": -0.4, "frequency_penalty": 0.7,
        "repeat_last_n": 12, "logit_bias": {1: -2.0, 2: 3.0},
    },
    {
        "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7,
        "logit_bias": {1: -2.0, 2: 3.0},
    },
]  # fmt: skip
SAMPLINGS = [{}, {"temperature": 0.9, "top_p": 0.9, "min_p": 0.01, "seed": 5}]
penalized = pytest.mark.parametrize("penalties", PENALTIES, ids=str)


def naively(logits, prompt, text, options):
    """The logits behind a text, a token at a time: llama.cpp's penalties, OpenAI's counts."""
    last = options.repeat_last_n
    tokens = [*prompt, *text]
    window = tokens if last in (None, -1) else tokens[len(tokens) - min(last, len(tokens)) :]
    repeated, counted = (tokens, list(text)) if last is None else (window, window)
    found = []
    for token, logit in enumerate(logits[:VOCABULARY]):
        value = np.float32(logit) + np.float32(max(dict(options.logit_bias).get(token, 0), -1e30))
        if token in repeated:
            penalty = np.float32(options.repetition_penalty)
            value = value * penalty if value <= 0 else value / penalty
        times = np.float32(counted.count(token))
        value -= times * np.float32(options.frequency_penalty) + np.float32(times > 0) * np.float32(
            options.presence_penalty
        )
        found.append(value)
    return np.array(found, np.float32)


def text_by_definition(prompt, count, options):
    """A toy's text, with each row penalized by the tokens before it alone."""
    graph = toy_model().graph
    sampler = Sampler(options, VOCABULARY)
    text = []
    for _ in range(count):
        logits = graph.logits(np.array([*prompt, *text]) + 1).astype(np.float32)
        found = naively(logits, prompt, text, options)
        text.append(sampler.choose(found, len(prompt) + len(text)))
    return text


@penalized
@pytest.mark.parametrize("how", SAMPLINGS, ids=["greedy", "sampled"])
def test_a_drafted_text_is_that_of_the_definition(penalties, how):
    engines = [toy_engine(), engine_of(by_model(toy_model(0.05, cost=(0.01, 0.001))))]
    for prompt in ((1,), (4, 4, 2, 4)):
        expected = text_by_definition(prompt, 40, SamplingOptions(**penalties, **how))
        assert tokens_of(plain_engine(), request(prompt, **penalties, **how)) == expected
        for engine in engines:
            assert tokens_of(engine, request(prompt, **penalties, **how)) == expected


@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
    penalties=st.sampled_from(PENALTIES),
    how=st.sampled_from(SAMPLINGS),
    width=st.integers(1, 4),
    noise=st.sampled_from([0.05, 1.0]),
)
def test_trees_of_any_width_change_no_penalized_text(prompt, penalties, how, width, noise):
    asked = {**penalties, **how, "width": width, "n": 24}
    engine = engine_of(by_model(toy_model(noise, cost=(0.01, 0.001))))
    expected = text_by_definition(prompt, 24, SamplingOptions(**penalties, **how))
    assert tokens_of(engine, request(prompt, **asked)) == expected


@given(
    path=st.lists(st.integers(0, VOCABULARY), max_size=30),
    branches=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4),
    penalties=st.sampled_from(PENALTIES),
    at=st.integers(0, 30),
    seed=st.integers(0, 9),
)
def test_each_branch_is_penalized_by_its_own_tokens(path, branches, penalties, at, seed):
    options = SamplingOptions(**penalties)
    prompt = path[:at]
    text = path[at:]
    logits = np.random.default_rng(seed).standard_normal(VOCABULARY + 3).astype(np.float32)
    logits.setflags(write=False)
    made = Penalties(options, VOCABULARY, prompt, {})
    for token in text:
        made.append(token)
    for branch in [*branches, []]:
        with made.behind(branch):
            found = made.penalized(logits)
            # A head may know some of the tokens only, and a draft model others besides.
            tokens = np.array([7, -1, 3, 0, 4])
            some = made.penalized(logits[:5], tokens)
        expected = naively(logits, prompt, [*text, *branch], options)
        assert found[:VOCABULARY].tobytes() == expected.tobytes()
        assert found[VOCABULARY:].tobytes() == logits[VOCABULARY:].tobytes()
        aligned = np.zeros(VOCABULARY, np.float32)
        aligned[tokens] = logits[:5]
        of_some = naively(aligned, prompt, [*text, *branch], options)[tokens]
        of_some[1] = logits[1]
        assert some.tobytes() == of_some.tobytes()


def test_a_draft_knows_what_is_penalized():
    """A draft equal to the target is always right, as it is without penalties."""
    for penalties in PENALTIES:
        twin = engine_of(by_model(toy_model(0.0, cost=(0.01, 0.001))))
        rounds = list(twin.generate(request(**penalties, width=1, max_nodes=3, draft="model")))
        assert all(made.accepted == made.drafted for made in rounds)
        assert len(rounds) < 20


@pytest.mark.parametrize("bias", [3, [1], {"a": 1}, {1.5: 1}, {-1: 1}, {1: math.nan}, {1: "b"}])
def test_a_bias_of_no_tokens_is_refused(bias):
    with pytest.raises(InputError, match="give numbers by token ids"):
        SamplingOptions(logit_bias=bias)


def test_a_bias_is_taken_as_json_writes_it():
    written = SamplingOptions(logit_bias={"3": 2, 4: -math.inf})
    assert written == SamplingOptions(logit_bias=[(3, 2.0), (4, -math.inf)])
    assert hash(written) is not None
