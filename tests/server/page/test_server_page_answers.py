"""Reasoning and tool calls on the chat page, in a real browser."""

from __future__ import annotations

import json
from dataclasses import replace

import chromium
import pytest
from chats import TOOLS, WEATHER, template
from pages import (
    ANSWER,
    FOCUS,
    IDLE,
    TEXT,
    asked,
    called,
    click,
    feed,
    finish,
    make_up,
    opened,
    say,
    set_tools,
)
from pairs import with_eos
from repeating import make_repeating
from servers import PLACE, make_bundle, serving

from edgespec import LLM

pytestmark = [pytest.mark.slow, chromium.needed]

SUMMARIES = f"[...{ANSWER}.querySelectorAll('summary')].map((each) => each.textContent)"
FORM = "document.querySelector('.results')"
FACTS = "document.getElementById('facts').textContent"
PROBLEM = "document.getElementById('tools-problem').textContent"


class Caller(LLM):
    """A model of random weights that thinks a little, and calls a tool whenever a user asks."""

    def submit(self, request):
        self.asked = list(request.prompt)
        options = replace(request.options, thinking_budget=6)
        if options.tools and self.asked[-1]["role"] == "user":
            options = replace(options, tool_choice="required", parallel_tool_calls=False)
        return super().submit(replace(request, options=options))


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    source = template("hermes") + "{{ '</think>' if 0 }}<think>"
    path = with_eos(make_bundle(folder, source), folder / "ending", 0)
    with Caller(path, draft="lookup", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm) as running:
        yield running


@pytest.fixture
def page(running, tmp_path):
    with opened(running, tmp_path) as page:
        yield page


@pytest.fixture
def acted(page):
    """The page, with answers that the test makes up."""
    make_up(page)
    return page


def test_a_call_of_a_model_and_its_result(page, llm):
    set_tools(page, json.dumps(TOOLS))
    say(page, "hello", tokens=220)
    page.until(IDLE)
    thought, call = page.run(SUMMARIES)
    assert thought.startswith("Thought for ")
    assert call in ("Call of get_weather", "Call of clock")
    assert page.run(f"{FORM}.textContent").startswith(f"Result of {call.removeprefix('Call of ')}")
    assert page.run(f"{ANSWER}.querySelector('.thought > div').textContent")
    assert page.run(f"{ANSWER}.querySelector('.text')") is None
    page.run(f"{FORM}.querySelector('textarea').value = 'sunny <b>'")
    page.run(f"{FORM}.requestSubmit()")
    page.until(IDLE)
    assert page.run("document.querySelectorAll('article.error').length") == 0
    question, answer, result = llm.asked
    assert question == {"role": "user", "content": "hello"}
    [made] = answer["tool_calls"]
    assert made["function"]["name"] == call.removeprefix("Call of ")
    assert answer["reasoning_content"]
    assert result["tool_call_id"] == made["id"]
    assert (result["role"], result["content"]) == ("tool", "sunny <b>")


def test_reasoning_is_folded_and_tells_its_time(acted):
    say(acted, "hello")
    feed(acted, {"role": "assistant", "content": ""}, {"reasoning_content": "Let me "})
    acted.until(f"{ANSWER}.querySelector('summary')?.textContent === 'Thinking …'")
    assert acted.run(f"{ANSWER}.querySelector('details').open") is False
    feed(acted, {"reasoning_content": "see."}, {"content": "Well"})
    acted.until(f"/^Thought for [0-9.]+ s$/.test({SUMMARIES}[0])")
    feed(acted, {"content": "."})
    finish(acted)
    assert acted.run(f"{ANSWER}.querySelector('.thought > div').textContent") == "Let me see."
    assert acted.run(TEXT) == "Well."
    say(acted, "and?")
    answer = {"role": "assistant", "content": "Well.", "reasoning_content": "Let me see."}
    assert acted.run("sent[1].messages[1]") == answer


def test_reasoning_that_was_stopped_says_so(acted):
    say(acted, "hello")
    feed(acted, {"reasoning_content": "Let me "})
    acted.until(f"{SUMMARIES}.length")
    acted.press("Escape")
    acted.until(IDLE)
    assert acted.run(SUMMARIES)[0].endswith("unfinished")
    assert acted.run("document.getElementById('status').textContent") == "Stopped."


def test_the_page_says_how_much_of_a_prompt_was_read(acted):
    say(acted, "a long one")
    acted.until("sent.length === 1")
    assert acted.run("sent[0].return_progress")
    acted.run("read(512, 2139)")
    acted.until(
        f"{FACTS} === `reading ${{(512).toLocaleString()}} of ${{(2139).toLocaleString()}} tokens`"
    )
    feed(acted, {"content": "an"})
    acted.until(f"{FACTS} === ''")
    finish(acted)


def test_a_bar_shows_how_far_a_prompt_was_read(acted):
    bars = f"[...{ANSWER}.querySelectorAll('progress')].map(({{value, max}}) => value / max)"
    say(acted, "a long one")
    acted.until("sent.length === 1")
    acted.run("read(512, 2048)")
    acted.until(f"{bars}.join() === '0.25'")
    acted.run("read(2048, 2048)")
    acted.until(f"{bars}.join() === '1'")
    feed(acted, {"content": "an"})
    acted.until(f"{bars}.length === 0")
    finish(acted)
    click(acted, "Try again")
    acted.until("sent.length === 2")
    acted.run("read(512, 2048)")
    acted.until(f"{bars}.length === 1")
    acted.press("Escape")
    acted.until(IDLE)
    assert acted.run("document.querySelectorAll('progress').length") == 0
    assert acted.run(FACTS) == ""


def test_times_are_for_people(acted):
    shown = acted.run("[1234, 12345, 83456].map(seconds)")
    assert shown == ["1.2 s", "12 s", "1 min 23 s"]


def test_calls_are_put_together_by_their_numbers(acted):
    say(acted, "hello")
    feed(
        acted,
        {"content": "Two of them."},
        called(0, "", id="a", name="get_weather"),
        called(0, '{"city": "Ro'),
        called(1, "", id="b", name="clock"),
        called(0, 'me", "days": 12345678901234567890}'),
        called(1, "{}"),
    )
    acted.until(f"{SUMMARIES}.length === 2")
    finish(acted, "tool_calls")
    assert acted.run(SUMMARIES) == ["Call of get_weather", "Call of clock"]
    arguments = acted.run(f"[...{ANSWER}.querySelectorAll('pre')].map((each) => each.textContent)")
    # A number stays what the model wrote, even one that JavaScript's numbers cannot hold.
    assert arguments == ['{\n  "city": "Rome",\n  "days": 12345678901234567890\n}', "{}"]
    assert acted.run(f"{ANSWER}.querySelector('details').open") is False
    labels = acted.run(f"[...{FORM}.querySelectorAll('label')].map((each) => each.textContent)")
    assert labels == ["Result of get_weather (call 1)", "Result of clock (call 2)"]


def test_results_are_sent_together_when_all_are_there(acted):
    say(acted, "hello")
    feed(acted, called(0, "{}", id="a", name="clock"), called(1, "{}", id="b", name="clock"))
    finish(acted, "tool_calls")
    assert acted.run("document.activeElement === document.querySelector('.results textarea')")
    acted.write("noon")
    acted.press("Enter")
    # One is missing: the browser goes there, and nothing is sent.
    assert acted.run("document.activeElement === document.querySelectorAll('.results textarea')[1]")
    assert acted.run("sent.length") == 1
    acted.write("one")
    acted.press("Enter")
    assert acted.run("sent[1].messages.slice(2)") == [
        {"role": "tool", "tool_call_id": "a", "name": "clock", "content": "noon"},
        {"role": "tool", "tool_call_id": "b", "name": "clock", "content": "one"},
    ]
    first, second = acted.run("sent[1].messages[1].tool_calls")
    called_as = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
    assert (first, second) == ({"id": "a", **called_as}, {"id": "b", **called_as})
    assert acted.run(FOCUS) == "stop"
    feed(acted, {"content": "It is noon."})
    finish(acted)
    assert acted.run(TEXT) == "It is noon."
    assert acted.run(FOCUS) == "text"


def test_a_message_waits_for_the_results(acted):
    say(acted, "hello")
    feed(acted, called(0, "{}", id="a", name="clock"))
    finish(acted, "tool_calls")
    say(acted, "never mind")
    assert acted.run("sent.length") == 1
    assert acted.run("document.getElementById('text').value") == "never mind"
    assert acted.run("document.activeElement === document.querySelector('.results textarea')")


def test_an_answer_that_repeats_itself_is_stopped_and_goes_on(tmp_path):
    with (
        LLM(make_repeating(tmp_path), draft="lookup", **PLACE) as llm,
        serving(llm) as running,
        opened(running, tmp_path) as page,
    ):
        say(page, "hello", tokens=1000)
        page.until(IDLE)
        assert "repeats itself" in page.run(f"{ANSWER}.querySelector('.note').textContent")
        before = page.run(TEXT)
        click(page, "Continue")
        page.until(IDLE)
        after = page.run(TEXT)
        assert after.startswith(before)
        assert len(after) > len(before)


def test_who_has_the_oldest_messages_left_out_is_told_how_many(acted):
    shifts = "sent.filter((each) => each.messages).map((each) => each.context_shift ?? false)"
    asked(acted, "hello", "hi")
    acted.run("document.getElementById('shift').click()")
    say(acted, "and now?")
    feed(acted, {"content": "yes"})
    acted.run("finish('stop', {messages_left_out: 3})")
    acted.until(IDLE)
    assert acted.run(shifts) == [False, True]
    note = acted.run(f"{ANSWER}.querySelector('.note').textContent")
    assert note == "The 3 oldest messages had no room in the context, and were not read."
    assert acted.run("JSON.parse(localStorage.getItem('edgespec.settings')).shift") is True


def test_a_call_that_was_cut_is_not_sent_back(acted):
    say(acted, "hello")
    feed(acted, {"content": "So."}, called(0, '{"city": "R', id="a", name="get_weather"))
    finish(acted, "length")
    assert acted.run(SUMMARIES) == ["Unfinished call of get_weather"]
    assert acted.run(f"{ANSWER}.querySelector('pre').textContent") == '{"city": "R'
    assert acted.run(FORM) is None
    assert "Cut" in acted.run(f"{ANSWER}.querySelector('.note').textContent")
    say(acted, "and?")
    assert acted.run("sent[1].messages[1]") == {"role": "assistant", "content": "So."}


def test_an_answer_is_tried_again(acted):
    say(acted, "hello")
    feed(acted, {"content": "No."})
    finish(acted)
    acted.run("document.getElementById('retry').click()")
    acted.until("sent.length === 2")
    assert acted.run("JSON.stringify(sent[0]) === JSON.stringify(sent[1])")
    feed(acted, {"content": "Yes."})
    finish(acted)
    assert acted.run("document.querySelectorAll('article').length") == 2
    assert acted.run(TEXT) == "Yes."
    say(acted, "sure?")
    contents = [each["content"] for each in acted.run("sent[2].messages")]
    assert contents == ["hello", "Yes.", "sure?"]


def test_an_answer_that_failed_is_tried_again(acted):
    say(acted, "hello")
    acted.run("fail('the server is full: try later')")
    acted.until(IDLE)
    assert acted.run("document.querySelector('article.error[role=alert]').textContent").endswith(
        "later"
    )
    acted.run("document.getElementById('retry').click()")
    acted.until("sent.length === 2")
    assert acted.run("document.querySelectorAll('article.error').length") == 0
    assert acted.run("sent[1].messages") == [{"role": "user", "content": "hello"}]


def test_a_message_without_an_answer_is_not_sent_again(acted):
    say(acted, "hello")
    acted.run("fail('no')")
    acted.until(IDLE)
    say(acted, "well?")
    assert acted.run("sent[1].messages") == [{"role": "user", "content": "well?"}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "This is no JSON"),
        ("{}", "between [ and ]"),
        ("[null]", "Tool 1 is no function"),
        ('[{"type": "function", "name": "f"}]', "Tool 1 is no function"),
        ('[{"type": "function", "function": {}}]', "The name of tool 1 is missing"),
        ('[{"type": "function", "function": {"name": "a b"}}]', 'is "a b": use up to 128 letters'),
        ('[{"type": "function", "function": {"name": "f", "parameters": []}}]', "no JSON schema"),
        (json.dumps([WEATHER, WEATHER]), 'Two tools have the name "get_weather"'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tools_is_told(acted, text, problem):
    set_tools(acted, text)
    assert problem in acted.run(PROBLEM)
    assert acted.run("document.getElementById('tools').ariaInvalid") == "true"
    say(acted, "hello")
    assert acted.run("sent.length") == 0
    assert acted.run(FOCUS) == "tools"
    assert acted.run("document.getElementById('settings').open")
    set_tools(acted, json.dumps([WEATHER]))
    assert acted.run(PROBLEM) == ""
    say(acted, "hello")
    assert acted.run("sent[0].tools") == [WEATHER]


def test_tools_stay_in_the_browser(page, running):
    set_tools(page, json.dumps(TOOLS))
    page.open(running.url)
    assert json.loads(page.run("document.getElementById('tools').value")) == TOOLS


def test_a_model_without_tools_is_asked_without(served_bundle, tmp_path):
    with (
        LLM(served_bundle, draft="none", **PLACE) as llm,
        serving(llm) as running,
        opened(running, tmp_path) as page,
    ):
        assert page.run("document.getElementById('for-tools').hidden")
        page.run(f"document.getElementById('tools').value = {json.dumps(json.dumps(TOOLS))}")
        make_up(page)
        say(page, "hello")
        assert "tools" not in page.run("sent[0]")
