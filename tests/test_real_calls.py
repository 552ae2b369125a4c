"""A real code model calls tools: `EDGESPEC_REAL_MODELS` names a folder with `qwen-coder-0.5b`.

That is Qwen2.5-Coder-0.5B-Instruct as transformers would save it, which leaves out the marks of
calls that its chat template asks for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from edgespec import LLM

CHECKPOINT = Path(os.environ.get("EDGESPEC_REAL_MODELS", ""), "qwen-coder-0.5b")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "EDGESPEC_REAL_MODELS" not in os.environ or not CHECKPOINT.is_dir(),
        reason="EDGESPEC_REAL_MODELS names no folder with qwen-coder-0.5b",
    ),
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    from edgespec.cli import main

    path = tmp_path_factory.mktemp("real") / "bundle"
    assert main(["export", str(CHECKPOINT), "-o", str(path), "--precision", "int8"]) == 0
    place = {"device": "onnxruntime:cpu", "threads": 2, "context": 1024}
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
