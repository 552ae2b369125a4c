"""What every route of the server replies, to the letter; see `golden.py`.

What differs from one start to the next, such as times and identifiers, is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from chats import FORMS, TOOLS
from golden import golden_file, shipped_bundle
from native_llms import with_library
from servers import serving

from edgespec import LLM

pytestmark = with_library

FILE = Path(__file__).parent / "replies.json"
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{'name': , \"arguments\": }{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>\n{% endif %}"
    "{% endif %}{# </think> #}"
)

CODE = {"prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 0}
CHAT = {
    "messages": [{"role": "user", "content": "def add(a, b):"}],
    "max_tokens": 12,
    "temperature": 0,
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
NAMED = {"type": "function", "function": {"name": "clock"}}
CALLED = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "clock", "arguments": "{}"},
}
ANSWERED = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Noon."},
]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
RESPONSE = {"input": "def add(a, b):", "max_output_tokens": 12, "temperature": 0}
OLLAMA = {"model": "tiny", "options": {"temperature": 0, "num_predict": 12}}
ASKED = {**OLLAMA, "messages": CHAT["messages"]}
INFILL = {"input_prefix": "def f(x):\n    return", "input_suffix": "\n", "n_predict": 8}

POSTS = {
    "completion": ("/v1/completions", CODE),
    "completion, streamed": ("/v1/completions", {**CODE, "stream": True}),
    "completion, streamed, usage": (
        "/v1/completions",
        {**CODE, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "completion, several": ("/v1/completions", {**CODE, "prompt": ["def a(", "def b("], "n": 2}),
    "completion, sampled": (
        "/v1/completions",
        {**CODE, "temperature": 0.8, "top_p": 0.9, "seed": 3},
    ),
    "completion, log-probabilities": ("/v1/completions", {**CODE, "max_tokens": 3, "logprobs": 2}),
    "completion, stop": ("/v1/completions", {**CODE, "stop": ["return"]}),
    "completion, grammar": ("/v1/completions", {**CODE, "grammar": 'start: "yes" | "no"'}),
    "completion, ids": ("/v1/completions", {**CODE, "prompt": [70, 71, 72]}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat, streamed": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "chat, schema": (
        "/v1/chat/completions",
        {
            **CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            },
        },
    ),
    "chat, log-probabilities": (
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
    ),
    "chat, named tool": (
        "/v1/chat/completions",
        {**CHAT, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60},
    ),
    "chat, named tool, streamed": (
        "/v1/chat/completions",
        {**CHAT, "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 60, "stream": True},
    ),
    "chat, after a call": (
        "/v1/chat/completions",
        {**CHAT, "messages": ANSWERED, "tools": TOOLS, "tool_choice": "none"},
    ),
    "chat, reasoning": (
        "/v1/chat/completions",
        {**CHAT, "chat_template_kwargs": {"enable_thinking": True}, "thinking_budget": 4},
    ),
    "response": ("/v1/responses", RESPONSE),
    "response, streamed": ("/v1/responses", {**RESPONSE, "stream": True}),
    "response, named tool": (
        "/v1/responses",
        {
            **RESPONSE,
            "tools": FLAT_TOOLS,
            "tool_choice": {"type": "function", "name": "clock"},
            "max_output_tokens": 60,
        },
    ),
    "response, named tool, streamed": (
        "/v1/responses",
        {
            **RESPONSE,
            "tools": FLAT_TOOLS,
            "tool_choice": {"type": "function", "name": "clock"},
            "max_output_tokens": 60,
            "stream": True,
        },
    ),
    "infill": ("/infill", {**INFILL, "temperature": 0}),
    "tokens": ("/tokenize", {"content": "def f():", "with_pieces": True}),
    "text of tokens": ("/detokenize", {"tokens": [70, 71, 72]}),
    "markdown": ("/render", {"text": "# a\n\n```python\nx = 1\n```\n"}),
    "vectors of a model that makes none": ("/v1/embeddings", {"input": "a"}),
    "ollama, chat": ("/api/chat", {**ASKED, "stream": False}),
    "ollama, chat, streamed": ("/api/chat", ASKED),
    "ollama, chat, schema": ("/api/chat", {**ASKED, "stream": False, "format": SCHEMA}),
    "ollama, chat, tools": ("/api/chat", {**ASKED, "stream": False, "tools": TOOLS}),
    "ollama, generate": ("/api/generate", {**OLLAMA, "prompt": "def f(", "stream": False}),
    "ollama, generate, streamed": ("/api/generate", {**OLLAMA, "prompt": "def f(", "raw": True}),
    "ollama, show": ("/api/show", {"model": "tiny"}),
    "no JSON": ("/v1/completions", b"{"),
    "no object": ("/v1/chat/completions", b"[]"),
    "no prompt": ("/v1/completions", {}),
    "another model": ("/v1/completions", {**CODE, "model": "other"}),
    "temperature below zero": ("/v1/completions", {**CODE, "temperature": -1}),
    "context exceeded": ("/v1/completions", {**CODE, "prompt": "a b " * 2000}),
    "schema that is none": (
        "/v1/chat/completions",
        {
            **CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "none"}},
            },
        },
    ),
    "ollama, another model": ("/api/chat", {**ASKED, "model": "other"}),
}
GETS = ("/health", "/v1/models", "/v1/models/tiny", "/api/tags", "/api/ps", "/api/version", "/none")

# What differs between starts and machines, by name, in JSON as in events of a stream.
_CHANGING = (
    "id|item_id|call_id|created|created_at|completed_at|modified_at|expires_at|digest|seed|size|"
    "system_fingerprint|version|total_duration|load_duration|prompt_eval_duration|eval_duration|"
    r"ttft_ms|prompt_ms|predicted_ms|\w+_per_token_ms|\w+_per_second"
)
_CHANGED = re.compile(rf'"({_CHANGING})": ?("[^"]*"|[-\d.e+]+)')
_LONG_FLOAT = re.compile(r"-?\d+\.\d{4,}(?:e-?\d+)?")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """A model without drafts, whose texts come token by token."""
    path = shipped_bundle(tmp_path_factory.mktemp("golden"), TEMPLATE)
    with LLM(path, draft="none", threads=1, context=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm):
    with serving(llm) as running:
        yield running


@pytest.fixture(scope="module")
def check():
    with golden_file(Path(__file__).parent / "replies.json") as check:
        yield check


def unchanging(reply: httpx.Response) -> dict[str, object]:
    """What a reply says in every start: its status, type and lines."""
    text = _CHANGED.sub(r'"\1": …', reply.text)
    text = _LONG_FLOAT.sub(lambda found: f"{float(found[0]):.3g}", text)
    kind = reply.headers.get("content-type", "")
    return {"status": reply.status_code, "type": kind, "lines": text.splitlines()}


@pytest.mark.parametrize("name", POSTS)
def test_replies(llm, server, check, name):
    path, body = POSTS[name]
    llm.forget()  # else prompts of earlier tests would count as cached
    check(f"POST {path}: {name}", unchanging(server.post(body, path)))


@pytest.mark.parametrize("path", GETS)
def test_what_is_told(server, check, path):
    check(f"GET {path}", unchanging(httpx.get(server.url + path)))


def test_the_template_is_of_a_known_form():
    """Else no reply would have a call."""
    assert FORMS["hermes"].template.split("%}")[1].split("<")[0] in TEMPLATE
