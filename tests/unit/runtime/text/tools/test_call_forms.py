"""Every form of calls keeps one contract: what its grammar allows is read, and where it ends."""

from __future__ import annotations

import json

import pytest
from chats import CLOCK, FORMS, TOOLS, Answer, Chat, template
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.runtime.text.answers import AnswerParser
from edgespec.runtime.text.tools.forms import call_form

ROME = ("get_weather", {"city": "Rome", "days": 2})
ARGUMENTS = "{{ call.function.arguments | tojson }}"
# Strings of Gemma's notation may hold anything but a special token.
SPECIAL = [name for name, form in FORMS.items() if form.tokens and name != "gemma"]


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture
def chat(form, request, tmp_path):
    name = next(name for name, each in FORMS.items() if each is form)
    return Chat(tmp_path, template(name), form.tokens)


def test_a_template_is_of_its_form():
    for name in FORMS:
        assert call_form(template(name)).name == name


def test_calls_are_written_as_models_write_them():
    for name, form in FORMS.items():
        written = call_form(template(name))
        assert form.call.endswith(written.write([ROME])), name
        if form.calls is not None:
            assert written.write([ROME, ("clock", {})]) == form.calls
            assert "clock" in written.write([("clock", "cut {")])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        '{{ tools }}<tool_call><tool_calls>"arguments"',
        '{{ tools }}<tool_call><tool_sep><arg_key>"arguments"',
        "{{ tools }}{{ messages }}",
        '<tool_call>"arguments"',
    ],
)
def test_other_templates_are_of_none(source, tmp_path):
    assert call_form(source) is None
    with pytest.raises(InputError, match="knows no tools"):
        Chat(tmp_path, source).ask(tools=TOOLS)


def test_a_template_that_leaves_tools_out_is_refused(tmp_path):
    source = '{% if %s %}{{ tools | tojson }}{% endif %}<tool_call>"arguments"'
    with pytest.raises(InputError, match="knows no tools"):
        Chat(tmp_path, source.replace("%s", "some_tools")).ask(tools=TOOLS)
    # SmolLM3's takes tools by another name.
    asked = Chat(tmp_path, source.replace("%s", "xml_tools")).ask(tools=TOOLS)
    assert asked.grammar is not None


def test_a_call_is_allowed_and_read(form, chat):
    assert chat.accepted(form.before + form.call, tools=TOOLS) == (form.before + form.call, True)
    for size in (1, 2, 3, 7, 1000):
        piece, calls = chat.read(form.before + form.call, size, tools=TOOLS)
        assert calls == [ROME]
        assert piece.text == form.before.rstrip()
        first, *rest = piece.calls
        assert (first.index, first.name) == (0, "get_weather")
        assert len(first.id) == 9
        assert not any(each.name or each.id for each in rest)


def test_a_call_that_is_cut_is_told(form, chat):
    parser = chat.ask(tools=TOOLS).parser
    text = form.before + form.call
    begun = False
    for length, letter in enumerate(text, 1):
        parser.push(letter)
        if parser.cut is not None:
            assert (parser.cut.name, parser.calls) == ("get_weather", [])
            begun = True
        else:
            assert bool(parser.calls) is begun, text[:length]
    assert begun
    assert [(call.name, call.arguments) for call in parser.calls] == [ROME]


def test_several_calls(form, chat):
    if form.calls is None:
        return
    assert chat.accepted(form.calls, tools=TOOLS) == (form.calls, True)
    piece, calls = chat.read(form.calls, 2, tools=TOOLS)
    assert calls == [ROME, ("clock", {})]
    assert [each.index for each in piece.calls if each.name] == [0, 1]
    alone, _ = chat.accepted(form.calls, tools=TOOLS, parallel_tool_calls=False)
    assert "2" in alone
    assert "clock" not in alone


def test_arguments_are_held_to_their_schema(form, chat):
    for wrong in (form.call.replace("2", "0"), form.call.replace("Rome", "Constantinople")):
        allowed, ended = chat.accepted(form.before + wrong, tools=TOOLS)
        assert allowed != form.before + wrong
        assert not ended
    other, _ = chat.accepted(form.before + form.call, tools=[CLOCK])
    if form is FORMS["glm"]:  # a line with another name is text
        assert chat.read(other, tools=[CLOCK]) == (Answer(form.call), [])
    else:
        assert "get_w" not in other


def test_free_text_is_free(form, chat):
    text = form.before + "So <b>it</b> is: <tool, [1, 2].\n\nYes"
    if form.before == "" and form.tokens:  # harmony
        text = "<|channel|>final<|message|>" + text
    assert chat.accepted(text, tools=TOOLS) == (text, True)
    piece, calls = chat.read(text, 3, tools=TOOLS)
    assert piece == Answer(text.removeprefix("<|channel|>final<|message|>"))
    assert not calls


def test_a_call_that_is_required_comes(form, chat):
    text, ended = chat.accepted("Well", tools=TOOLS, tool_choice="required")
    assert (text, ended) == ("", False)
    assert chat.accepted(form.call, tools=TOOLS, tool_choice="required") == (form.call, True)
    assert chat.accepted(form.call, tools=TOOLS, tool_choice="get_weather")[1]
    assert not chat.accepted(form.call, tools=TOOLS, tool_choice="clock")[1]


def test_tools_are_shown_by_the_template_unless_none_may_be_called(form, chat):
    tokenizer = chat.tokenizer
    assert "get_weather" in tokenizer.decode(chat.ask(tools=TOOLS).tokens)
    asked = chat.ask(tools=TOOLS, tool_choice="none")
    assert "get_weather" not in tokenizer.decode(asked.tokens)
    assert asked.grammar is None


@pytest.mark.parametrize("name", SPECIAL)
def test_marks_that_are_no_special_tokens_work_alike(name, tmp_path):
    form = FORMS[name]
    chat = Chat(tmp_path, template(name))
    assert chat.accepted(form.before + form.call, tools=TOOLS) == (form.before + form.call, True)
    assert chat.read(form.before + form.call, 4, tools=TOOLS)[1] == [ROME]


def test_a_mark_that_is_spelled_begins_a_call_too(tmp_path):
    chat = Chat(tmp_path, template("hermes"), FORMS["hermes"].tokens)
    grammar = chat.ask(tools=TOOLS).grammar
    spelled = chat.tokenizer.encode("Well <tool", add_special=False)
    spelled += chat.tokenizer.encode("_call>", add_special=False)
    assert grammar.valid(spelled) == len(spelled)
    for token in spelled:
        grammar.advance(token)
    forced = chat.tokenizer.decode(grammar.forced())
    assert '\n{"name": "'.startswith(forced) or forced.startswith('\n{"name": "')
    assert forced


def test_no_tool_may_hide_in_its_schema(tmp_path):
    """What stands in names and descriptions of a schema is no grammar."""
    odd = {'a" %json {}': {"const": "</tool_call> {x} <[0]>"}}
    parameters = {"type": "object", "properties": odd, "required": list(odd)}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    chat = Chat(tmp_path, template("hermes"), FORMS["hermes"].tokens)
    given = json.dumps({key: each["const"] for key, each in odd.items()})
    text = f'<tool_call>\n{{"name": "f", "arguments": {given}}}\n</tool_call>'
    # Its text is spelled, since the token would end the call. Behind it, the answer may end.
    grammar = chat.ask(tools=[tool], tool_choice="required").grammar
    forced = chat.tokenizer.decode(grammar.forced(), skip_special=False)
    assert forced == text.removesuffix("}\n</tool_call>")
    assert chat.read(text, 3, tools=[tool])[1] == [("f", json.loads(given))]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=4), st.integers(1, 9), st.booleans())
def test_any_arguments_are_read_in_any_pieces(arguments, size, escaped):
    form = call_form(template("hermes"))
    parser = AnswerParser(None, form)
    written = json.dumps(arguments, ensure_ascii=escaped)
    call = f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    text = f"{call}\n{call}"
    for place in range(0, len(text), size):
        parser.push(text[place : place + size])
    assert [each.text for each in parser.calls] == [written] * 2
    assert parser.calls[0].arguments == arguments


def test_text_may_follow_a_schema_or_be_a_call(tmp_path):
    chat = Chat(tmp_path, template("hermes"), FORMS["hermes"].tokens)
    options = {"tools": TOOLS, "json_schema": {"type": "integer"}}
    assert chat.accepted("12", **options) == ("12", True)
    assert chat.accepted("x", **options) == ("", False)
    call = FORMS["hermes"].call
    assert chat.accepted(call, **options) == (call, True)


# Where an answer may end behind a call, so that a model is not held to call for ever


@pytest.mark.parametrize("choice", ["auto", "required", "get_weather"])
def test_an_answer_may_end_behind_a_call_and_a_line(form, chat, choice):
    options = {"tools": TOOLS, "tool_choice": choice}
    for behind in ("", "\n"):
        text = form.before * (choice == "auto") + form.call + behind
        assert chat.accepted(text, **options) == (text, True)
        assert [name for name, _ in chat.read(text, 3, **options)[1]] == ["get_weather"]


def test_it_may_end_with_the_arguments(tmp_path):
    """As Qwen2.5-Coder ends its turn, before the mark that its template writes."""
    for number, name in enumerate(("hermes", "phi", "mistral list")):
        chat = Chat(tmp_path / str(number), template(name), FORMS[name].tokens)
        end = FORMS[name].call.rindex("}") + 1
        for text in (FORMS[name].call[:end], FORMS[name].call[: end - 1]):
            assert chat.accepted(text, tools=TOOLS, tool_choice="required") == (text, True)
            assert chat.read(text, 2, tools=TOOLS)[1] == [
                ("get_weather", {"city": "Rome", "days": 2})
            ]
        cut = FORMS[name].call[: end - 2]
        assert chat.accepted(cut, tools=TOOLS, tool_choice="required") == (cut, False)


def test_a_tool_that_is_asked_for_by_name_comes_once(form, chat):
    if form.calls is None:
        return
    twice = form.calls
    begun = chat.accepted(twice, tools=TOOLS, tool_choice="required")
    assert begun == (twice, True)
    chosen, _ = chat.accepted(twice, tools=TOOLS, tool_choice="get_weather")
    assert "clock" not in chosen
    once, _ = chat.accepted(twice, tools=TOOLS, parallel_tool_calls=False)
    assert chosen == once


def test_white_space_behind_calls_ends_too(form, chat):
    text, _ = chat.accepted(form.before + form.call + "\n" * 9, tools=TOOLS)
    assert len(text) < len(form.before + form.call) + 6


@pytest.mark.parametrize("shown", ["<|call|>", "\n<|call|>\n"])
def test_what_a_template_writes_behind_a_call_ends_it(tmp_path, shown):
    source = template("hermes").replace("CALL", f"{ARGUMENTS}{shown}")
    chat = Chat(tmp_path, source, (*FORMS["hermes"].tokens, "<|call|>"))
    call = FORMS["hermes"].call
    asked = chat.ask(tools=TOOLS)
    assert asked.stop_ids == {chat.tokenizer.added_tokens["<|call|>"]}
    assert not asked.stop_ids & asked.parser.marks.keys()
    for text in (f"{call}<|call|>", f"{call}\n<|call|>"):
        assert chat.accepted(text, tools=TOOLS, tool_choice="required") == (text, True)
    # It is no way to end other texts.
    assert chat.accepted("Well<|call|>", tools=TOOLS) == ("Well", True)


def test_marks_of_the_form_and_tokens_elsewhere_are_no_ends(tmp_path):
    source = template("hermes").replace("CALL", f"<tool_call>{ARGUMENTS}</tool_call>")
    chat = Chat(tmp_path, "<|begin|>" + source, (*FORMS["hermes"].tokens, "<|begin|>"))
    assert chat.ask(tools=TOOLS).stop_ids == frozenset()
    refusing = "{% if messages[-1].role == 'assistant' %}{{ 1/0 }}{% endif %}"
    chat = Chat(tmp_path, refusing + source, FORMS["hermes"].tokens)
    assert chat.ask(tools=TOOLS).stop_ids == frozenset()
