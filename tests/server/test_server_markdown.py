"""Formulas, links and boxes in what the server renders for its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgespec.serve import formulas, markdown
from edgespec.serve.markdown import blocks


def html(text):
    return "".join(each["html"] for each in blocks(text))


SQUARE = "<msup><mi>a</mi><mn>2</mn></msup>"


@pytest.mark.parametrize(
    "text",
    [
        r"so \(a^2\) is",
        "so $a^2$ is",
        "so $a^2$.",
        "($a^2$)",
        "- first\n- $a^2$",
        "| x |\n|---|\n| $a^2$ |",
        "**$a^2$**",
    ],
)
def test_formulas_in_a_line(text):
    assert f'<math display="inline"><mrow>{SQUARE}</mrow></math>' in html(text)


@pytest.mark.parametrize(
    "text",
    [
        "$$a^2$$",
        r"\[a^2\]",
        "$$\na^2\n$$",
        "so\n\\[\na^2\n\\]\nis",
        "- so\n  \\[\n  a^2\n  \\]  \n- is",
        r"so \[a^2\] is",
        "> $$a^2$$",
        "\\begin{x} \\[\n\\begin{equation*}\na^2\n\\end{equation*}\n\\]",
    ],
)
def test_formulas_in_lines_of_their_own(text):
    assert f'<math display="block"><mrow>{SQUARE}</mrow></math>' in html(text)


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $6.",
        "US$5 or US$6, $5-$10, $5, $10 or 20$",
        "$5, US$ 6, A$ 7",
        "$5/month, $10/year",
        "from $5 to US$10_000",
        "$HOME/bin:$PATH and $HOME",
        "`$a^2$`",
        r"\$a^2\$",
        r"\\(a^2\\)",
        "```\n$a^2$\n```",
        "$$ is a process\n\n- and\n\n$$ another",
        "$ a^2 $",
        "Pay $5 = 4€, or 3$",
    ],
)
def test_prices_and_code_are_no_formulas(text):
    assert "<math" not in html(text)


def test_lines_of_a_formula_are_aligned():
    found = html("$$\n\\begin{aligned}\na&=b\\\\\n&=c\n\\end{aligned}\n$$")
    assert found.count("<mtr>") == 2
    assert '<mtd columnalign="right"><mi>a</mi></mtd>' in found


@pytest.mark.parametrize("source", [r"\frac{", "a^b^c", "{" * 3000, "x" * 5000, r"\left("])
def test_what_is_no_formula_is_shown_as_it_is(source):
    assert html(f"\\[{source}\\]") == f'<div class="wide"><code>\\[{source}\\]</code></div>\n'


def test_a_formula_loads_and_does_nothing():
    found = html(r"\(\href{javascript:hit}{x}\style{color:red}{y}\text{<img src=x>&lt;b&gt;}\)")
    assert not re.search(r"href|style=|javascript|<img|<b>", found)
    assert "&lt;img" in found


def test_the_page_shows_the_elements_that_the_server_makes():
    script = Path(markdown.__file__).with_name("web") / "markdown.js"
    listed = set(re.findall(r'"([^"]+)"', script.read_text(encoding="utf-8")))
    assert listed >= formulas._ELEMENTS | formulas._ATTRIBUTES


def followed(place, shown):
    return f'<a href="{place}" target="_blank" rel="noreferrer noopener">{shown}</a>'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[x](https://a.org/b)", followed("https://a.org/b", "x")),
        ("[x](HTTP://a.org)", followed("HTTP://a.org", "x")),
        ("[x](mailto:a@b.org)", followed("mailto:a@b.org", "x")),
        ("<https://a.org>", followed("https://a.org", "https://a.org")),
        ("(https://a.org/b_(c))", f"({followed(*['https://a.org/b_(c)'] * 2)})"),
        ("**https://a.org**.", f"<strong>{followed(*['https://a.org'] * 2)}</strong>."),
        ("[a.org](https://a.org/b)", followed("https://a.org/b", "a.org")),
        ("[a.org](https://b.org)", f"{followed('https://b.org', 'a.org')} (https://b.org)"),
        (
            "[**a.org**](https://a.org.b.org)",
            f"{followed('https://a.org.b.org', '<strong>a.org</strong>')} (https://a.org.b.org)",
        ),
        ("[x](/chats)", '<span class="link">x</span> (/chats)'),
        ("[x](ftp://a.org)", '<span class="link">x</span> (ftp://a.org)'),
        ("[x](javascript:hit)", "[x](javascript:hit)"),
        ("http:// and xhttps://a.org", "http:// and xhttps://a.org"),
    ],
)  # fmt: skip
def test_links_lead_to_pages_and_mail(text, shown):
    assert html(text) == f"<p>{shown}</p>\n"


def test_items_begin_with_boxes():
    found = html("- [ ] one\n- [x] **two**\n- three [ ]\n\n[ ] four")
    assert found.count('<li class="box">') == 2
    assert '<span role="img" aria-label="to be done">\u2610</span> one</li>' in found
    assert '<span role="img" aria-label="done">\u2611</span> <strong>two</strong></li>' in found
    assert "<li>three [ ]</li>" in found
    assert "<p>[ ] four</p>" in found


STREAMED = """So $x$:
$$
a
= b
- c
$$
and

\\[
\\frac{a}{b}

\\]

- [ ] https://a.org/b
- \\(c\\)

$$
end
"""


def test_a_text_that_grows_comes_to_what_the_whole_is():
    shown, begin = "", 0
    for end in range(1, len(STREAMED) + 1):
        *done, last = blocks(STREAMED[begin:end]) or [{"html": "", "line": 0}]
        shown += "".join(each["html"] for each in done)
        begin += sum(map(len, STREAMED[begin:end].splitlines(keepends=True)[: last["line"]]))
    assert shown + last["html"] == html(STREAMED)
