"""Texts by llama.cpp's samplers are those of plain decoding, whatever drafts and however wide."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from engines import (
    by_model,
    engine_of,
    on_last_tokens,
    plain_engine,
    request,
    tokens_of,
    toy_engine,
)
from hypothesis import given
from hypothesis import strategies as st
from toys import VOCABULARY, toy_model

DRY = {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_base": 2.0}
PARTS = [
    {},
    DRY,
    {**DRY, "dry_penalty_last_n": 9, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"typical_p": 0.6},
    {"top_n_sigma": 1.5},
    {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.3},
    {"mirostat": 2, "mirostat_tau": 2.0},
    {"top_k": 12, "top_p": 0.9, "min_p": 0.02},
]
BREAKERS = {5: [()], 7: [(3,), (4, 5)]}


@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=3),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
    temperature=st.sampled_from([0.0, 0.9, 1.4]),
    width=st.integers(1, 4),
    noise=st.sampled_from([0.05, 1.0]),
    seed=st.integers(0, 99),
)
def test_drafts_never_change_the_tokens(parts, prompt, temperature, width, noise, seed):
    how = {"temperature": temperature, "seed": seed, "n": 24}
    for part in parts:
        how |= part

    def text(engine, **further):
        return tokens_of(engine, replace(request(prompt, **how, **further), breakers=BREAKERS))

    engine = engine_of(by_model(toy_model(noise, cost=(0.01, 0.001))))
    assert text(engine, width=width) == text(plain_engine())


@pytest.mark.parametrize("how", PARTS[1:], ids=str)
def test_nor_do_those_of_all_sources_in_a_text_that_repeats_itself(how):
    engines = [plain_engine(), toy_engine()]
    for engine in engines:
        engine.target.graph.logits = on_last_tokens(1)
    asked = request(tuple(range(9)) * 3, 60, temperature=0.9, seed=2, **how)
    plain, drafted = (tokens_of(engine, replace(asked, breakers=BREAKERS)) for engine in engines)
    assert drafted == plain


def test_a_draft_knows_what_is_left_out_and_what_repeats():
    """A draft equal to the target is always right about what it looks at."""
    for how in (DRY, {"temperature": 1.0, "seed": 3, "xtc_probability": 0.5}):
        twin = engine_of(by_model(toy_model(0.0, cost=(0.01, 0.001))))
        rounds = list(twin.generate(request(**how, width=1, max_nodes=3, draft="model")))
        assert all(made.accepted == made.drafted for made in rounds)
        assert len(rounds) < 20


def test_repetitions_end():
    engine = plain_engine()
    engine.target.graph.logits = on_last_tokens(1)
    looping = tokens_of(engine, request(n=60))
    ending = tokens_of(engine, request(n=60, **DRY))
    pairs = [list(pairwise(text)) for text in (looping, ending)]
    assert max(map(pairs[0].count, pairs[0])) > 5
    assert max(map(pairs[1].count, pairs[1])) <= 5
