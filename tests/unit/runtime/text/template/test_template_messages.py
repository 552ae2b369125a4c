"""Conversations in templates that do not take all that these hold."""

from __future__ import annotations

import pytest

from edgespec.errors import InputError
from edgespec.llm.messages import for_template
from edgespec.runtime.text.template.chat import ChatTemplate

LOOP = "{% for m in messages %}"
SAYS = "<{{ m.role }}>{{ m.content }}"
END = "{% endfor %}"
BODY = LOOP + SAYS + END
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}" + BODY
SILENT = f"{LOOP}{{% if m.role != 'system' %}}{SAYS}{{% endif %}}{END}"
TURNS = f"""{LOOP}{{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}}
{{{{- raise_exception('roles must alternate') }}}}{{% endif %}}{SAYS}{END}"""
FIRST = f"""{LOOP}{{% if m.role == 'system' and not loop.first %}}
{{{{- raise_exception('system must be first') }}}}{{% endif %}}{SAYS}{END}"""
KIND, ASKED, SAID = (
    {"role": role, "content": content}
    for role, content in (("system", "Be kind"), ("user", "hi"), ("assistant", "yes"))
)
CALL = {"id": "call00000", "function": {"name": "add", "arguments": '{"x": 1}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call00000", "content": "42"}


def shown(source, *messages):
    return ChatTemplate(source, {}).render(for_template(messages))


@pytest.mark.parametrize("source", [REFUSING, SILENT, TURNS])
def test_the_user_says_what_a_system_would(source):
    assert shown(source, KIND, ASKED, SAID) == "<user>Be kind\nhi<assistant>yes"
    assert shown(source, KIND) == "<user>Be kind"
    assert shown(source, KIND, KIND, ASKED) == "<user>Be kind\nBe kind\nhi"
    assert shown(source, ASKED, SAID, KIND, ASKED).endswith("<assistant>yes<user>Be kind\nhi")


def test_systems_of_other_templates_stay():
    assert shown(BODY, KIND, ASKED) == "<system>Be kind<user>hi"
    assert shown(FIRST, KIND, ASKED) == "<system>Be kind<user>hi"
    assert shown(FIRST, KIND, ASKED, KIND) == "<system>Be kind\n\nBe kind<user>hi"


def test_users_and_assistants_take_turns_where_they_must():
    assert shown(TURNS, ASKED, ASKED, SAID, SAID) == "<user>hi\n\nhi<assistant>yes\n\nyes"
    assert shown(BODY, ASKED, ASKED) == "<user>hi<user>hi"
    with pytest.raises(InputError, match="roles must alternate"):
        shown(TURNS, SAID)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{{ c.type + ':' + c.function.arguments }}", 'function:{"x": 1}'),
        ("{{ c.function.arguments }}", '{"x": 1}'),
        ("{{ c.function.arguments | tojson }}", '{"x": 1}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "x=1"),
        (
            "{{ c.function.arguments if c.function.arguments is string else"
            " c.function.arguments | tojson }}",
            '{"x": 1}',
        ),
    ],
)
def test_arguments_of_calls_are_what_the_template_reads(written, expected):
    source = BODY.replace(
        "{% endfor %}", f"{{% for c in m.tool_calls or [] %}}{written}{{% endfor %}}{{% endfor %}}"
    )
    assert shown(source, ASKED, CALLING, RESULT) == f"<user>hi<assistant>{expected}<tool>42"


def test_contents_that_are_null_are_empty():
    assert shown(BODY, ASKED, {"role": "assistant", "content": None}, ASKED) == (
        "<user>hi<assistant><user>hi"
    )


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, "messages is nothing: give a text, or a list"),
        ([], r"messages is \[\]: give a text, or a list of one message or more"),
        (ASKED, r"messages is \{'role': 'user', 'content': 'hi'\}: give a text, or a list"),
        (["hi"], "a message is 'hi': give a role and a content"),
        ([{"content": "hi"}], "a message is {'content': 'hi'}: give a role"),
        ([{"role": None, "content": "hi"}], "a message is {'role': None, 'content'"),
        ([{"role": "user"}], "a message of user has the content nothing: give a text, or parts"),
        ([{"role": "system", "content": None}], "a message of system has the content nothing"),
        ([ASKED, {"role": "assistant", "content": 5}], "of assistant has the content 5: give"),
        ([{**CALLING, "tool_calls": 5}], "a message has the tool_calls 5: give a list of calls"),
        ([{**CALLING, "tool_calls": CALL}], "a message has the tool_calls {'id': 'call00000'"),
        ([{**CALLING, "tool_calls": [5]}], "a message has the tool call 5: give a function with"),
    ],
)
def test_what_is_no_conversation_is_refused_without_the_template(messages, said):
    with pytest.raises(InputError, match=said):
        for_template(messages)


def test_results_of_tools_may_be_values_and_answers_without_a_text():
    empty = {"role": "assistant"}
    given = for_template([ASKED, empty, {**RESULT, "content": {"sum": 42}}])
    assert [each.get("content") for each in given] == ["hi", None, {"sum": 42}]
