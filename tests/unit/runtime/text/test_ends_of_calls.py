"""Where an answer may end behind a call, so that a model is not held to call for ever."""

from __future__ import annotations

import pytest
from chats import FORMS, TOOLS, Chat, template

ARGUMENTS = "{{ call.function.arguments | tojson }}"


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.fixture
def chat(form, request, tmp_path):
    name = next(name for name, each in FORMS.items() if each is form)
    return Chat(tmp_path, template(name), form.tokens)


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
    assert not asked.stop_ids & asked.shown.keys()
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
