"""Answers of each family's form: what their grammar allows, and how they are taken apart."""

from __future__ import annotations

import json

import pytest
from chats import CLOCK, FORMS, TOOLS, WEATHER, Chat, template
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import InputError
from edgespec.runtime.text.answers import AnswerReader
from edgespec.runtime.text.streaming import Piece
from edgespec.runtime.text.thinking import thinking_form
from edgespec.runtime.text.tools.forms import call_form

ROME = ("get_weather", {"city": "Rome", "days": 2})
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
        assert chat.read(other, tools=[CLOCK]) == (Piece(form.call), [])
    else:
        assert "get_w" not in other


def test_free_text_is_free(form, chat):
    text = form.before + "So <b>it</b> is: <tool, [1, 2].\n\nYes"
    if form.before == "" and form.tokens:  # harmony
        text = "<|channel|>final<|message|>" + text
    assert chat.accepted(text, tools=TOOLS) == (text, True)
    piece, calls = chat.read(text, 3, tools=TOOLS)
    assert piece == Piece(text.removeprefix("<|channel|>final<|message|>"))
    assert not calls


def test_a_call_that_is_required_comes(form, chat):
    text, ended = chat.accepted("Well", tools=TOOLS, tool_choice="required")
    assert (text, ended) == ("", False)
    assert chat.accepted(form.call, tools=TOOLS, tool_choice="required") == (form.call, True)
    assert chat.accepted(form.call, tools=TOOLS, tool_choice="get_weather")[1]
    assert not chat.accepted(form.call, tools=TOOLS, tool_choice="clock")[1]


def test_tools_are_shown_by_the_template_unless_none_may_be_called(form, chat):
    tokenizer = chat.tokenizer
    assert "get_weather" in tokenizer.decode(chat.ask(tools=TOOLS).prompt)
    asked = chat.ask(tools=TOOLS, tool_choice="none")
    assert "get_weather" not in tokenizer.decode(asked.prompt)
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
    reader = AnswerReader(None, form)
    written = json.dumps(arguments, ensure_ascii=escaped)
    call = f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    text = f"{call}\n{call}"
    for place in range(0, len(text), size):
        reader.push(text[place : place + size])
    assert [each.text for each in reader.calls] == [written] * 2
    assert reader.calls[0].arguments == arguments


def test_text_may_follow_a_schema_or_be_a_call(tmp_path):
    chat = Chat(tmp_path, template("hermes"), FORMS["hermes"].tokens)
    options = {"tools": TOOLS, "json_schema": {"type": "integer"}}
    assert chat.accepted("12", **options) == ("12", True)
    assert chat.accepted("x", **options) == ("", False)
    call = FORMS["hermes"].call
    assert chat.accepted(call, **options) == (call, True)


# Reasoning


SOURCE = "{{ messages[0].content }}{{ '</think>' if 0 }}{% if prompted %}<think>\n{% endif %}"
ENDED = "{{ messages[0].content }}<think>\n\n</think>\n\n"
TAGS = ("<think>", "</think>")


@pytest.mark.parametrize("tokens", [TAGS, ()], ids=["tokens", "spelled"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_reasoning_is_taken_from_the_answer(tmp_path, size, tokens):
    chat = Chat(tmp_path, SOURCE, tokens)
    read = chat.read("<think>\nTwo, or\n three.\n</think>\n\nTwo <3", size)
    assert read == (Piece("Two <3", "Two, or\n three."), [])
    prompted = {"template_options": {"prompted": True}}
    assert chat.read("Hm.</think>Two", size, **prompted)[0] == Piece("Two", "Hm.")
    assert chat.read("\n Hm. </thin", size, **prompted)[0] == Piece("", "Hm. </thin")
    assert chat.read(" Two <thin", size)[0] == Piece(" Two <thin")


def test_reasoning_that_the_prompt_has_ended_is_none(tmp_path):
    asked = Chat(tmp_path, ENDED, TAGS).ask()
    assert asked.reader is None


def test_a_schema_holds_behind_reasoning(tmp_path):
    chat = Chat(tmp_path, SOURCE, TAGS)
    form = {"json_schema": {"type": "integer"}}
    for text in ("12", "<think>\nHm <b>.\n</think>\n\n12"):
        assert chat.accepted(text, **form) == (text, True)
    assert chat.accepted("<think>\nHm\n</think>\n\nx", **form)[0].endswith("</think>\n\n")
    begun = {"template_options": {"prompted": True}}
    assert chat.accepted("Hm</think>12", **form, **begun) == ("Hm</think>12", True)
    assert not chat.accepted("12", **form, **begun)[1]


def test_calls_come_behind_reasoning(tmp_path):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    chat = Chat(tmp_path, source, (*FORMS["hermes"].tokens, *TAGS))
    text = f"<think>\nRome.\n</think>\n\n{FORMS['hermes'].call}"
    for choice in ("auto", "required"):
        assert chat.accepted(text, tools=TOOLS, tool_choice=choice) == (text, True)
    piece, calls = chat.read(text, 5, tools=TOOLS)
    assert (piece.text, piece.reasoning, calls) == ("", "Rome.", [ROME])


def test_harmony_has_channels():
    reader = AnswerReader(thinking_form("<|channel|>analysis"), None)
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Wait.<|end|><|start|>assistant<|channel|>final<|message|>Two."
    )
    assert reader.push(text) + reader.finish() == Piece("Wait.Two.", "One.")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_ends_reasoning(tmp_path, budget, inside):
    chat = Chat(tmp_path, SOURCE, TAGS)
    asked = chat.ask(thinking_budget=budget, template_options={"prompted": inside})
    grammar = asked.grammar
    tokenizer = chat.tokenizer
    end = tokenizer.encode("</think>", add_special=False)
    thoughts = tokenizer.encode("abcdefgh", add_special=False)
    if not inside:
        begin = tokenizer.encode("<think>", add_special=False)
        assert grammar.valid([*begin, *thoughts]) == 1 + budget
        grammar.advance(begin[0])
    for token in thoughts[:budget]:
        assert grammar.allowed() is None
        assert grammar.forced() == []
        grammar.advance(token)
    assert grammar.forced() == end
    assert grammar.allowed().nonzero()[0].tolist() == end
    assert grammar.valid([*end, *thoughts, *thoughts]) == 1 + 2 * len(thoughts)
    grammar.advance(end[0])
    assert grammar.allowed() is None


def test_a_budget_waits_for_a_whole_character(tmp_path):
    chat = Chat(tmp_path, SOURCE, TAGS)
    grammar = chat.ask(thinking_budget=1, template_options={"prompted": True}).grammar
    first, *rest = chat.tokenizer.encode("é", add_special=False)
    assert rest
    grammar.advance(first)
    assert grammar.forced() == []
    for token in rest:
        grammar.advance(token)
    assert chat.tokenizer.decode(grammar.forced(), skip_special=False) == "</think>"


def test_an_answer_without_reasoning_has_no_budget(tmp_path):
    chat = Chat(tmp_path, SOURCE, TAGS)
    grammar = chat.ask(thinking_budget=0).grammar
    tokens = chat.tokenizer.encode("plain text of no thought at all </think>", add_special=False)
    assert grammar.valid(tokens) == len(tokens)
    asked = Chat(tmp_path, template("hermes")).ask(thinking_budget=0)
    assert asked.grammar is None


def test_a_budget_holds_together_with_tools(tmp_path):
    source = template("hermes") + "{{ '</think>' if 0 }}"
    chat = Chat(tmp_path, source, (*FORMS["hermes"].tokens, *TAGS))
    options = {"tools": [WEATHER], "tool_choice": "required", "thinking_budget": 2}
    asked = chat.ask(**options)
    for token in chat.tokenizer.encode("<think>ab", add_special=False):
        asked.grammar.advance(token)
    end = chat.tokenizer.encode("</think>", add_special=False)
    assert asked.grammar.forced() == end
    asked.grammar.advance(end[0])
    assert asked.grammar.allowed() is not None
