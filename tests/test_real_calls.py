"""A real code model calls tools: `EDGESPEC_REAL_MODELS` names a folder with `qwen-coder-0.5b`.

That is Qwen2.5-Coder-0.5B-Instruct as transformers would save it, which leaves out the marks of
calls that its chat template asks for.
"""

from __future__ import annotations

from typing import Literal

import pytest
from real import export, needs

from edgespec import LLM

CODER = "qwen-coder-0.5b"

pytestmark = [
    pytest.mark.slow,
    needs(CODER),
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = export(CODER, tmp_path_factory.mktemp("real"), "--precision", "int8")
    place = {"device": "cpu", "threads": 2, "context": 1024}
    with LLM(path, draft="lookup", **place) as llm:
        yield llm


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Tells the current weather of a city."""
    return f"{city}, {unit}"


def asked(llm, text, **options):
    messages = [{"role": "user", "content": text}]
    return llm.chat(messages, tools=[get_weather], max_new_tokens=100, **options)


def test_it_calls_without_marks(llm):
    result = asked(llm, "What is the weather in Rome?")
    assert "<tool_call>" not in llm.tokenizer.decode(result.tokens, skip_special=False)
    assert (result.text, result.finish_reason) == ("", "tool_calls")
    call = result.tool_calls[0]
    assert call.name == "get_weather"
    assert get_weather(**call.arguments).startswith("Rome, ")
    plain = asked(llm, "What is the weather in Rome?", draft_source="none")
    assert plain.tokens == result.tokens


def test_it_answers_in_text_where_it_calls_nothing(llm):
    result = asked(llm, "What is 2 + 2? Answer with the number only.")
    assert (result.text.strip(), result.tool_calls) == ("4", ())
