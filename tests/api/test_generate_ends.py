"""Where a text ends: at a token, a length, the context or a string, the same for every draft."""

from __future__ import annotations

import itertools

import pytest
from drafts import SIZES, adds_up, engines
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS, with_eos

from edgespec import LLM
from edgespec.api import texts as texts_module
from edgespec.errors import ContextLengthError


@pytest.fixture(scope="module")
def stopping(pairs, tmp_path_factory):
    """Bundles with two ends of text, which come up after some 60 tokens."""
    expected = pairs.greedy("twin")
    [last] = [t for t in expected[60:] if t not in expected[:60]][:1]
    length = expected.index(last) + 1
    never = next(t for t in range(331) if t not in expected)
    folder = tmp_path_factory.mktemp("eos")
    made = {}
    for ids in ((last,), (never, last), (last, never)):
        made[ids] = with_eos(pairs.pair("twin").path, folder / f"eos{len(made)}", *ids)
    return made, expected[:length]


@pytest.mark.slow
@pytest.mark.parametrize("draft", SIZES)
def test_each_end_of_text_token_ends_it(stopping, draft, monkeypatch):
    monkeypatch.setattr(texts_module, "_FIXED_LEAST_GAIN", 0.0)
    bundles, expected = stopping
    assert 60 < len(expected) < NEW_TOKENS
    for path in bundles.values():
        llm = LLM(path, device=ENGINES[0], draft_device=ENGINES[0], draft=draft, threads=1)
        inside = 0
        for nodes in (1, 2, 3, 4, 5, 6, 7):
            result = llm.generate(
                LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=1
            )
            assert result.tokens == expected
            assert result.finish_reason == "stop"
            # No free token follows an end that was in the tree.
            free = result.new_tokens - 1 - result.accepted
            assert free in (result.rounds, result.rounds - 1)
            inside += free < result.rounds
        assert inside or draft != "model"


@pytest.mark.parametrize("draft", SIZES)
def test_one_token(pairs, draft):
    result = pairs.llm("llama", ENGINES[0], draft).generate(LONG_PROMPT, max_new_tokens=1)
    assert result.tokens == pairs.greedy("llama")[:1]
    assert result.finish_reason == "length"
    assert (result.rounds, result.drafted, result.mean_accepted_length) == (0, 0, 0.0)
    assert (result.tpot_ms, result.tokens_per_second) == (0.0, 0.0)
    assert result.ttft_ms > 0


@pytest.mark.slow
@engines
@pytest.mark.parametrize("draft", SIZES)
def test_the_context_ends_a_text(pairs, engine, draft):
    expected = pairs.greedy("twin")
    ids = pairs.llm("twin", ENGINES[0], "none").tokenizer.encode(LONG_PROMPT)
    for left in (1, 2, 3, 9, 30):
        llm = pairs.llm("twin", engine, draft, context=len(ids) + left)
        for nodes, width in ((7, 4), (16, 1)):
            result = llm.generate(
                LONG_PROMPT, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes, tree_width=width
            )
            assert result.tokens == expected[:left]
            assert result.finish_reason == "context"
            assert adds_up(result)
    assert llm.generate(LONG_PROMPT, max_new_tokens=30).finish_reason == "length"


def test_the_models_own_context_is_used_to_its_end(pairs):
    texts = []
    for draft in ("none", "model", "lookup"):
        llm = pairs.llm("twin", ENGINES[0], draft)
        assert llm.context_length == 512
        result = llm.generate([*range(20, 220), *range(20, 220)], max_new_tokens=10_000)
        assert result.finish_reason == "context"
        assert result.new_tokens == 112
        texts.append(result.tokens)
    assert texts[0] == texts[1] == texts[2]


def test_prompts_that_do_not_fit(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model", context=20)
    assert llm.generate([5] * 19, max_new_tokens=9).finish_reason == "context"
    for length in (20, 21, 600):
        with pytest.raises(ContextLengthError, match=f"{length} tokens .* context length of 20"):
            llm.generate([5] * length)


@pytest.mark.parametrize("draft", ["model", "lookup"])
@pytest.mark.parametrize("fields", [{}, {"temperature": 2.5, "seed": 4}], ids=str)
def test_stop_strings_end_it_wherever_tokens_begin(pairs, draft, fields):
    plain = pairs.llm("twin", ENGINES[0], "none")
    llm = pairs.llm("twin", ENGINES[0], draft)
    whole = plain.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    borders = set(
        itertools.accumulate(len(plain.tokenizer.decode([token])) for token in whole.tokens)
    )
    across = 0
    for start in range(3, len(whole.text) - 4, 17):
        stop = whole.text[start : start + 4]
        options = {"max_new_tokens": NEW_TOKENS, "stop": ("never there", stop), **fields}
        expected = plain.generate(LONG_PROMPT, **options)
        assert expected.text == whole.text[: whole.text.find(stop)]
        assert expected.finish_reason == "stop"
        assert expected.tokens == whole.tokens[: expected.new_tokens]
        result = llm.generate(LONG_PROMPT, **options)
        assert (result.text, result.tokens) == (expected.text, expected.tokens)
        assert result.finish_reason == "stop"
        assert result.new_tokens == len(result.tokens)
        # What is behind the stop string in the last round became no text.
        assert result.accepted < result.new_tokens
        assert result.mean_accepted_length * result.rounds == pytest.approx(
            result.new_tokens - 1, abs=1e-3 * result.rounds
        )
        across += not borders.isdisjoint(range(start + 1, start + 4))
    assert across
