"""Ollama's API: tools and reasoning."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from chats import TOOLS, template
from pairs import with_eos
from servers import MODEL, PLACE, make_bundle, serving

from edgespec import LLM
from edgespec.runtime.text.decoder import CallEvent
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.serve.parts import Part
from edgespec.serve.protocols.ollama.answers import OllamaChatAnswer
from edgespec.serve.protocols.ollama.messages import OllamaMessage, plain
from edgespec.serve.protocols.ollama.requests import OllamaChatRequest
from edgespec.serve.protocols.protocol import Origin

USER = {"role": "user", "content": "hello"}
CALL = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """A model whose reasoning the prompt begins if it is switched on, and whose text can end."""
    source = template("hermes") + "{{ '</think>' if 0 }}{% if enable_thinking %}<think>{% endif %}"
    folder = tmp_path_factory.mktemp("tools")
    path = with_eos(make_bundle(folder, source), folder / "ending", 0)
    with LLM(path, draft="lookup", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm) as running:
        yield running


def chat(running, **fields):
    body = {"model": MODEL, "messages": [USER], "options": {"temperature": 0, "num_predict": 30}}
    response = running.post({**body, **fields}, "/api/chat")
    assert response.status_code == 200, response.text
    return [json.loads(line)["message"] for line in response.text.splitlines()]


def test_tools_are_in_the_prompt(running, llm):
    body = {"model": MODEL, "messages": [USER], "tools": TOOLS, "stream": False}
    given = running.post({**body, "options": {"num_predict": 1}}, "/api/chat").json()
    without = running.post({**body, "tools": [], "options": {"num_predict": 1}}, "/api/chat").json()
    assert given["prompt_eval_count"] > without["prompt_eval_count"] + 50


def test_a_conversation_with_calls_goes_on(running):
    messages = [
        USER,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
    ]
    [whole] = chat(running, messages=messages, tools=TOOLS, stream=False)
    assert whole["role"] == "assistant"


def test_templates_are_told_how_much_to_think(llm):
    def told(think):
        body = OllamaChatRequest(model=MODEL, messages=[USER], think=think)
        return body.request(llm).options.template_options

    assert told("high") == {"reasoning_effort": "high"}
    assert told("none") == {"reasoning_effort": "none", "enable_thinking": False}
    assert told(True) == {"enable_thinking": True}
    assert told(None) == {}


def test_results_belong_to_their_calls():
    clock = {"function": {"name": "clock"}}
    rome = json.dumps(CALL["function"]["arguments"])
    messages = [
        {"role": "assistant", "thinking": "hm", "tool_calls": [CALL, CALL, clock]},
        {"role": "tool", "tool_name": "clock", "content": "noon"},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "tool_name": "get_weather", "content": "rainy"},
        {"role": "assistant", "tool_calls": [{"id": "mine", **clock}]},
        {"role": "tool", "tool_call_id": "mine", "content": "one"},
        {"role": "tool", "tool_name": "other", "content": "lost"},
    ]
    made = plain([OllamaMessage(**message) for message in messages])
    assert made[0]["reasoning_content"] == "hm"
    calls = {call["id"]: call["function"] for call in made[0]["tool_calls"]}
    assert [*calls.values()] == [
        {"name": "get_weather", "arguments": rome},
        {"name": "get_weather", "arguments": rome},
        {"name": "clock", "arguments": "{}"},
    ]
    first, second, third = calls
    assert all(len(each) == 9 and each.isalnum() for each in calls)
    ids = [message.get("tool_call_id") for message in made if message["role"] == "tool"]
    assert ids == [third, first, second, "mine", None]


def test_calls_come_whole(llm):
    """A model of random weights never begins one, so the result is made up."""
    made = llm.generate("x", max_new_tokens=2)
    calls = (ToolCall("a1", "get_weather", '{"city": "Rome"}'), ToolCall("b2", "clock", "{}"))
    result = replace(made, text="Well.", finish_reason="tool_calls", tool_calls=calls)
    origin = Origin.of(MODEL, llm.bundle, llm.tokenizer)
    answer = OllamaChatAnswer(OllamaChatRequest(model=MODEL), origin)
    assert answer.part(Part("", (), (), calls=(CallEvent(0, "{"),))) == []
    expected = [
        {
            "id": "a1",
            "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Rome"}},
        },
        {"id": "b2", "function": {"index": 1, "name": "clock", "arguments": {}}},
    ]
    whole = answer.whole([result])
    assert whole["message"]["tool_calls"] == expected
    assert (whole["message"]["content"], whole["done_reason"]) == ("Well.", "stop")
    told, last = answer.closing([result])
    assert (told["message"]["tool_calls"], told["done"]) == (expected, False)
    assert "tool_calls" not in last["message"]
    assert last["done"] is True


def test_functions_are_tools_of_ollamas_client(running):
    ollama = pytest.importorskip("ollama")

    def add(a: int, b: int = 1) -> int:
        """Adds two numbers.

        Args:
            a: one of them
            b: the other
        """
        return a + b

    client = ollama.Client(running.url)
    options = {"temperature": 0, "num_predict": 9}
    with_tool = client.chat(MODEL, [USER], tools=[add], think=True, options=options)
    assert with_tool.message.thinking
    without = client.chat(MODEL, [USER], options=options)
    assert with_tool.prompt_eval_count > without.prompt_eval_count + 50
    message = ollama.Message(role="assistant", tool_calls=[ollama.Message.ToolCall(**CALL)])
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
    given = client.chat(MODEL, [USER, message, result], tools=[add], options=options)
    assert given.eval_count == 9
