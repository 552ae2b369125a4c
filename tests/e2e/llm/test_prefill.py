"""Answers that go on from a last message of the assistant."""

from __future__ import annotations

import pytest
from chats import TOOLS, Chat
from servers import PLACE, make_bundle

from edgespec import LLM
from edgespec.errors import InputError
from edgespec.runtime.text.decoder import TextEvent, join_events

USER = {"role": "user", "content": "hello"}
CHATML = """{%- for m in messages -%}
<{{ m.role }}>
{% if m.role == 'assistant' and loop.last %}<think>
{{ m.reasoning_content or '' }}
</think>

{% endif %}{{ m.content | trim }}<end>
{% endfor -%}
{% if add_generation_prompt %}<assistant>
{% endif %}"""
# Shows nothing of reasoning, as DeepSeek's, and calls.
FORGETTING = """{%- for m in messages -%}
<{{ m.role }}>
{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}<end>
{% endfor -%}
{% if add_generation_prompt %}<assistant>
{% endif %}{{ '</think>' if 0 }}"""
REFUSING = """{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor -%}
{% if add_generation_prompt %}<assistant>{% elif messages[-1].role != 'user' %}{{ 1/0 }}{% endif %}
"""
CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
BEGUN = "<user>\nhello<end>\n<assistant>\n"


@pytest.fixture(scope="module")
def llms(tmp_path_factory):
    sources = {"chatml": CHATML, "refusing": REFUSING, "forgetting": FORGETTING}
    loaded = {
        name: LLM(make_bundle(tmp_path_factory.mktemp(name), source), draft="lookup", **PLACE)
        for name, source in sources.items()
    }
    yield loaded
    for llm in loaded.values():
        llm.close()


def said(content, **further):
    return {"role": "assistant", "content": content, **further}


@pytest.mark.parametrize(
    ("name", "last", "prompt"),
    [
        ("chatml", said("It is"), f"{BEGUN}<think>\n\n</think>\n\nIt is"),
        ("chatml", said("It is "), f"{BEGUN}<think>\n\n</think>\n\nIt is "),
        ("chatml", said("It", reasoning_content="Hm."), f"{BEGUN}<think>\nHm.\n</think>\n\nIt"),
        ("chatml", said("", reasoning_content="Hm"), f"{BEGUN}<think>Hm"),
        ("chatml", said([{"type": "text", "text": "Yes"}]), f"{BEGUN}<think>\n\n</think>\n\nYes"),
        ("chatml", said(""), BEGUN),
        ("chatml", said("\ue000It\ue001"), f"{BEGUN}<think>\n\n</think>\n\n\ue000It\ue001"),
        ("chatml", said("It", reasoning_content="\n Hm "),
         f"{BEGUN}<think>\n\n Hm \n</think>\n\nIt"),
        ("forgetting", said(" It\n"), f"{BEGUN} It\n"),
        ("forgetting", said("It", reasoning_content="Hm."), f"{BEGUN}<think>\nHm.\n</think>\n\nIt"),
        ("forgetting", said("", reasoning_content="Hm"), f"{BEGUN}<think>Hm"),
        ("forgetting", said("Well.", tool_calls=[CALL]), f"{BEGUN}Well.<call>f</call>"),
        ("forgetting", said(None, tool_calls=[CALL]), f"{BEGUN}<call>f</call>"),
        ("refusing", said("It is"), "<user>hello<assistant>It is"),
    ],
)  # fmt: skip
def test_an_answer_goes_on_from_what_the_assistant_has_said(llms, name, last, prompt):
    llm = llms[name]
    ids = llm.tokenizer.encode(prompt, add_special=False)
    expected = llm.generate(ids, max_new_tokens=12)
    result = llm.chat([USER, last], max_new_tokens=12)
    assert result.tokens == expected.tokens
    assert result.prompt_tokens == len(ids)
    shown = result.reasoning if prompt.endswith("Hm") else result.text
    assert shown.strip() == expected.text.strip()


def test_another_answer_may_be_asked_for(llms):
    llm = llms["chatml"]
    prompt = llm.tokenizer.chat([USER, said("It is")])
    expected = llm.generate(llm.tokenizer.encode(prompt, add_special=False), max_new_tokens=4)
    given = llm.chat([USER, said("It is")], max_new_tokens=4, continue_final_message=False)
    assert given.tokens == expected.tokens


def test_marks_of_private_characters_in_a_conversation_are_text(llms):
    """Any character may stand in what was said before."""
    llm = llms["chatml"]
    odd = "".join(map(chr, (0xE000, 0xE001, 0xF8FF, 0xFFFF, 0x10FFFD, 1, 0xFDD0)))
    asked = {"role": "user", "content": f"hello{odd}"}
    prompt = f"<user>\nhello{odd}<end>\n<assistant>\n<think>\n\n</think>\n\nIt{odd}"
    given = llm.chat([asked, said(f"It{odd}")], max_new_tokens=2)
    assert given.prompt_tokens == len(llm.tokenizer.encode(prompt, add_special=False))


def test_a_beginning_that_still_reasons_goes_on_with_that(llms):
    llm = llms["forgetting"]
    given = llm.chat([USER, said("<think>\nHm")], max_new_tokens=8)
    assert (given.text, bool(given.reasoning)) == ("", True)
    given = llm.chat([USER, said("<think>\nHm</think>It is")], max_new_tokens=8)
    assert (bool(given.text), given.reasoning) == (True, "")


@pytest.mark.parametrize("mark", ["<think>", "</think>"])
def test_a_question_that_ends_with_a_mark_begins_no_reasoning(tmp_path, mark):
    source = "{{ messages[-1].content }}{{ '</think>' if 0 }}"
    chat = Chat(tmp_path, source)
    asked = chat.ask(messages=[{"role": "user", "content": f"What is {mark}"}])
    assert join_events([*asked.parser.push("Well"), *asked.parser.finish()]) == [TextEvent("Well")]


def test_a_question_that_names_a_tool_does_not_show_it(tmp_path):
    chat = Chat(tmp_path, "{{ messages[0].content }}{{ tools if 0 }}<tool_call>'\"arguments\"'")
    asked = [{"role": "user", "content": "What do get_weather and clock tell?"}]
    with pytest.raises(InputError, match="knows no tools"):
        chat.ask(messages=asked, tools=TOOLS)
