"""A real code model: `EDGESPEC_REAL_MODELS` names a folder with `qwen-coder-0.5b`.

That is Qwen2.5-Coder-0.5B-Instruct as transformers would save it. Only a trained model shows that
its prompt at a cursor has the form that it knows, and leaves out the marks of calls that its chat
template asks for.
"""

from __future__ import annotations

from typing import Literal

import httpx
import pytest
from native_llms import with_library
from real import FOLDER, needs
from servers import serving

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.runtime.text.infill import InfillFormat
from edgespec.runtime.text.tokenizer import Tokenizer

CODER, CHAT = "qwen-coder-0.5b", "smollm2-135m"
BEFORE = (
    "def test_add():\n    assert add(2, 3) == 5\n\n\n"
    'def add(first, second):\n    """Return the sum of both."""\n    return '
)
BEHIND = '\n\n\nif __name__ == "__main__":\n    test_add()\n'

pytestmark = [pytest.mark.slow, needs(CODER), with_library]


@pytest.fixture(scope="module")
def llm(real_bundle):
    with LLM(real_bundle(CODER, "--precision", "int8"), threads=2, context=1024) as llm:
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


def test_a_call_that_is_required_comes_once(llm):
    for choice in ("required", "get_weather"):
        result = asked(llm, "What is the weather in Rome?", tool_choice=choice)
        [call] = result.tool_calls
        assert call.arguments["city"] == "Rome"
        assert (result.text, result.finish_reason) == ("", "tool_calls")
        plain = asked(llm, "What is the weather in Rome?", tool_choice=choice, draft_source="none")
        assert plain.tokens == result.tokens


def test_it_answers_in_text_where_it_calls_nothing(llm):
    result = asked(llm, "What is 2 + 2? Answer with the number only.")
    assert (result.text.strip(), result.tool_calls) == ("4", ())


def test_its_prompt_is_that_of_its_model_card():
    tokenizer = Tokenizer.from_folder(FOLDER / CODER)
    files = [("a.py", "x = 1\n"), ("b.py", "y = 2\n")]
    written = (
        "<|repo_name|>project\n<|file_sep|>a.py\nx = 1\n<|file_sep|>b.py\ny = 2\n"
        f"<|file_sep|>filename\n<|fim_prefix|>{BEFORE}<|fim_suffix|>{BEHIND}<|fim_middle|>"
    )
    prompt = InfillFormat(tokenizer).prompt(BEFORE, BEHIND, files, 1000)
    assert prompt.tokens == tokenizer.encode(written, add_special=False)
    ends = {tokenizer.decode([token], skip_special=False) for token in prompt.stop_ids}
    assert {"<|endoftext|>", "<|im_end|>", "<|file_sep|>", "<|fim_pad|>"} <= ends


@needs(CHAT)
def test_a_chat_model_without_the_tokens_is_refused():
    with pytest.raises(InputError, match="cannot fill in text"):
        InfillFormat(Tokenizer.from_folder(FOLDER / CHAT))


def test_it_writes_what_belongs_between(llm):
    found = llm.infill(BEFORE, BEHIND, max_new_tokens=32)
    assert found.text.strip() == "first + second"
    assert found.finish_reason == "stop"
    plain = llm.infill(BEFORE, BEHIND, max_new_tokens=32, draft_source="none")
    assert plain.tokens == found.tokens


def test_it_reads_other_files(llm):
    files = [("shapes.py", "def circumference_of_circle(radius):\n    return 6.28 * radius\n")]
    found = llm.infill("import shapes\n\nprint(shapes.", "(3))\n", files, max_new_tokens=12)
    assert found.text.startswith("circumference_of_circle")


def test_an_editor_gets_it_and_reads_what_is_new_only(llm):
    llm.forget()
    body = {
        "input_prefix": "",
        "input_suffix": BEHIND,
        "n_predict": 32,
        "n_indent": 4,
        "prompt_cache_key": "editor",
        "samplers": ["top_k", "top_p", "infill"],
        "t_max_predict_ms": 60_000,
    }
    with serving(llm) as running:
        first, second = (
            httpx.post(f"{running.url}/infill", json={**body, "prompt": prompt}, timeout=300).json()
            for prompt in (BEFORE, BEFORE + "fir")
        )
    assert first["content"].strip() == "first + second"
    assert second["content"].strip().endswith(" + second")  # of a name that begins with "fir"
    assert first["stop_type"] == second["stop_type"] == "eos"
    assert second["timings"]["prompt_n"] < 24 < second["tokens_cached"]
