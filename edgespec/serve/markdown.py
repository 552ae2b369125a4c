"""Markdown of answers as HTML that can do nothing: what a model writes has no effect in a page."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise, takewhile
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from edgespec.serve.formulas import add_formulas, mathml
from edgespec.system.jobs import JobError, JobLimits, Worker, serve

_LIMITS = JobLimits(seconds=0.8, megabytes=256, patience=8)
_COLOURING = 0.3  # seconds of processor time in which code is coloured; what is left is plain
_MOST_CODE, _LONGEST_LINE = 20_000, 1_000  # characters of code that is coloured
_NAME = 30  # characters of a language's name
_LANGUAGES = (
    "python py javascript js typescript ts json bash sh shell html css c cpp c++ java go rust sql "
    "yaml toml ini diff ruby php kotlin swift r"
)
_COLOURED = frozenset(_LANGUAGES.split())
_AT_ONCE = "python", "javascript", "json", "bash"  # languages that are made ready
_ADDRESS = re.compile(r"^(https?://|mailto:)", re.IGNORECASE)  # of links that can be followed
_SCHEME = re.compile(r"(?<!\w)https?$", re.IGNORECASE)
_REST = re.compile(r"://[^\s<>\"`|\\^{}\[\]]+")  # of an address in a text
_BOX = re.compile(r"\[([ xX])\] +")
_Env = MutableMapping[str, Any]


def rendered(text: str) -> list[dict[str, Any]]:
    """Renders a text as `blocks` does, in another process; as it is where that takes too long.

    Raises:
        InputError: if nobody waits for it any more.
    """
    try:
        found: list[dict[str, Any]] = json.loads(_WORKER.run(json.dumps(text).encode()))
    except JobError:
        shown = escapeHtml(text).replace("\n", "<br>\n")
        return [{"html": f"<p>{shown}</p>\n", "line": 0}]
    return found


def blocks(text: str) -> list[dict[str, Any]]:
    """Renders Markdown, without HTML and images. Links lead to pages and to mail alone.

    Args:
        text: the text. Where more of it comes, only its last block may change.

    Returns:
        For each block its `html`, and the `line` of the text that it begins with.
    """
    parser = _parser()
    found = list[dict[str, Any]]()
    left = [_COLOURING]
    tokens = parser.parse(text)
    begins = [n for n, each in enumerate(tokens) if each.level == 0 and each.nesting >= 0]
    for begin, end in pairwise([*begins, len(tokens)]):
        html = parser.renderer.render(tokens[begin:end], parser.options, {"left": left})
        found.append({"html": html, "line": (tokens[begin].map or [0])[0]})
    return found


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    parser.inline.ruler.before("escape", "address", _address)
    parser.core.ruler.after("inline", "boxes", _boxes)
    add_formulas(parser)
    return parser.enable(["table", "strikethrough"])


def _address(state: StateInline, silent: bool) -> bool:
    """Finds an address in a text, at its colon, and makes it a link."""
    found = _REST.match(state.src, state.pos, state.posMax)
    scheme = _SCHEME.search(state.pending[-6:]) if found else None
    if found is None or scheme is None or state.linkLevel > 0:
        return False
    rest = found[0].rstrip("?!.,:;*_~'")
    while rest.endswith(")") and rest.count(")") > rest.count("("):
        rest = rest[:-1]
    place = state.md.normalizeLink(scheme[0] + rest)
    if len(rest) == len("://") or not state.md.validateLink(place):
        return False
    if not silent:
        state.pending = state.pending[: -len(scheme[0])]
        state.push("link_open", "a", 1).attrs = {"href": place}
        state.push("text", "", 0).content = scheme[0] + rest
        state.push("link_close", "a", -1)
    state.pos += len(rest)
    return True


def _boxes(state: StateCore) -> None:
    """Has items of lists that begin with `[ ]` or `[x]` begin with a box."""
    for item, _, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if item.type != "list_item_open" or not inline.children:
            continue
        first = inline.children[0]
        if found := _BOX.match(first.content):
            item.attrSet("class", "box done" if found[1] != " " else "box")
            first.content = first.content[found.end() :]


class _Renderer(RendererHTML):
    """Its methods are named after the tokens that they render."""

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: _Env) -> str:
        name = (tokens[idx].info.split() or [""])[0]
        code = tokens[idx].content
        shown = escapeHtml(code)
        longest = max(map(len, code.splitlines()), default=0)
        if name.lower() in _COLOURED and len(code) <= _MOST_CODE and longest <= _LONGEST_LINE:
            with suppress(TimeoutError), _hurried(env["left"]):
                lexer = get_lexer_by_name(name.lower(), stripnl=False)
                shown = highlight(code, lexer, HtmlFormatter(nowrap=True, classprefix="c-"))
        return (
            f"<figure><figcaption><span>{escapeHtml(name[:_NAME])}</span>"
            '<button type="button" class="copy">Copy</button></figcaption>'
            f"<pre><code>{shown}</code></pre></figure>\n"
        )

    code_block = fence

    def formula(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        token = tokens[idx]
        written = escapeHtml(token.meta["written"]).replace("\n", "<br>\n")
        made = mathml(token.content, token.meta["display"]) if token.content else None
        shown = f"<code>{written}</code>" if made is None else made
        return f'<div class="wide">{shown}</div>\n' if token.block else shown

    def link_open(self, tokens: Sequence[Token], idx: int, _options: Any, env: _Env) -> str:
        place = str(tokens[idx].attrGet("href"))
        followed = _ADDRESS.match(place) is not None
        inside = takewhile(lambda each: each.type != "link_close", tokens[idx + 1 :])
        shown = "".join(each.content for each in inside)
        told = shown != place and (not followed or _deceives(shown, place))
        env.setdefault("links", []).append((followed, place if told else ""))
        if not followed:
            return '<span class="link">'
        return f'<a href="{escapeHtml(place)}" target="_blank" rel="noreferrer noopener">'

    def link_close(self, _tokens: Sequence[Token], _idx: int, _options: Any, env: _Env) -> str:
        followed, told = env["links"].pop()
        return ("</a>" if followed else "</span>") + (f" ({escapeHtml(told)})" if told else "")

    def list_item_open(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        kind = tokens[idx].attrGet("class")
        if kind is None:
            return "<li>"
        sign, name = ("\u2611", "done") if kind == "box done" else ("\u2610", "to be done")
        return f'<li class="box"><span role="img" aria-label="{name}">{sign}</span> '

    def image(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        name = tokens[idx].content
        place = str(tokens[idx].attrGet("src"))
        return f'<span class="link">{escapeHtml(name)}</span> ({escapeHtml(place)})'

    def heading_open(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        return f"<{_below(tokens[idx])}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        return f"</{_below(tokens[idx])}>\n"

    def table_open(self, *_: object) -> str:
        return '<div class="wide"><table>\n'

    def table_close(self, *_: object) -> str:
        return "</table></div>\n"


def _deceives(shown: str, place: str) -> bool:
    """Whether the text of a link may be read as the address of another place."""
    named, true = (_ADDRESS.sub("", each).rstrip("/") + "/" for each in (shown, place))
    return "." in named and not true.startswith(named)


def _below(heading: Token) -> str:
    """Returns a heading's tag below those of the page."""
    return f"h{min(int(heading.tag[1]) + 2, 6)}"


# What follows runs in the child.


@contextmanager
def _hurried(left: list[float]) -> Iterator[None]:
    """Ends the block when the seconds of processor time that are left are used up.

    Raises:
        TimeoutError: then, also within a regular expression, on systems that have such a timer.
    """
    if sys.platform == "win32" or signal.getsignal(signal.SIGVTALRM) != _end:
        yield
        return
    if left[0] <= 0:
        raise TimeoutError
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, left[0])
    try:
        yield
    except TimeoutError:
        left[0] = 0  # the timer counts in ticks, which may end before the time itself
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        left[0] -= time.process_time() - begun


def _end(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Renders texts until nobody asks for more."""
    blocks("\n".join([*(f"```{each}\na\n```" for each in _AT_ONCE), "$a$"]))
    if sys.platform != "win32":
        signal.signal(signal.SIGVTALRM, _end)
    serve(lambda job: json.dumps(blocks(json.loads(job))).encode(), _LIMITS)


_WORKER = Worker(__name__, _LIMITS)
