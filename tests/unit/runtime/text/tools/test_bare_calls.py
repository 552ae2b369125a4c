"""Calls that begin an answer without the marks of their form, and text that only looks alike."""

from __future__ import annotations

import json

import jsonschema
import pytest
from chats import FORMS, TOOLS, WEATHER, Answer, Chat, template
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROME = ("get_weather", {"city": "Rome", "days": 2})
CALL = '{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}'
PRETTY = json.dumps(json.loads(CALL), indent=2)
CLOCK_CALL = '{"name":"clock","arguments":{}}'
CALLS = {
    "alone": CALL,
    "compact": json.dumps(json.loads(CALL), separators=(",", ":")),
    "pretty": f"\n{PRETTY}\n",
    "fence": f"```json\n{PRETTY}\n```",
    "plain fence": f"```\n{CALL}\n```\n",
    "tools": f"<tools>\n{CALL}\n</tools>",
    "braces": f"{{{CALL}}}",
}
TEXTS = [
    '{"name": "get_wind", "arguments": {"city": "Rome"}}',
    '{"name": "get_weather", "arguments": "none"}',
    '{"name": "get_weather"}',
    '{"city": "Rome"}',
    '[{"name": "get_weather", "arguments": {}}]',
    '```json\n{"name": "clocks", "arguments": {}}\n```',
    "```python\nprint(1)\n```",
    "```",
    "<tools>",
    "<tools> are few.",
    f"The call is {CALL}.",
    "{",
    "{{",
    "{{ name }} is called",
    "\n\n  ",
    "{'name': 'clock', 'arguments': {}}",
]


@pytest.fixture(scope="module", params=["hermes", "mistral list", "phi", "granite"])
def chat(request, tmp_path_factory):
    form = FORMS[request.param]
    return Chat(tmp_path_factory.mktemp("bare"), template(request.param), form.tokens)


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    return Chat(tmp_path_factory.mktemp("hermes"), template("hermes"), FORMS["hermes"].tokens)


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_a_call_alone_is_a_call(chat, text):
    assert chat.accepted(text, tools=TOOLS) == (text, True)
    piece, calls = chat.read(text, tools=TOOLS)
    assert calls == [ROME]
    assert piece.text == ""
    first, *rest = piece.calls
    assert (first.index, first.name, len(first.id)) == (0, "get_weather", 9)
    assert not any(each.name or each.id for each in rest)
    assert json.loads("".join(each.arguments for each in piece.calls)) == ROME[1]


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_a_call_is_read_however_it_is_cut(hermes, text):
    whole, _ = hermes.read(text, len(text), tools=TOOLS)
    for cut in range(1, len(text)):
        parser = hermes.ask(tools=TOOLS).parser
        events = [*parser.push(text[:cut]), *parser.push(text[cut:]), *parser.finish()]
        piece = Answer.of(events)
        assert [(call.name, call.arguments) for call in parser.calls] == [ROME]
        assert piece.text == whole.text == ""


@pytest.mark.parametrize("text", TEXTS)
def test_other_text_is_free(chat, text):
    assert chat.accepted(text, tools=TOOLS) == (text, True)
    for size in (1, 2, 5, 1000):
        assert chat.read(text, size, tools=TOOLS) == (Answer(text), [])


@pytest.mark.parametrize("text", TEXTS)
def test_other_text_is_whole_however_it_is_cut(hermes, text):
    for cut in range(1, len(text)):
        parser = hermes.ask(tools=TOOLS).parser
        events = [*parser.push(text[:cut]), *parser.push(text[cut:]), *parser.finish()]
        assert Answer.of(events) == Answer(text)


@pytest.mark.parametrize(
    ("text", "undecided"),
    [
        ('{"name": "get_wind", "arguments": {}}', '{"name": "get_w'),
        ('{"name": "clock", "arguments": [1]}', '{"name": "clock", "arguments": '),
        ('{"name": "clock", "time": 1}', '{"name": "clock", "'),
        ("```json\n[1, 2]\n```", "```json\n"),
        ("```js\n{}\n```", "```js"),
        ("<tool is", "<tool"),
        ('{"answer": 1}', '{"'),
    ],
)
def test_only_what_is_undecided_is_held_back(hermes, text, undecided):
    parser = hermes.ask(tools=TOOLS).parser
    given = ""
    for place, letter in enumerate(text):
        given += Answer.of(parser.push(letter)).text
        known = "" if place < len(undecided) else text[: place + 1]
        # White space and a `<` may be followed by the mark of a call.
        assert given == known or (known and given == known.rstrip().removesuffix("<"))
    assert given + Answer.of(parser.finish()).text == text


def test_arguments_are_delivered_as_they_come(hermes):
    parser = hermes.ask(tools=TOOLS).parser
    begun = CALL[: -len(json.dumps(ROME[1])) - 1]
    arguments = json.dumps(ROME[1])
    assert parser.push(begun) == []
    given = []
    for letter in arguments:
        given += parser.push(letter)
    assert given[0].name == "get_weather"
    assert [each.arguments for each in given if each.arguments] == list(arguments)


def test_arguments_are_held_to_their_schema(chat):
    for text in CALLS.values():
        for wrong in (text.replace("2", "0"), text.replace("Rome", "Constantinople")):
            allowed, ended = chat.accepted(wrong, tools=TOOLS)
            assert allowed != wrong
            assert "get_weather" in allowed
            assert not ended


def test_nothing_follows_a_call_but_calls(hermes):
    for text in CALLS.values():
        assert hermes.accepted(f"{text.rstrip()} So", tools=TOOLS)[0].rstrip() == text.rstrip()
    several = f"```json\n{CALL}\n{CLOCK_CALL}\n```"
    assert hermes.accepted(several, tools=TOOLS) == (several, True)
    for size in (1, 3, 1000):
        assert hermes.read(several, size, tools=TOOLS)[1] == [ROME, ("clock", {})]
    alone, _ = hermes.accepted(several, tools=TOOLS, parallel_tool_calls=False)
    assert "clock" not in alone
    assert hermes.accepted(CALL, tools=TOOLS, parallel_tool_calls=False) == (CALL, True)


def test_a_fence_that_is_opened_is_closed(hermes):
    for text in (
        f"```json\n{CALL}",
        f"<tools>{CALL}",
        f"{CALL}\n```",
        f"<tools>{CALL}```",
        f"{{{CALL}",
    ):
        allowed, ended = hermes.accepted(text, tools=TOOLS)
        assert not (ended and allowed == text)


def test_text_may_come_before_a_mark_but_no_call_alone(hermes):
    marked = FORMS["hermes"].call
    before = '{"name": "wind"}\n'
    assert hermes.accepted(before + marked, tools=TOOLS) == (before + marked, True)
    piece, calls = hermes.read(before + marked, 4, tools=TOOLS)
    assert (piece.text, calls) == (before.rstrip(), [ROME])
    begun = '{"name": "get_weather", "arguments": {"city": '
    assert hermes.accepted(f"{begun}{marked}", tools=TOOLS) == (begun, False)


def test_a_call_may_come_alone_behind_reasoning(tmp_path):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    chat = Chat(tmp_path, source, (*FORMS["hermes"].tokens, "<think>", "</think>"))
    text = f"<think>\nRome.\n</think>\n\n{CALL}"
    assert chat.accepted(text, tools=TOOLS) == (text, True)
    piece, calls = chat.read(text, 5, tools=TOOLS)
    assert (piece.text, piece.reasoning, calls) == ("", "Rome.", [ROME])


@pytest.mark.parametrize(
    "options",
    [
        {"tool_choice": "required"},
        {"tool_choice": "get_weather"},
        {"json_schema": {"type": "object"}},
    ],
    ids=str,
)
def test_where_calls_or_a_format_are_asked_for_there_are_no_others(hermes, options):
    parser = hermes.ask(tools=TOOLS, **options).parser
    events = [*parser.push(CALL), *parser.finish()]
    assert (Answer.of(events).text, parser.calls) == (CALL, [])
    if "tool_choice" in options:
        assert hermes.accepted(CALL, tools=TOOLS, **options) == ("", False)


def test_without_tools_there_are_none(hermes):
    assert hermes.ask().parser is None
    assert hermes.ask(tools=TOOLS, tool_choice="none").parser is None


def test_names_may_begin_alike(hermes, tmp_path):
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "fg", "f-g")]
    for name in ("f", "fg", "f-g"):
        text = f'{{"name": "{name}", "arguments": {{}}}}'
        assert hermes.accepted(text, tools=tools) == (text, True)
        assert hermes.read(text, tools=tools)[1] == [(name, {})]
    line = Chat(tmp_path, template("glm"))
    for name in ("f", "fg", "f-g"):
        assert line.accepted(f"{name}\n{{}}", tools=tools) == (f"{name}\n{{}}", True)
        assert line.read(f"{name}\n{{}}", tools=tools)[1] == [(name, {})]


def test_a_line_with_a_name_is_text_without_arguments(tmp_path):
    chat = Chat(tmp_path, template("glm"))
    for text in ("clock\nis a tool", "clock", "clock {", "\nclock\n1", "clocks\n{}"):
        assert chat.accepted(text, tools=TOOLS) == (text, True)
        assert chat.read(text, tools=TOOLS) == (Answer(text), [])
    assert chat.read("\nclock\n{}", tools=TOOLS)[1] == [("clock", {})]


FRAGMENTS = [
    "{", "}", "{{", '"name"', '"arguments"', ":", ",", '"get_weather"', '"clock"', '"wind"',
    '"city"', '"Rome"', '"days"', "1", "77", " ", "\n", "```json", "```", "<tools>", "</tools>",
    "text", '{"name": "get_weather", "arguments": ', '{"city": "Rome"}', "{}",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.integers(1, 7))
@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
def test_what_is_allowed_is_read_as_it_was_meant(hermes, text, size):
    """The parser takes no text for a call that the grammar has not held to its schema."""
    allowed, ended = hermes.accepted(text, tools=TOOLS)
    piece, calls = hermes.read(allowed, size, tools=TOOLS)
    if allowed != text or piece.calls:
        assert piece.calls
        assert piece.text == ""
        assert len(calls) >= ended
    else:
        assert piece == Answer(text)
    for name, arguments in calls:
        shape = WEATHER["function"]["parameters"] if name == "get_weather" else {}
        jsonschema.validate(arguments, {**shape, "additionalProperties": False})
