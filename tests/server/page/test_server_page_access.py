"""Whether all can use the chat page: by keyboard, by ear, on a small screen, in both themes."""

from __future__ import annotations

import json

import chromium
import pytest
from pages import ANSWER, FOCUS, IDLE, asked, called, feed, finish, make_up, opened, say
from servers import PLACE, serving

from edgespec import LLM

pytestmark = [pytest.mark.slow, chromium.needed]

# Texts with too little contrast (WCAG 2.2, 1.4.3: 4.5 to 1), and controls with too faint a border
# (1.4.11: 3 to 1).
FAINT = """(() => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3)
    .map((value) => value / 255)
    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const ratio = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return numbers(colour)[3] === 0 ? behind(element.parentElement) : colour;
  };
  const found = [];
  const check = (what, colour, element, least) => {
    const contrast = ratio(colour, behind(element));
    if (contrast < least) found.push(`${what}: ${contrast.toFixed(2)}`);
  };
  for (const element of document.querySelectorAll("body, body *:not(script)")) {
    if (!element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (texts.length) check(texts[0].data.slice(0, 30), style.color, element, 4.5);
    if (element.placeholder) {
      check(element.placeholder, getComputedStyle(element, "::placeholder").color, element, 4.5);
    }
    const edged = numbers(style.borderTopColor)[3] !== 0;
    if (edged && element.matches("input, textarea, button, select")) {
      check(element.id || element.textContent, style.borderTopColor, element.parentElement, 3);
    }
  }
  return found;
})()"""

SHOWN = """[...document.querySelectorAll("button, input, textarea, summary")]
  .filter((each) => each.checkVisibility())"""


@pytest.fixture(scope="module")
def running(served_bundle):
    with LLM(served_bundle, draft="lookup", context=256, **PLACE) as llm, serving(llm) as running:
        yield running


@pytest.fixture
def page(running, tmp_path):
    with opened(running, tmp_path) as page:
        make_up(page)
        yield page


def converse(page):
    """Fill the page with all that it may show."""
    say(page, "What is the weather?")
    feed(page, {"content": "I do not know."})
    finish(page, "length")
    say(page, "Look it up.")
    feed(page, {"reasoning_content": "They want to know more."}, {"content": "Let me see. "})
    feed(page, called(0, '{"city": "Rome", "days": [1, 2]}', id="a", name="get_weather"))
    finish(page, "tool_calls")


def test_all_has_a_name_for_screen_readers(page):
    converse(page)
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    page.run("document.getElementById('key-label').hidden = false")
    page.run("document.getElementById('for-tools').hidden = false")
    found = page.reachable()
    names = [name for _, name in found]
    assert all(name.strip() for name in names), found
    wanted = [
        "Settings",
        "System prompt",
        "Temperature",
        "Top-p",
        "Seed",
        "Max tokens",
        "JSON schema",
        "Tools",
        "API key",
        "New chat",
        "Search in chats",
        "What is the weather?",
        "Rename What is the weather?",
        "Delete What is the weather?",
        "Export",
        "Import",
        "Conversation",
        "Edit",
        "Copy",
        "Call of get_weather",
        "Result of get_weather",
        "Send result",
        "Try again",
        "Message",
        "Attach",
        "Send",
    ]
    places = [names.index(name) for name in wanted]
    assert places == sorted(places)


def test_the_tab_key_goes_everywhere_and_is_seen(page):
    converse(page)
    page.run("document.getElementById('settings').firstElementChild.focus()")
    seen = []
    for _ in range(20):
        seen.append(page.run(f"{FOCUS} || document.activeElement.textContent"))
        style = page.run("getComputedStyle(document.activeElement).outline")
        assert "solid 2px" in style, (seen, style)
        page.press("Tab")
    chats = ["search", "What is the weather?", "✎", "✕", "export", "import"]
    assert seen[:9] == ["Settings", "reset", *chats, "said"]
    assert seen[9:12] == ["Edit", "Copy", "Edit"]
    assert seen[12].startswith("Thought for")
    rest = ["Call of get_weather", "", "Send result", "Copy", "retry", "text", "attach"]
    assert seen[13:] == rest
    assert page.run(FOCUS) == "send"


def test_a_fold_is_opened_with_the_keyboard(page):
    converse(page)
    page.run(f"{ANSWER}.querySelector('summary').focus()")
    page.press("Enter")
    assert page.run(f"{ANSWER}.querySelector('details').open")


def test_escape_stops_and_the_focus_is_not_lost(page):
    assert page.run(FOCUS) == "text"
    page.write("hello")
    page.press("Tab")
    page.press("Tab")
    page.press("Enter")
    assert page.run(FOCUS) == "stop"
    page.press("Escape")
    page.until(IDLE)
    assert page.run(FOCUS) == "text"
    # What was asked can be asked again, and a stop before the first word leaves no empty answer.
    assert page.run("document.querySelectorAll('article').length") == 1
    page.press("Tab", shift=True)
    assert page.run(FOCUS) == "retry"


def test_escape_closes_the_settings(page):
    page.run("document.getElementById('settings').open = true")
    page.run("document.getElementById('temperature').focus()")
    page.press("Escape")
    assert page.run("document.getElementById('settings').open") is False
    assert page.run("document.activeElement.textContent") == "Settings"


def test_who_reads_elsewhere_stays_there(page):
    say(page, "hello")
    feed(page, {"reasoning_content": "Hm."})
    page.until(f"{ANSWER}.querySelectorAll('summary').length")
    page.run(f"{ANSWER}.querySelector('summary').focus()")
    feed(page, {"content": "Well."})
    finish(page)
    assert page.run("document.activeElement.tagName") == "SUMMARY"


def test_an_answer_is_read_out_once_and_not_word_by_word(page):
    page.run("""{
      window.heard = [];
      const changes = {subtree: true, childList: true, characterData: true};
      for (const each of document.querySelectorAll("[aria-live], [role=status], [role=log]")) {
        const watch = () => { if (each.textContent) heard.push(each.textContent); };
        new MutationObserver(watch).observe(each, changes);
      }
    }""")
    say(page, "hello")
    words = [f"word{number} " for number in range(40)]
    feed(page, {"reasoning_content": "Let "}, {"reasoning_content": "me."})
    page.until(f"{ANSWER}.querySelectorAll('summary').length")
    assert page.run(f"{ANSWER}.ariaBusy") == "true"
    feed(page, *({"content": word} for word in words))
    finish(page)
    assert page.run(f"{ANSWER}.ariaBusy") == "false"
    assert page.run("heard") == ["The model thinks.", "".join(words)]


def say_code(page):
    """Show an answer with code, a quote and a table."""
    page.run("new AnswerView().add({content: " + json.dumps(_CODE) + "})")
    page.until("document.querySelectorAll('figure .c-k').length")


_CODE = """```python
@cache
def f(x: int = 3) -> str:
    "Says it."
    return f"{x}" and None  # so
```
```diff
-old
+new
```
> quoted

| a | b |
|---|---|
| 1 | `2` |
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_is_enough(page, theme):
    page.prefer(color_scheme=theme)
    converse(page)
    page.run("complain('It failed.')")
    page.run("document.querySelector('.text p').className = 'drafted'")
    say_code(page)
    page.run("tell('9 tokens/s')")
    page.run("showResult('clock', 'noon')")
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    page.run("document.getElementById('tools-problem').textContent = 'This is no JSON'")
    assert page.run(FAINT) == []
    # The check sees what it looks for.
    page.run("document.getElementById('facts').style.color = 'rgb(120, 120, 120)'")
    assert len(page.run(FAINT)) == 1
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (theme == "light")


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_cut_off_or_too_small_to_hit(page, width):
    page.resize(width)
    converse(page)
    page.run("document.getElementById('settings').open = true")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.getElementById('said').scrollWidth") <= width
    places = f"{SHOWN}.map((each) => each.getBoundingClientRect())"
    for left, right, height in page.run(f"{places}.map((r) => [r.left, r.right, r.height])"):
        assert left >= 0
        assert right <= width
        assert height >= 24  # WCAG 2.2, 2.5.8


@pytest.mark.parametrize("height", [667, 812])
def test_what_is_said_has_most_of_a_small_screen(page, height):
    page.resize(375, height)
    heights = (
        "['header', '#after', '#form', 'footer']"
        ".map((name) => document.querySelector(name).getBoundingClientRect().height)"
    )
    assert sum(page.run(heights)) <= height / 5
    asked(page, "hello", "Well.")
    page.run("tell('23 tokens/s, 1.52 tokens per round')")
    header, _, form, footer = page.run(heights)
    assert header + form + footer <= height / 5
    assert page.run("document.documentElement.scrollHeight") <= height
    page.write("word\n" * 50)
    assert page.run("document.getElementById('text').getBoundingClientRect().height") < height / 2


def test_nothing_moves_for_who_does_not_want_it(page):
    moving = f"getComputedStyle({ANSWER}, '::after').animationName"
    say(page, "hello")
    page.prefer(reduced_motion="no-preference")
    assert page.run(moving) == "waiting"
    page.prefer(reduced_motion="reduce")
    assert page.run(moving) == "none"


def test_who_reads_further_up_is_left_there(page):
    say(page, "hello")
    feed(page, {"content": "line\n" * 100})
    page.until(f"{ANSWER}.querySelectorAll('br').length === 99")
    said = "document.getElementById('said')"
    assert page.run(f"{said}.scrollHeight - {said}.scrollTop - {said}.clientHeight") < 2
    page.run(f"{said}.scrollTop = 100")
    feed(page, {"content": "more"})
    finish(page)
    assert page.run(f"{said}.scrollTop") == 100
