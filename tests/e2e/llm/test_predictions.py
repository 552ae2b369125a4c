"""Predictions never change the text, whatever they say, and save rounds where they are right."""

from __future__ import annotations

import pytest

from edgespec import LLM
from edgespec.errors import InputError

PROMPT = 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n'
NEW_TOKENS = 120
SOURCES = ("auto", "model", "lookup", "recycling")
FIELDS = ({}, {"temperature": 1.0, "seed": 3})


def changed(tokens):
    """The text with every twentieth token replaced, left out or doubled."""
    for place, token in enumerate(tokens):
        kind = place // 20 % 3 if place % 20 == 10 else None
        yield from {None: [token], 0: [token + 1], 1: [], 2: [token, token]}[kind]


PREDICTIONS = {
    "perfect": lambda plain: plain.text,
    "by ids": lambda plain: plain.tokens,
    "wrong": lambda plain: "The quick brown fox jumps over the lazy dog.\n" * 5,
    "shifted": lambda plain: "import math\n\n\n" + plain.text,
    "begun late": lambda plain: plain.text[len(plain.text) // 3 :],
    "repeated": lambda plain: plain.tokens[:30] * 9,
    "partly edited": lambda plain: list(changed(plain.tokens)),
    "one token": lambda plain: plain.tokens[:1],
    "longer than the context": lambda plain: plain.tokens * 40,
}


@pytest.fixture(scope="module")
def llm():
    return LLM(threads=1)


@pytest.fixture(scope="module")
def plain(llm):
    """Plain decoding's texts by the index of their fields."""
    made = [
        llm.generate(PROMPT, max_new_tokens=NEW_TOKENS, draft_source="none", **fields)
        for fields in FIELDS
    ]
    assert all(result.drafted == 0 for result in made)
    return made


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("source", SOURCES)
def test_the_text_is_that_of_plain_decoding(llm, plain, source, prediction):
    for fields, expected in zip(FIELDS, plain, strict=True):
        given = PREDICTIONS[prediction](expected)
        result = llm.generate(
            PROMPT, max_new_tokens=NEW_TOKENS, draft_source=source, prediction=given, **fields
        )
        assert result.tokens == expected.tokens
        assert result.text == expected.text
        if prediction in ("perfect", "by ids", "partly edited", "longer than the context"):
            assert any("prediction" in name for name in result.sources)
            assert result.rounds < NEW_TOKENS / 2


def test_the_planner_drafts_far_from_a_prediction(llm, plain):
    result = llm.generate(PROMPT, max_new_tokens=NEW_TOKENS, prediction=plain[0].tokens)
    assert result.tokens == plain[0].tokens
    assert result.rounds <= NEW_TOKENS / 5


def test_after_an_edit_the_draft_goes_on_behind_it(llm, plain):
    tokens = plain[0].tokens
    removed = [*tokens[:30], *tokens[60:]]
    inserted = [*tokens[:30], *range(50), *tokens[30:]]
    for prediction in (removed, inserted):
        result = llm.generate(
            PROMPT,
            max_new_tokens=NEW_TOKENS,
            draft_source="lookup",
            num_assistant_tokens=15,
            prediction=prediction,
        )
        assert result.tokens == tokens
        assert result.sources["prediction"] >= 5
        assert result.rounds < (NEW_TOKENS - 30) / 2


def test_accepted_and_rejected_tokens_follow_from_the_texts(llm, plain):
    tokens = plain[0].tokens
    for prediction, accepted in (
        (tokens, len(tokens)),
        ([*tokens[:40], *[tokens[40] + 1] * 7], 40),
        ([token for token in range(300) if token not in tokens], 0),
    ):
        for source in ("auto", "lookup"):
            result = llm.generate(
                PROMPT, max_new_tokens=NEW_TOKENS, draft_source=source, prediction=prediction
            )
            found = result.accepted_prediction_tokens, result.rejected_prediction_tokens
            assert found == (accepted, len(prediction) - accepted)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prediction": None},
        {"prediction": ""},
        {"prediction": []},
        {"prediction": "x = 1", "draft_source": "none"},
        {"prediction": "x = 1", "num_assistant_tokens": 0},
    ],
    ids=str,
)
def test_without_a_prediction_in_use_nothing_is_counted(llm, options):
    result = llm.generate(PROMPT, max_new_tokens=4, **options)
    assert result.accepted_prediction_tokens is result.rejected_prediction_tokens is None


def test_a_model_that_was_loaded_without_drafts_uses_no_prediction(plain):
    with LLM(draft="none", threads=1) as llm:
        result = llm.generate(PROMPT, max_new_tokens=NEW_TOKENS, prediction=plain[0].text)
    assert (result.tokens, result.drafted) == (plain[0].tokens, 0)
    assert result.accepted_prediction_tokens is None


def test_a_grammar_holds_beside_a_prediction(llm):
    options = {"json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 9}}
    plain = llm.generate(PROMPT, draft_source="none", max_new_tokens=60, **options)
    for source in ("auto", "lookup"):
        for prediction in (plain.text, "def no_json(): pass\n" * 3):
            result = llm.generate(
                PROMPT, draft_source=source, max_new_tokens=60, prediction=prediction, **options
            )
            assert result.tokens == plain.tokens


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        (7, "prediction is 7: give a text, or token ids in one flat list"),
        (b"abc", "prediction is b'abc', which is not text"),
        ([[1, 2]], r"prediction is \[\[1, 2\]\]: give a text"),
        ([1.5], "prediction is"),
        ([-1], "token id -1 is not in the vocabulary"),
        ([1 << 40], "token id 1099511627776 is not"),
        ("\ud800", "not valid Unicode"),
    ],
    ids=str,
)
@pytest.mark.parametrize("source", ["auto", "none"])
def test_what_is_no_text_is_refused(llm, source, prediction, message):
    with pytest.raises(InputError, match=message):
        llm.generate(PROMPT, prediction=prediction, draft_source=source)
