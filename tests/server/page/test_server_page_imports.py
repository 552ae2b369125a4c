"""The page's search, chats of other programs, kept prompts, keys and paper, in a real browser."""

from __future__ import annotations

import json

import chromium
import pytest
from pages import (
    ANSWER,
    CONTENTS,
    FOCUS,
    MINE,
    SHOWN,
    TITLES,
    asked,
    click,
    reload,
)

pytestmark = [pytest.mark.slow, chromium.needed]


def brought(page, *values):
    """Import files."""
    files = ", ".join(f"new File([{json.dumps(json.dumps(each))}], 'file.json')" for each in values)
    page.run(f"document.getElementById('status').textContent = ''; importTalks([{files}])")
    page.until("document.getElementById('status').textContent.endsWith('were imported.')")


def said(role, text, kind="text", **more):
    content = {"content_type": kind, "parts": [text]}
    return {"author": {"role": role}, "content": content, **more}


CHATGPT = [
    {
        "conversation_id": "6f1c-22",
        "title": "Rome",
        "update_time": 1700000000.5,
        "current_node": "d",
        "mapping": {
            "d": {"parent": "c2", "children": [], "message": said("assistant", "Three **days**.")},
            "root": {"parent": None, "children": ["s"], "message": None},
            "s": {"parent": "root", "children": ["a"], "message": said("system", "Be kind.")},
            "a": {"parent": "s", "children": ["b", "e"], "message": said("user", "When?")},
            "b": {"parent": "a", "children": ["c"], "message": said("assistant", "Let me look.")},
            "c": {
                "parent": "b",
                "children": ["c2"],
                "message": said("assistant", "search()", "code", recipient="web"),
            },
            "c2": {"parent": "c", "children": ["d"], "message": said("tool", "found")},
            "e": {"parent": "a", "children": [], "message": said("assistant", "Never.")},
            "x": {"parent": "y", "children": [], "message": said("user", "loop")},
            "y": {"parent": "x", "children": [], "message": said("user", "loop")},
        },
    }
]
PIXEL = "data:image/png;base64,iVA="
FOLDED = (
    '<details type="reasoning" done="true" duration="2">\n'
    "<summary>Thought</summary>\n&gt; Hm.\n</details>\n"
)
OPEN_WEBUI = [
    {
        "id": "9a-7",
        "title": "A cat",
        "updated_at": 1700000001,
        "chat": {
            "history": {
                "currentId": "n3",
                "messages": {
                    "n1": {
                        "parentId": None,
                        "role": "user",
                        "content": "What is it?",
                        "files": [{"type": "image", "url": PIXEL}, {"type": "file", "id": "z"}],
                    },
                    "n2": {"parentId": "n1", "role": "assistant", "content": "A dog."},
                    "n3": {"parentId": "n1", "role": "assistant", "content": FOLDED + "A cat."},
                },
            },
        },
    }
]


def test_chats_of_other_programs_are_imported(page):
    brought(page, CHATGPT, OPEN_WEBUI)
    assert page.run(TITLES) == ["A cat", "Rome"]
    click(page, "Rome")
    page.until(f"{ANSWER}?.querySelector('strong')?.textContent === 'days'")
    assert page.run(MINE) == ["When?"]
    asked(page, "And then?", "Home.")
    answer = "Let me look.\n\nThree **days**."
    assert page.run(CONTENTS) == ["When?", answer, "And then?"]
    click(page, "→")
    page.until(f"{SHOWN} === 'Never.'")
    click(page, "A cat")
    page.until(f"{SHOWN} === 'A cat.'")
    assert page.run("document.querySelector('article img').src") == PIXEL
    thought = page.run("talk.nodes[talk.leaf].message.reasoning_content")
    assert thought == "Hm."
    brought(page, OPEN_WEBUI[0])  # once more, and as a chat alone
    assert sorted(page.run(TITLES)) == ["A cat", "Rome"]


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1, None, "text"],
        [{"mapping": {"a": {"message": {"author": {"role": "user"}, "content": {"parts": 1}}}}}],
        [{"mapping": {"a": {"message": 1}}}],
        [{"chat": {"history": {"messages": {"a": None}}}}],
        [{"chat": {"history": {"messages": {"a": {"role": "user", "content": {}}}}}}],
        {"edgespec_chats": 1, "talks": [{"id": "../#", "title": "", "changed": 1, "nodes": []}]},
    ],
)  # fmt: skip
def test_other_files_are_refused(page, value):
    brought(page, value)
    assert "no chats of edgespec, ChatGPT or Open WebUI" in page.run(
        "document.querySelector('article.error').textContent"
    )
    assert page.run("store.talks.size") == 0


def test_what_is_imported_has_no_effect(page):
    hostile = json.loads(json.dumps(CHATGPT).replace("When?", "<img src=x onerror=window.hit=1>"))
    hostile[0]["title"] = "<script>window.hit=1</script>"
    hostile[0]["conversation_id"] = "../'\"><b>"
    pictures = json.loads(json.dumps(OPEN_WEBUI).replace(PIXEL, "http://127.0.0.1:9/x.png"))
    brought(page, hostile, pictures)
    page.run("document.querySelectorAll('#found .opens').forEach((each) => each.click())")
    assert page.run("window.hit ?? 0") == 0
    assert page.run("document.querySelectorAll('#said img, #said b, #found b').length") == 0
    assert page.run("[...store.talks.keys()].sort()") == ["9a-7", "b"]


def test_words_are_found_and_shown_where_they_are(page):
    asked(page, "About fruit", "Apples are red. " * 30 + "Plums are <b>blue</b>.")
    click(page, "New chat")
    asked(page, "About colours", "Blue is cold.")
    page.press("k", control=True)
    assert page.run(FOCUS) == "search"
    page.write("BLUE plums")
    assert page.run(TITLES) == ["About fruit"]
    excerpt = "document.querySelector('#found small')"
    assert "Plums are <b>blue</b>." in page.run(f"{excerpt}.textContent")
    assert page.run(f"{excerpt}.querySelector('mark').textContent") == "blue"
    assert page.run(f"{excerpt}.querySelectorAll('b').length") == 0
    click(page, "About fruit")
    page.until(f"{MINE}.join() === 'About fruit'")
    page.run("document.getElementById('search').value = 'blue green'; listTalks()")
    assert page.run(TITLES) == []


def test_prompts_are_kept_by_their_names(page):
    names = "[...document.querySelectorAll('#prompts option')].map((each) => each.value)"
    system = "document.getElementById('system').value"
    page.run("document.getElementById('settings').open = true")
    page.run("document.getElementById('prompts').value = 'Tutor'")
    page.run("document.getElementById('prompts').onchange()")
    assert "patient teacher" in page.run(system)
    page.run("document.getElementById('system').value = 'Rhyme.'")
    page.run("document.getElementById('prompt-name').value = 'Poet'")
    click(page, "Keep")
    assert "Poet" in page.run(names)
    page.run("document.getElementById('system').onchange()")
    asked(page, "hello", "yellow")
    assert page.run("sent[0].messages[0]") == {"role": "system", "content": "Rhyme."}
    reload(page)
    assert page.run("document.getElementById('prompts').value") == "Poet"
    page.run("document.getElementById('settings').open = true")
    click(page, "Forget")
    assert "Poet" not in page.run(names)
    assert page.run(system) == "Rhyme."


def test_keys_are_told(page):
    shown = "document.getElementById('help').open"
    page.press("?", shift=True)
    assert page.run(shown) is False  # it is written in the message
    assert page.run("document.getElementById('text').value") == "?"
    page.run("document.getElementById('text').value = ''")
    page.run("document.getElementById('said').focus()")
    page.press("?", shift=True)
    assert page.run(shown) is True
    assert "begins a new chat" in page.run("document.getElementById('help').innerText")
    page.press("Escape")
    page.until(f"!{shown}")
    page.press("Escape", shift=True)
    assert page.run(FOCUS) == "text"
    asked(page, "hello", "yes")
    page.press("o", control=True, shift=True)
    page.until(f"{MINE}.length === 0")


def test_paper_has_what_was_said_alone(page):
    asked(page, "hello", "See [this](https://a.org).\n\n" + "line\n\n" * 100)
    page.until(f"{ANSWER}.querySelector('a')")
    page.print()
    seen = "['header', 'nav', '#form', 'footer', '.actions', 'article.user', '.text']"
    visible = f"{seen}.filter((name) => document.querySelector(name).checkVisibility())"
    assert page.run(visible) == ["article.user", ".text"]
    said = "document.getElementById('said')"
    assert page.run(f"{said}.clientHeight === {said}.scrollHeight")
    address = f"getComputedStyle({ANSWER}.querySelector('a'), '::after').content"
    assert "https://a.org" in page.run(address)
