"""Answers that go on from a last message of the assistant."""

from __future__ import annotations

import pytest
from servers import PLACE, make_bundle

from edgespec import LLM

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
REFUSING = """{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor -%}
{% if add_generation_prompt %}<assistant>{% elif messages[-1].role != 'user' %}{{ 1/0 }}{% endif %}
"""
BEGUN = "<user>\nhello<end>\n<assistant>\n"


@pytest.fixture(scope="module")
def llms(tmp_path_factory):
    sources = {"chatml": CHATML, "refusing": REFUSING}
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
