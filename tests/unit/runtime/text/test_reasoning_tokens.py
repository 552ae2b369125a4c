"""The number of tokens that an answer spends on reasoning."""

from __future__ import annotations

import pytest

from edgespec.runtime.text.answers import AnswerParser
from edgespec.runtime.text.thinking import thinking_form

THINK, HARMONY = "</think>", "<|channel|>analysis"
TAGS = ("<|channel|>", "analysis", "<|message|>", "<|end|>", "<|start|>", "assistant", "final")
CHANNEL, ANALYSIS, MESSAGE, END, START, ASSISTANT, FINAL = TAGS


def count(form, tokens, inside=False):
    parser = AnswerParser(thinking_form(form), None, inside)
    for token in tokens:
        parser.push(token, 1)
    parser.finish()
    return parser.reasoning_tokens


@pytest.mark.parametrize(
    ("tokens", "inside", "expected"),
    [
        (["Hi", "."], False, 0),
        (["<think>", "</think>", "Hi"], False, 0),
        (["<think>", "Let", " me", "</think>", "Hi"], False, 2),
        (["Let", " me", "</think>", "Hi", " you"], True, 2),
        # White space before reasoning was made for it; what is before the mark is the mark's.
        (["<think>", "\n", "Let", " me", "\n", "</think>", "\n\n", "Hi"], False, 3),
        # Marks in several tokens, and a token that only looks like the beginning of one.
        (["<th", "ink>", "Let", " <", "b", "</", "thi", "nk>", "Hi"], False, 3),
        # A mark and reasoning in one token.
        (["<think>Let", " me", ".</think>", "Hi"], False, 3),
        # Characters in several tokens: the first ones have no text yet.
        (["<think>", "", "", "\u2014", "so", "</think>"], False, 4),
        # An answer that was cut.
        (["<think>", "Let", " <"], False, 2),
    ],
)  # fmt: skip
def test_marks_do_not_count(tokens, inside, expected):
    assert count(THINK, tokens, inside) == expected


def test_channels_are_marks_too():
    tokens = [
        CHANNEL,
        ANALYSIS,
        MESSAGE,
        "One",
        ".",
        END,
        START,
        ASSISTANT,
        CHANNEL,
        FINAL,
        MESSAGE,
        "Two",
        ".",
        END,
    ]
    assert count(HARMONY, tokens) == 2
