"""The page's menu of models, in a real browser."""

from __future__ import annotations

import chromium
import pytest
from pages import IDLE, click, say
from servers import PLACE, serving

from edgespec import bundle
from edgespec.llm.load.options import LoadOptions
from edgespec.serve.models import Models
from edgespec.serve.served_model import ServedModel

pytestmark = [pytest.mark.slow, chromium.needed]

MENU = "document.getElementById('models')"
LABELS = f"[...{MENU}.options].map((each) => each.label)"


@pytest.fixture
def page(served_bundle, tmp_path):
    """The page of a server whose second model was not asked yet."""
    found = bundle.load(served_bundle)
    first, second = (
        ServedModel(name, found, LoadOptions(draft="none", context=256, **PLACE))
        for name in ("first", "second")
    )
    first.load()
    with (
        serving(Models([first, second], most=1)) as running,
        chromium.Page(tmp_path / "profile", running.url) as page,
    ):
        page.until("model !== null && store !== null")
        yield page


def choose(page, name):
    page.run(f"{MENU}.value = '{name}'; {MENU}.onchange()")


def test_the_menu_says_which_are_loaded_and_has_the_chosen_one_answer(page):
    assert page.run(f"{MENU}.checkVisibility()")
    assert page.run("document.getElementById('model').textContent") == ""
    assert page.run(LABELS) == ["first", "second (not loaded)"]
    choose(page, "second")
    say(page, "hello", 8)
    page.until(f"{IDLE} && talk.nodes.length === 2")
    page.until(f"{LABELS}.join() === 'first (not loaded),second'")
    assert page.run(f"{MENU}.value") == "second"


def test_a_chat_keeps_its_model(page):
    say(page, "One?", 4)
    page.until(f"{IDLE} && talk.nodes.length === 2")
    click(page, "New chat")
    choose(page, "second")
    say(page, "Two?", 4)
    page.until(f"{IDLE} && talk.nodes.length === 2")
    click(page, "New chat")
    assert page.run(f"[model, {MENU}.value]") == ["second", "second"]  # as it was chosen last
    page.run("[...document.querySelectorAll('#found .opens')].at(-1).click()")
    page.until("document.querySelector('.mine')?.textContent === 'One?'")
    assert page.run(f"[model, {MENU}.value]") == ["first", "first"]
    choose(page, "second")
    page.run("document.querySelector('#found .opens').click()")
    page.open(page.run("location.href"))
    page.until("model !== null && document.querySelectorAll('#found li').length === 2")
    assert page.run("[...store.talks.values()].map((each) => each.model)") == ["second", "second"]
