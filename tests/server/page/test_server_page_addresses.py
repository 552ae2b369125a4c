"""Chats have addresses, answers go on while others are looked at, and tabs show the same."""

from __future__ import annotations

import chromium
import pytest
from pages import (
    ANSWER,
    CONTENTS,
    IDLE,
    MINE,
    SHOWN,
    TITLES,
    asked,
    click,
    feed,
    make_up,
    reload,
    say,
)

pytestmark = [pytest.mark.slow, chromium.needed]

ENTRIES = "[...document.querySelectorAll('#found .opens')]"


def has(page, *questions):
    page.until(f"{MINE}.join('|') === '{'|'.join(questions)}'")


@pytest.mark.parametrize("width", [375, 1280])
def test_a_reload_stays_in_the_chat(page, width):
    page.resize(width)
    asked(page, "First", "1")
    click(page, "New chat")
    asked(page, "Second", "2")
    assert page.run("document.title") == "Second - edgespec"
    page.run(f"{ENTRIES}[1].click()")
    has(page, "First")
    reload(page)
    has(page, "First")
    assert page.run("document.title") == "First - edgespec"


def test_back_and_forward_go_through_the_chats(page):
    asked(page, "First", "1")
    click(page, "New chat")
    asked(page, "Second", "2")
    page.run(f"{ENTRIES}[1].click()")
    has(page, "First")
    page.run("history.back()")
    has(page, "Second")
    page.run("history.back()")
    has(page, "First")
    page.run("history.forward()")
    has(page, "Second")


def test_an_address_without_a_chat_says_so(page, running):
    page.open(f"{running.url}/#nowhere")
    page.until("document.querySelector('article.error')?.textContent.includes('no chat')")
    assert page.run("location.hash") == ""


def test_an_answer_goes_on_while_another_chat_is_looked_at(page):
    say(page, "Slow")
    feed(page, {"content": "so "})
    page.until(f"{ANSWER}.textContent.includes('so')")
    page.run("window.slow = {feed, finish}")
    click(page, "New chat")
    assert page.run(IDLE)
    assert page.run(f"{ENTRIES}.map((each) => each.ariaDescription)") == ["is being answered"]
    say(page, "Quick")
    page.run("window.quick = {feed, finish}")
    page.run("slow.feed({content: 'far'}); quick.feed({content: 'at once'})")
    page.run("quick.finish('stop')")
    page.until(IDLE)
    assert page.run(CONTENTS) == ["Quick"]
    assert page.run(SHOWN) == "at once"
    page.run("history.back()")
    has(page, "Slow")
    assert not page.run(IDLE)
    page.until(f"{SHOWN} === 'so far'")
    page.run("slow.feed({content: ' and on'}); slow.finish('stop')")
    page.until(IDLE)
    assert page.run(SHOWN) == "so far and on"
    assert page.run(MINE) == ["Slow"]
    click(page, "Try again")
    page.until("sent.length === 3")


def test_an_answer_ends_while_another_chat_is_looked_at(page):
    say(page, "Slow")
    page.run("window.slow = {feed, finish, fail}")
    click(page, "New chat")
    page.run("slow.feed({content: '**done**'}); slow.finish('stop')")
    page.until("document.getElementById('status').textContent === 'Slow was answered.'")
    page.run(f"{ENTRIES}[0].click()")
    page.until(f"{ANSWER}?.querySelector('strong')?.textContent === 'done'")
    click(page, "Try again")
    page.until("sent.length === 2")
    page.run("window.slow = {fail}")
    click(page, "New chat")
    page.run("slow.fail('no')")
    page.until("document.querySelector('article.error')?.textContent === 'Slow: no'")


def test_tabs_show_the_same_chats(page, running):
    asked(page, "First", "1")
    page.open_tab(page.run("location.href"))
    has(page, "First")
    make_up(page)
    page.run("window.kept = document.querySelector('article.user')")
    page.switch(0)
    asked(page, "More", "2")
    click(page, "New chat")
    asked(page, "Second", "3")
    page.switch(1)
    has(page, "First", "More")
    page.until(f"{TITLES}.join() === 'Second,First' && {SHOWN} === '2'")
    assert page.run("kept.isConnected")  # what did not change is not shown anew
    asked(page, "And then?", "4")
    assert page.run(CONTENTS) == ["First", "1", "More", "2", "And then?"]
    page.run("document.querySelector('[title=Delete]').click()")
    page.run("document.querySelector('[title=Delete]').click()")
    page.switch(0)
    page.until(f"{TITLES}.join() === 'Second'")


def test_a_chat_that_another_tab_deletes_does_not_come_back(page):
    say(page, "Unwanted")
    feed(page, {"content": "so far"})
    page.until(f"{ANSWER}.textContent.includes('so far')")
    page.open_tab(page.run("location.href"))
    page.until(f"{TITLES}.length === 1")
    page.run("document.querySelector('[title=Delete]').click()")
    page.run("document.querySelector('[title=Delete]').click()")
    page.switch(0)
    page.until(f"{IDLE} && {TITLES}.length === 0")
    assert page.run("location.hash") == ""
    page.switch(1)
    page.reload()
    page.until("store !== null")
    assert page.run("store.talks.size") == 0
