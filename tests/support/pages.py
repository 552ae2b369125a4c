"""The chat page in a browser: a user's actions, and answers that a test makes up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chromium
from servers import MODEL, Running

ANSWER = "[...document.querySelectorAll('article.assistant')].at(-1)"
TEXT = "talk.nodes[talk.leaf].message.content"
SHOWN = f"{ANSWER}.querySelector('.text').textContent.trim()"
IDLE = "document.getElementById('stop').hidden"
FOCUS = "document.activeElement.id"
TITLES = "[...document.querySelectorAll('#found .opens')].map((each) => each.textContent)"
CONTENTS = "sent.at(-1).messages.map((each) => each.content)"
MINE = "[...document.querySelectorAll('.mine')].map((each) => each.textContent)"

# Requests for answers are kept in `sent`, and the test says what comes.
_MADE_UP = """
  window.sent = [];
  const real = window.fetch;
  window.fetch = async (path, options) => {
    if (["render", "pdf"].includes(path)) return real(path, options);
    const {body, signal} = options;
    sent.push(JSON.parse(body));
    let stream = null;
    const answer = new ReadableStream({start: (controller) => { stream = controller; }});
    const send = (text) => stream.enqueue(new TextEncoder().encode(`data: ${text}\\n\\n`));
    const choice = (delta, finish_reason, edgespec) =>
      send(JSON.stringify({choices: [{delta, finish_reason}], edgespec}));
    signal.addEventListener("abort", () => stream.error(signal.reason));
    window.feed = (...deltas) => deltas.forEach((delta) => choice(delta, null));
    const silent = [{delta: {content: ""}, finish_reason: null}];
    window.read = (processed, total) =>
      send(JSON.stringify({choices: silent, prompt_progress: {processed, total}}));
    window.fail = (message) => send(JSON.stringify({error: {message}}));
    window.finish = (reason, edgespec) => {
      choice({}, reason, edgespec);
      send("[DONE]");
      stream.close();
    };
    return new Response(answer);
  };
"""


@contextmanager
def opened(running: Running, folder: Path) -> Iterator[chromium.Page]:
    """Open the page of a server, which has found its model and the server's tools."""
    with chromium.Page(folder / "profile", running.url) as page:
        page.until(f"served !== null && document.getElementById('model').textContent === '{MODEL}'")
        yield page


def say(page: chromium.Page, text: str, tokens: int = 40) -> None:
    """Send a message, for an answer of the likeliest tokens if the test sets no temperature."""
    page.run("document.getElementById('temperature').value ||= 0")
    page.run(f"document.getElementById('tokens').value = {tokens}")
    page.run(f"document.getElementById('text').value = {json.dumps(text)}")
    page.run("document.getElementById('send').click()")


def set_tools(page: chromium.Page, text: str) -> None:
    """Give the page tools, as its settings take them."""
    page.run(f"document.getElementById('tools').value = {json.dumps(text)}")
    page.run("document.getElementById('tools').onchange()")


def click(page: chromium.Page, name: str) -> None:
    """Click the last visible button of this name."""
    named = f"(each) => each.checkVisibility() && each.textContent === {json.dumps(name)}"
    page.run(f"[...document.querySelectorAll('button')].filter({named}).at(-1).click()")


def make_up(page: chromium.Page) -> None:
    """From now on, answers are what `feed` and `finish` say."""
    page.run(f"{{{_MADE_UP}}}")


def feed(page: chromium.Page, *deltas: dict[str, Any]) -> None:
    """Let deltas of the answer come."""
    page.run(f"feed(...{json.dumps(deltas)})")


def finish(page: chromium.Page, reason: str = "stop") -> None:
    """Let the answer end, and wait until the page has seen it."""
    page.run(f"finish('{reason}')")
    page.until(IDLE)


def asked(page: chromium.Page, question: str, answer: str, reason: str = "stop") -> None:
    """Ask a question, to which an answer comes."""
    say(page, question)
    feed(page, {"content": answer})
    finish(page, reason)


def reload(page: chromium.Page) -> None:
    """Load the page once more, whose chats are then there, and answers are made up again."""
    page.reload()
    page.until("store !== null && served !== null && document.querySelectorAll('#found li').length")
    make_up(page)


def called(index: int, arguments: str, **first: str) -> dict[str, Any]:
    """Returns a delta with a piece of a call; the first piece has `id` and `name`."""
    function = {"arguments": arguments}
    if first:
        function["name"] = first["name"]
    identity = {"id": first["id"], "type": "function"} if first else {}
    return {"tool_calls": [{"index": index, **identity, "function": function}]}
