"""The chat page in a real browser."""

from __future__ import annotations

import chromium
import httpx
import pytest
from pages import ANSWER, IDLE, TEXT, opened, say
from servers import MODEL, PLACE, serving, until

from edgespec import LLM
from edgespec.llm.llm import inside

pytestmark = [pytest.mark.slow, chromium.needed]


@pytest.fixture(scope="module")
def llm(served_bundle):
    return LLM(served_bundle, draft="lookup", context=256, **PLACE)


@pytest.fixture
def running(llm):
    with serving(llm) as running:
        yield running


@pytest.fixture
def page(running, tmp_path):
    with opened(running, tmp_path) as page:
        yield page


def conversation(llm, *said):
    messages = []
    for text in said:
        messages.append({"role": "user", "content": text})
        answer = llm.chat(messages, max_new_tokens=40).text
        messages.append({"role": "assistant", "content": answer})
    return [each["content"] for each in messages[1::2]]


def test_a_conversation_with_what_was_drafted_in_another_colour(page, llm):
    first, second = conversation(llm, "hello", "<b>and</b> then?")
    page.run("document.getElementById('drafts').checked = true")
    say(page, "hello")
    page.until(IDLE)
    assert page.run(TEXT) == first
    say(page, "<b>and</b> then?")
    page.until(IDLE)
    assert page.run(TEXT) == second
    assert page.run(f"{ANSWER}.querySelector('.text').textContent") == second
    drafted = page.run("document.querySelectorAll('article.assistant .drafted').length")
    colours = "[...new Set([...document.querySelectorAll('article span')]"
    assert drafted > 0
    assert len(page.run(f"{colours}.map((each) => getComputedStyle(each).color))]")) == 2
    assert "tokens/s" in page.run("document.getElementById('facts').textContent")
    assert page.run("document.querySelectorAll('article b, article.error').length") == 0


def press_during_an_answer(button, page, llm, running):
    """The answer is under way, and waits for its turn."""
    with inside(llm).engine.exclusive():
        say(page, "hello")
        until(lambda: running.queue.running == 1)
        page.run(f"document.getElementById('{button}').click()")
        page.until(IDLE)


def test_the_stop_button_ends_the_text(page, llm, running):
    press_during_an_answer("stop", page, llm, running)
    until(lambda: running.queue.running == 0)
    assert page.run("document.querySelectorAll('article.error').length") == 0
    assert running.metrics()['edgespec_texts_total{finish_reason="cancelled"}'] == 1


def test_a_new_conversation_knows_nothing_of_an_answer_under_way(page, llm, running):
    press_during_an_answer("reset", page, llm, running)
    say(page, "then?")
    page.until(IDLE)
    assert page.run(TEXT) == conversation(llm, "then?")[0]


def test_errors_are_shown(page):
    say(page, "too long " * 200)
    page.until("document.querySelectorAll('article.error').length")
    assert "shorten the prompt" in page.run("document.querySelector('.error').textContent")


def test_the_page_asks_for_the_key(llm, tmp_path):
    with (
        serving(llm, api_key="secret") as running,
        chromium.Page(tmp_path / "profile", running.url) as page,
    ):
        page.until("!document.getElementById('key-label').hidden")
        assert page.run("document.activeElement.id") == "key"
        page.run("document.getElementById('key').value = 'secret'")
        page.run("document.getElementById('key').onchange()")
        page.until(f"document.getElementById('model').textContent === '{MODEL}'")
        say(page, "hello")
        page.until(IDLE)
        assert page.run(TEXT) == conversation(llm, "hello")[0]


def test_the_page_needs_nothing_from_elsewhere(running):
    given = httpx.get(running.url)
    assert "default-src 'none'" in given.headers["content-security-policy"]
    assert "//" not in given.text.replace("// ", "")
