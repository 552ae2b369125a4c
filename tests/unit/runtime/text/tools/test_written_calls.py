"""Messages about tools for chat templates that know no `tool_calls`."""

from __future__ import annotations

import pytest
from chats import TOOLS

from edgespec.llm.messages import for_template
from edgespec.runtime.text.template.chat import ChatTemplate
from edgespec.runtime.text.tools.history import with_calls_as_text

LFM = """{%- if tools -%}<|im_start|>system
List of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|><|im_end|>
{% endif -%}
{%- for message in messages -%}
{{- "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

GLM = """[gMASK]<sop>
{%- if tools -%}<|system|>
{%- for tool in tools %}## {{ tool.function.name }}{%- endfor %}{%- endif -%}
{%- for message in messages -%}
{%- set meta = message.get("metadata", "") -%}
{%- if message.role == 'user' %}<|user|>
{{ message.content }}
{%- elif message.role == 'assistant' and not meta %}<|assistant|>
{{ message.content }}
{%- elif message.role == 'assistant' and meta %}<|assistant|>{{ meta }}
{{ message.content }}
{%- elif message.role == 'observation' %}<|observation|>
{{ message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

PHI = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}
{%- if m.tools %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}<|end|>{% endfor %}<|assistant|>"""


def call(id_, name, arguments):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


CUT = ['{"city": "Ro', "not json", "[1]", '"text"', "NaN"]
CALLS = [call("a", "get_weather", '{"city": "Rome", "now": true}'), call("b", "clock", "{}")]
MESSAGES = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Well.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "a", "content": "sunny"},
    {"role": "tool", "tool_call_id": "b", "content": "noon"},
]


def rendered(source, messages=MESSAGES):
    converted = with_calls_as_text(for_template(messages), source)
    return ChatTemplate(source, {}).render(converted, tools=TOOLS)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            LFM,
            "<|im_start|>assistant\nWell.<|tool_call_start|>"
            '[get_weather(city="Rome", now=True), clock()]<|tool_call_end|><|im_end|>\n'
            "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n",
        ),
        (
            GLM,
            '<|assistant|>\nWell.<|assistant|>get_weather\n{"city": "Rome", "now": true}'
            "<|assistant|>clock\n{}<|observation|>\nsunny<|observation|>\nnoon<|assistant|>",
        ),
        (
            PHI,
            '<|assistant|>Well.<|tool_call|>[{"name": "get_weather", "arguments": '
            '{"city": "Rome", "now": true}}, {"name": "clock", "arguments": {}}]<|/tool_call|>'
            "<|end|><|tool|>sunny<|end|><|tool|>noon<|end|>",
        ),
    ],
    ids=["lfm", "glm", "phi"],
)
def test_calls_and_results_are_shown_as_the_model_writes_them(source, told):
    assert told in rendered(source)


def test_a_call_without_text_is_one_message_of_glm():
    silent = [MESSAGES[0], {**MESSAGES[1], "content": None, "tool_calls": CALLS[1:]}]
    assert rendered(GLM, silent).endswith("hello<|assistant|>clock\n{}<|assistant|>")


@pytest.mark.parametrize("messages", [MESSAGES[:1], "text", [1], None], ids=str)
def test_other_messages_stay_as_they_are(messages):
    for source in (LFM, GLM, PHI):
        assert with_calls_as_text(messages, source) is messages


def test_templates_that_know_calls_get_them():
    converted = for_template(MESSAGES)
    for source in (LFM + "{{ message.tool_calls }}", "{{ tools }}{{ messages }}"):
        assert with_calls_as_text(converted, source) is converted


_LOOP = "{% for call in messages[1].tool_calls %}{% set f = call.function %}"
_SHOWN = [
    ("{{ f.arguments }}", "{}"),
    ("{{ f.arguments | tojson }}", "{}"),
    ("{{ f.arguments if f.arguments is string else f.arguments | tojson }}", "{}"),
    ("{% for k, v in f.arguments | items %}{{ k }}={{ v }}{% endfor %}", "arguments={}"),
    ("{% for k, v in f.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "arguments={}"),
    ("{% for k, v in f.arguments | dictsort %}{{ k }}={{ v }}{% endfor %}", "arguments={}"),
]


@pytest.mark.parametrize("cut", CUT)
@pytest.mark.parametrize(("shown", "expected"), _SHOWN)
def test_arguments_that_are_no_object_are_shown_as_they_are(cut, shown, expected):
    messages = [MESSAGES[0], {**MESSAGES[1], "tool_calls": [call("a", "clock", cut)]}]
    source = f"{_LOOP}{shown}{{% endfor %}}"
    assert ChatTemplate(source, {}).render(for_template(messages)) == expected.format(cut)
    for template in (LFM, GLM):
        assert cut in rendered(template, messages)
