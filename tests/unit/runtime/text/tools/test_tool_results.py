"""Results of tools come behind their calls, in the order of these, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.llm.messages import for_template
from edgespec.runtime.text.template.chat import ChatTemplate

SOURCE = """{% for m in messages %}<{{ m.role }}>{{ m.name }}:{{ m.content }}
{%- for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}{% endfor %}"""
ASKED = {"role": "user", "content": "hello"}


def calling(*calls):
    made = [{"id": id_, "function": {"name": name, "arguments": "{}"}} for id_, name in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


def said(content, id_=None, **further):
    return {"role": "tool", "content": content, **({"tool_call_id": id_} if id_ else {}), **further}


def told(*messages):
    """The names and contents of results, in the order in which a template shows them."""
    converted = for_template([ASKED, *messages])
    return [(m.get("name"), m["content"]) for m in converted if m["role"] == "tool"]


CALLS = calling(("a", "rain"), ("b", "wind"), ("c", "rain"))
IN_ORDER = [("rain", "1"), ("wind", "2"), ("rain", "3")]


@given(st.permutations([said("1", "a"), said("2", "b"), said("3", "c")]))
def test_results_come_in_the_order_of_their_calls(results):
    assert told(CALLS, *results) == IN_ORDER


@pytest.mark.parametrize(
    "results",
    [
        [said("1"), said("2"), said("3")],
        [said("2", name="wind"), said("1", name="rain"), said("3", name="rain")],
        [said("1"), said("3", "c"), said("2", "b")],
        [said("3", "c"), said("1"), said("2")],
    ],
    ids=["order", "names", "one", "last"],
)
def test_results_without_ids_belong_to_the_calls_that_are_left(results):
    assert told(CALLS, *results) == IN_ORDER


def test_calls_without_ids_are_answered_in_their_order():
    calls = calling((None, "rain"), (None, "wind"))
    assert told(calls, said("1"), said("2")) == IN_ORDER[:2]
    assert told(calls, said("1", "x"), said("2", "y")) == IN_ORDER[:2]
    assert told(calls, said("2", name="wind"), said("1")) == IN_ORDER[:2]


def test_ids_that_come_twice_are_of_their_own_answers():
    first = calling(("0", "rain"))
    second = calling(("0", "wind"))
    assert told(first, said("1", "0"), second, said("2", "0")) == IN_ORDER[:2]
    both = calling(("0", "rain"), ("0", "wind"))
    assert told(both, said("1", "0"), said("2", "0")) == IN_ORDER[:2]


def test_calls_in_several_messages_are_answered_together():
    """As of the Responses API, where reasoning stands between two calls."""
    calls = [calling(("a", "rain")), calling(("b", "wind"))]
    assert told(*calls, said("2", "b"), said("1", "a")) == IN_ORDER[:2]


def test_results_of_no_call_stay_and_late_ones_have_their_names():
    assert told(CALLS, said("?", "z"), said("2", "b")) == [("wind", "2"), (None, "?")]
    assert told(CALLS, said("2", "b"), ASKED, said("1", "a")) == [("wind", "2"), ("rain", "1")]
    assert told(said("1"), said("2", "a")) == [(None, "1"), (None, "2")]
    assert told(CALLS, *[said(str(n)) for n in range(1, 5)]) == [*IN_ORDER, (None, "4")]


def test_templates_that_show_no_ids_show_the_same():
    template = ChatTemplate(SOURCE, {})
    results = [said("1", "a"), said("2", "b"), said("3", "c")]
    shown = template.render(for_template([ASKED, CALLS, *results]))
    assert template.render(for_template([ASKED, CALLS, *results[::-1]])) == shown
    assert shown.endswith("<tool>rain:1<tool>wind:2<tool>rain:3")


def test_names_that_are_given_stay():
    assert told(CALLS, said("1", "a", name="mine")) == [("mine", "1")]
