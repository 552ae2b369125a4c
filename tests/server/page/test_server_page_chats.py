"""What the chat page keeps of conversations, and how it shows answers, in a real browser."""

from __future__ import annotations

import json
from base64 import b64encode
from html.parser import HTMLParser

import chromium
import pytest
from pages import (
    ANSWER,
    CONTENTS,
    FOCUS,
    IDLE,
    MINE,
    SHOWN,
    TEXT,
    TITLES,
    asked,
    click,
    feed,
    finish,
    reload,
    say,
)
from pdfs import make_pdf
from servers import MODEL

from edgespec.serve import formulas
from edgespec.serve.markdown import blocks

pytestmark = [pytest.mark.slow, chromium.needed]

PROBLEM = "document.getElementById('files-problem').textContent"
VERSIONS = "[...document.querySelectorAll('.actions span')].map((each) => each.textContent)"


def drop(page, name, text):
    """Drop a file on the page."""
    page.run(f"attach([new File([{json.dumps(text)}], {json.dumps(name)})])")
    page.until("document.getElementById('text') === document.activeElement")


def test_a_reload_loses_nothing(page):
    asked(page, "One?", "It is **one**.")
    asked(page, "Two?", "`two`")
    reload(page)
    page.until("document.querySelectorAll('article').length === 4")
    page.until(f"{SHOWN} === 'two'")
    page.until("document.querySelector('.text strong')?.textContent === 'one'")
    asked(page, "Three?", "3")
    assert page.run(CONTENTS) == ["One?", "It is **one**.", "Two?", "`two`", "Three?"]


def test_what_came_of_an_answer_is_there_after_a_reload(page):
    say(page, "hello")
    feed(page, {"content": "begun "})
    page.until("talk.nodes.length === 1")
    page.run("new Promise((resolve) => setTimeout(resolve, 1100))")
    page.until("performance.now() > 0 && (feed({content: 'more '}), talk.nodes.length === 2)")
    reload(page)
    page.until("document.querySelectorAll('article.assistant').length")
    assert page.run(TEXT).startswith("begun more")
    assert page.run("document.getElementById('continue').hidden") is False


def test_chats_are_listed_found_renamed_and_deleted(page):
    asked(page, "About apples", "Yes.")
    click(page, "New chat")
    asked(page, "About pears", "No, plums.")
    assert page.run(TITLES) == ["About pears", "About apples"]
    page.run("document.getElementById('search').value = 'PLUM'; listTalks()")
    assert page.run(TITLES) == ["About pears"]
    page.run("document.getElementById('search').value = ''; listTalks()")
    page.run("document.querySelectorAll('#found .opens')[1].click()")
    page.until("document.querySelector('.mine')?.textContent === 'About apples'")
    asked(page, "Go on", "So.")
    assert page.run(CONTENTS) == ["About apples", "Yes.", "Go on"]
    page.run("document.querySelector('[title=Rename]').click()")
    page.write("Fruit")
    page.press("Enter")
    assert page.run(TITLES) == ["Fruit", "About pears"]
    page.run("document.querySelectorAll('[title=Delete]')[0].click()")
    assert len(page.run(TITLES)) == 2  # it asks first
    page.run("document.querySelectorAll('[title=Delete]')[0].click()")
    page.until(f"{TITLES}.length === 1")
    page.until("document.querySelectorAll('article').length === 0")


def test_an_image_goes_before_a_message(page):
    give = "attach([new File([new Uint8Array([137, 80])], 'cat.png', {type: 'image/png'})])"
    page.run(give)
    page.until(f"{PROBLEM}.includes('the model reads text alone')")
    page.run("seesImages = true")
    page.run(give)
    page.until("attached.length === 1")
    asked(page, "What is it?", "A cat.")
    image, text = page.run("sent[0].messages[0].content")
    assert image == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVA="}}
    assert text == {"type": "text", "text": "What is it?"}
    reload(page)
    page.until("document.querySelector('article img')?.alt === 'cat.png'")
    asked(page, "Sure?", "Yes.")
    assert page.run("sent.at(-1).messages[0].content[0].type") == "image_url"


def test_an_empty_chat_greets_and_gives_things_to_try(page):
    greeting = "document.querySelector('.greeting')"
    assert page.run(f"{greeting}.querySelector('h2').textContent") == MODEL
    assert page.run(f"{greeting}.querySelectorAll('button').length") == 3
    text = page.run(f"{greeting}.querySelector('button').textContent")
    page.run(f"{greeting}.querySelector('button').click()")
    feed(page, {"content": "So."})
    finish(page)
    assert page.run(CONTENTS) == [text]
    assert page.run(greeting) is None
    click(page, "New chat")
    assert page.run(f"{greeting}.querySelectorAll('button').length") == 3


def give(page, event, name, kind, content):
    """Hand a file to the page as a paste or a drop."""
    field = "clipboardData" if event == "paste" else "dataTransfer"
    page.run(f"""{{
      const text = atob({json.dumps(b64encode(content).decode())});
      const bytes = Uint8Array.from(text, (each) => each.charCodeAt());
      const given = new DataTransfer();
      given.items.add(new File([bytes], {json.dumps(name)}, {{type: {json.dumps(kind)}}}));
      const happens = new Event({json.dumps(event)}, {{bubbles: true, cancelable: true}});
      happens.{field} = given;
      document.getElementById("text").dispatchEvent(happens);
    }}""")


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_images_are_pasted_and_dropped(page, event):
    page.run("seesImages = true")
    give(page, event, "cat.png", "image/png", b"\x89P")
    page.until("attached.length === 1")
    asked(page, "What is it?", "A cat.")
    assert page.run("sent[0].messages[0].content[0].type") == "image_url"


def test_the_text_of_a_pdf_file_goes_before_a_message(page):
    pytest.importorskip("pypdf")
    give(page, "drop", "a.PDF", "", make_pdf("Text of a page"))
    page.until("attached.length === 1")
    give(page, "drop", "b.pdf", "application/pdf", make_pdf(""))
    page.until(f"{PROBLEM}.startsWith('b.pdf is not attached: a PDF file has no text')")
    asked(page, "What does it say?", "Text.")
    assert page.run(CONTENTS) == ["a.PDF:\n```\nText of a page\n```\n\nWhat does it say?"]


def test_what_the_server_refuses_is_not_shown_behind_the_next_question(page):
    page.run("seesImages = true")
    give(page, "paste", "cat.png", "image/png", b"\x89P")
    page.until("attached.length === 1")
    say(page, "What is it?")
    page.run("fail('a picture is damaged')")
    page.until(f"{IDLE} && document.querySelector('article.error')")
    asked(page, "Never mind.", "Well.")
    assert page.run(MINE) == ["Never mind."]
    assert page.run("document.querySelectorAll('article img, article.error').length") == 0


def test_an_edited_question_is_a_branch(page):
    asked(page, "First", "1")
    asked(page, "Secnod", "2")
    click(page, "Edit")
    page.run("document.querySelector('.edited textarea').value = 'Second'")
    page.run("document.querySelector('.edited').requestSubmit()")
    page.until("sent.length === 3")
    assert page.run(CONTENTS) == ["First", "1", "Second"]
    feed(page, {"content": "two"})
    finish(page)
    assert page.run(MINE) == ["First", "Second"]
    assert page.run(VERSIONS) == ["2 / 2"]
    click(page, "←")
    page.until(f"{MINE}.at(-1) === 'Secnod'")
    assert page.run(SHOWN) == "2"
    assert page.run(VERSIONS) == ["1 / 2"]
    assert page.run("document.activeElement.ariaLabel") == "Earlier version"
    click(page, "→")
    page.until(f"{MINE}.at(-1) === 'Second'")
    assert page.run(SHOWN) == "two"


def test_an_answer_that_was_tried_again_keeps_the_first(page):
    asked(page, "Well?", "no")
    click(page, "Try again")
    page.until("sent.length === 2")
    feed(page, {"content": "yes"})
    finish(page)
    assert page.run(VERSIONS) == ["2 / 2"]
    click(page, "←")
    page.until(f"{SHOWN} === 'no'")


def test_an_answer_that_was_cut_goes_on(page):
    asked(page, "Count.", "one two", "length")
    click(page, "Continue")
    page.until("sent.length === 2")
    assert page.run("sent[1].messages.at(-1)") == {"role": "assistant", "content": "one two"}
    feed(page, {"content": " three"})
    finish(page)
    assert page.run(SHOWN) == page.run(TEXT) == "one two three"
    assert page.run("document.querySelectorAll('article').length") == 2
    assert page.run("document.getElementById('continue').hidden")


def test_chats_are_exported_and_imported(page):
    asked(page, "Keep this", "Kept.")
    page.run(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; });"
        " return 'blob:' + location.origin + '/x'; }"
    )
    click(page, "Export")
    page.until("window.saved")
    page.run("document.querySelectorAll('[title=Delete]')[0].click()")
    page.run("document.querySelectorAll('[title=Delete]')[0].click()")
    page.until(f"{TITLES}.length === 0")
    page.run("importTalks([new File([saved], 'chats.json')])")
    page.until(f"{TITLES}.length === 1")
    broken = json.loads(page.run("saved"))
    broken["talks"][0]["nodes"][1]["message"]["tool_calls"] = [{"id": "a"}]
    for text in ("[", "{}", '{"edgespec_chats": 1, "talks": [{}]}', json.dumps(broken)):
        page.run(f"importTalks([new File([{json.dumps(text)}], 'other.json')])")
        page.until("document.querySelector('article.error')")
        assert page.run("document.querySelector('article.error').textContent").startswith("other")
        page.run("document.querySelector('article.error').remove()")
    assert page.run(TITLES) == ["Keep this"]


def test_files_go_before_a_message(page):
    drop(page, "a.py", "x = '```'\n")
    drop(page, "raw.bin", "\0")
    page.until(f"{PROBLEM}.includes('raw.bin is no text')")
    assert page.run("document.getElementById('files').textContent.trim()") == "a.py ✕"
    asked(page, "What is this?", "Code.")
    assert page.run(CONTENTS) == ["a.py:\n````\nx = '```'\n\n````\n\nWhat is this?"]
    assert page.run(MINE) == ["What is this?"]
    assert page.run(PROBLEM) == ""  # what was refused goes away
    assert "Attached: a.py" in page.run("document.getElementById('said').textContent")
    assert page.run("document.querySelectorAll('#files li').length") == 0


def test_settings_go_along_and_stay(page):
    given = {"system": "Be brief.", "temperature": "0.5", "top_p": "0.9", "seed": "7"}
    given["schema"] = '{"type": "object"}'
    for name, value in given.items():
        page.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
        page.run(f"document.getElementById('{name}').onchange()")
    asked(page, "hello", "{}")
    body = page.run("sent[0]")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.9, 7)
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    reload(page)
    assert page.run("document.getElementById('system').value") == "Be brief."
    page.run("document.getElementById('schema').value = '[]'")
    say(page, "hello")
    assert "A schema is an object" in page.run(
        "document.getElementById('schema-problem').innerText"
    )
    assert page.run("sent.length") == 0


def test_only_the_last_block_is_rendered_again(page):
    say(page, "hello")
    feed(page, {"content": "# Title\n\n- a\n- b\n\n```py\nx ="})
    page.until(f"{ANSWER}.querySelector('figure')")
    page.run(f"window.list = {ANSWER}.querySelector('ul')")
    feed(page, {"content": " 1\n```\n\nThe **end"}, {"content": "**."})
    finish(page)
    assert page.run(f"{ANSWER}.querySelector('ul') === list")
    assert page.run(f"{ANSWER}.querySelector('figure figcaption span').textContent") == "py"
    assert page.run(f"{ANSWER}.querySelector('pre').textContent") == "x = 1\n"
    assert page.run(f"{ANSWER}.querySelector('strong').textContent") == "end"
    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.run(f"{ANSWER}.querySelector('figure .copy').click()")
    page.until("window.copied === 'x = 1\\n'")
    click(page, "Copy")
    page.until("window.copied.startsWith('# Title')")


ATTACKS = [
    "<script>window.hit = 1</script>", "<img src=x onerror='window.hit = 1'>",
    "[a](javascript:window.hit=1)", "<javascript:window.hit=1>", "[a](data:text/html,x)",
    "![a](http://127.0.0.1:9/x.png)", "[a](http://127.0.0.1:9/ \"x\" onclick=\"window.hit=1\")",
    "<style>body { display: none }</style>", "<iframe src='/'></iframe>", "<a href='/'>a</a>",
    "```\"><script>window.hit=1</script>\nx\n```", "```html\n<script>window.hit = 1</script>\n```",
    "|<b>a|\n|-|\n|<img src=x onerror=window.hit=1>|", "<svg onload=window.hit=1>",
    "a <b style='position:fixed'>b</b>", "&lt;script&gt;window.hit=1&lt;/script&gt;",
    "[x]: javascript:window.hit=1\n\n[x]", "<form action=/><button>", "<!-- --><base href=//x>",
    "<details open ontoggle=window.hit=1>", "# <script>window.hit=1</script>\n===",
    r"\(\text{<img src=x onerror=window.hit=1>}\)", r"$$\href{javascript:window.hit=1}{x}$$",
    r"\[\style{background:url(http://127.0.0.1:9/x)}{x}\class{a}{b}\]",
    r"\(<script>window.hit=1</script>\)",
    "<math><mtext><img src=x onerror=window.hit=1></mtext></math>",
    "https://a.org/\"onclick=\"window.hit=1",
    r"\(\mathrm{&lt;img src=x onerror=window.hit=1&gt;}\)",
    "[x](HtTpS://a.org/'\"><script>window.hit=1</script>)",
    "- [x](javascript:window.hit=1)", "- [x] <svg onload=window.hit=1>",
]  # fmt: skip


def test_what_a_model_writes_has_no_effect(page):
    say(page, "hello")
    feed(page, {"content": "\n\n".join(ATTACKS)})
    finish(page)
    assert page.run("window.hit ?? 0") == 0
    found = "script, img, style, iframe, svg, form, base, details, [onerror], [src], [style]"
    assert page.run(f"document.querySelectorAll('.text :is({found})').length") == 0
    links = "[...document.querySelectorAll('.text [href]')]"
    facts = "[each.tagName, each.protocol, each.target, each.rel]"
    assert {tuple(each) for each in page.run(f"{links}.map((each) => {facts})")} == {
        ("A", protocol, "_blank", "noreferrer noopener") for protocol in ("http:", "https:")
    }
    assert "window.hit = 1" in page.run(SHOWN)


class Found(HTMLParser):
    """What elements and attributes there are in HTML."""

    def __init__(self, html):
        super().__init__()
        self.tags = set()
        self.attributes = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


ALLOWED = {
    "p", "br", "hr", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "em", "strong", "s",
    "code", "pre", "figure", "figcaption", "button", "span", "div", "table", "thead", "tbody", "tr",
    "th", "td", "a", *formulas._ELEMENTS,
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_html_is_what_the_renderer_made(attack):
    found = Found("".join(each["html"] for each in blocks(attack)))
    assert found.tags <= ALLOWED
    known = {"class", "start", "type", "href", "target", "rel", "role", "aria-label"}
    assert found.attributes <= known | formulas._ATTRIBUTES


def test_formulas_links_and_boxes_are_shown(page):
    say(page, "hello")
    text = "# Title\n\n## Part\n\n\\(a^2\\) costs $5 at https://a.org\n\n- [x] done\n\n$$\nb\n$$"
    feed(page, {"content": text})
    finish(page)
    assert page.run(f"{ANSWER}.querySelectorAll('math').length") == 2
    size = (
        "(name) => parseFloat(getComputedStyle(document.querySelector(`.text ${name}`)).fontSize)"
    )
    title, part, line = page.run(f"['h3', 'h4', 'p'].map({size})")
    assert title > part > line
    power, base = page.run(
        "['msup > mn', 'msup > mi'].map((name) => "
        "document.querySelector(name).getBoundingClientRect().bottom)"
    )
    assert power < base
    assert page.run(f"{ANSWER}.querySelector('a').host") == "a.org"
    assert page.run(f"{ANSWER}.querySelector('li').textContent.trim()") == "\u2611 done"


def test_the_page_lets_no_other_renderer_act(page):
    hostile = (
        '<a href="javascript:hit">a</a><math href="javascript:hit"><mi>b</mi></math>'
        '<a href="http://a.org" onclick="hit">c</a><img src=x><mi style="color:red">d</mi>'
    )
    page.run(
        "{ const real = fetch; window.fetch = async (path, options) => path === 'render'"
        f" ? Response.json({{blocks: [{{html: {json.dumps(hostile)}, line: 0}}]}})"
        " : real(path, options); }"
    )
    asked(page, "hello", "x")
    attributes = "[...document.querySelectorAll('.text *')].flatMap((each) => [...each.attributes])"
    assert page.run(f"{attributes}.map(({{name, value}}) => name + value)") == ["hrefhttp://a.org"]


def test_a_page_without_the_renderer_shows_the_text(page):
    page.run(
        "{ const real = fetch; window.fetch = async (path, options) => path === 'render'"
        " ? new Response('', {status: 500}) : real(path, options); }"
    )
    asked(page, "hello", "**as** it is")
    assert page.run(SHOWN) == "**as** it is"


def test_a_chat_that_was_deleted_under_way_does_not_come_back(page):
    asked(page, "Kept", "yes")
    click(page, "New chat")
    say(page, "Unwanted")
    feed(page, {"content": "so far"})
    page.until(f"{ANSWER}.textContent.includes('so far')")
    page.run("document.querySelector('[title=Delete]').click()")
    page.run("document.querySelector('[title=Delete]').click()")
    page.until(IDLE)
    assert page.run(FOCUS) == "search"
    asked(page, "Next", "1")
    assert page.run(TITLES) == ["Next", "Kept"]
    reload(page)
    assert page.run(TITLES) == ["Next", "Kept"]


def test_an_answer_under_way_leaves_a_name_that_is_written_alone(page):
    asked(page, "Old name", "1")
    say(page, "More")
    page.run("document.querySelector('[title=Rename]').click()")
    page.write("New")
    feed(page, {"content": "word"})
    finish(page)
    assert page.run("document.activeElement.value") == "New"
    page.press("Enter")
    assert page.run("document.activeElement.textContent") == "New"
    assert page.run(TITLES) == ["New"]


def test_an_edit_that_is_left_changes_nothing(page):
    asked(page, "First", "1")
    click(page, "Edit")
    page.write("Other")
    page.press("Escape")
    assert page.run(MINE) == ["First"]
    assert page.run("document.activeElement.textContent") == "Edit"
    click(page, "Edit")
    say(page, "Second")  # no edit is sent while an answer comes
    page.run("document.querySelector('.edited').requestSubmit()")
    click(page, "Cancel")
    feed(page, {"content": "2"})
    finish(page)
    assert page.run(MINE) == ["First", "Second"]
    assert page.run("sent.length") == 2


def test_on_a_small_screen_the_list_gives_way_to_the_chat(page):
    page.resize(375)
    asked(page, "One", "1")
    click(page, "New chat")
    click(page, "Chats")
    assert page.run("document.getElementById('chats').checkVisibility()")
    click(page, "One")
    page.until(f"{MINE}.length === 1")
    assert not page.run("document.getElementById('chats').checkVisibility()")
    assert page.run(FOCUS) == "said"
