"""Markdown of answers as HTML that can do nothing: what a model writes has no effect in a page."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pydantic import Field
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from starlette.types import Send

from edgespec.server.bodies import Fields, Json
from edgespec.server.endpoint import Endpoint, SendJson
from edgespec.server.models import ServedModel

_LONGEST = 50_000  # characters of a text
_MOST_CODE, _LONGEST_LINE = 20_000, 1_000  # characters of code that is coloured
_NAME = 30  # characters of a language's name
_LANGUAGES = (
    "python py javascript js typescript ts json bash sh shell html css c cpp c++ java go rust sql "
    "yaml toml ini diff ruby php kotlin swift r"
)
# Expressions of other languages may take for ever, in which no other thread goes on.
_COLOURED = frozenset(_LANGUAGES.split())
_Env = MutableMapping[str, Any]


class RenderRequest(Fields):
    """`POST /render`: the text of an answer, as far as it has come."""

    text: Annotated[str, Field(max_length=_LONGEST)]


class RenderEndpoint(Endpoint):
    """The route for the chat page, which has no renderer of its own."""

    async def answer(
        self, body: RenderRequest, _model: ServedModel, send_json: SendJson, _send: Send
    ) -> None:
        """See `Endpoint`."""
        await send_json(lambda: {"blocks": blocks(body.text)})


def blocks(text: str) -> list[Json]:
    """Renders Markdown, without HTML, images and links that could be followed.

    Args:
        text: the text. Where more of it comes, only its last block may change.

    Returns:
        For each block its `html`, and the `line` of the text that it begins with.
    """
    parser, found = _parser(), list[Json]()
    tokens = parser.parse(text)
    begins = [n for n, each in enumerate(tokens) if each.level == 0 and each.nesting >= 0]
    for begin, end in pairwise([*begins, len(tokens)]):
        html = parser.renderer.render(tokens[begin:end], parser.options, {})
        found.append({"html": html, "line": (tokens[begin].map or [0])[0]})
    return found


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    return parser.enable(["table", "strikethrough"])


class _Renderer(RendererHTML):
    """Its methods are named after the tokens that they render."""

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: _Env) -> str:
        name, code = (tokens[idx].info.split() or [""])[0], tokens[idx].content
        shown, longest = escapeHtml(code), max(map(len, code.splitlines()), default=0)
        if name.lower() in _COLOURED and len(code) <= _MOST_CODE and longest <= _LONGEST_LINE:
            lexer = get_lexer_by_name(name.lower(), stripnl=False)
            shown = highlight(code, lexer, HtmlFormatter(nowrap=True, classprefix="c-"))
        return (
            f"<figure><figcaption><span>{escapeHtml(name[:_NAME])}</span>"
            '<button type="button" class="copy">Copy</button></figcaption>'
            f"<pre><code>{shown}</code></pre></figure>\n"
        )

    code_block = fence

    def link_open(self, tokens: Sequence[Token], idx: int, _options: Any, env: _Env) -> str:
        place = str(tokens[idx].attrGet("href"))
        env.setdefault("links", []).append((place, tokens[idx + 1].content))
        return '<span class="link">'

    def link_close(self, _tokens: Sequence[Token], _idx: int, _options: Any, env: _Env) -> str:
        place, shown = env["links"].pop()
        return "</span>" if place == shown else f"</span> ({escapeHtml(place)})"

    def image(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        name, place = tokens[idx].content, str(tokens[idx].attrGet("src"))
        return f'<span class="link">{escapeHtml(name)}</span> ({escapeHtml(place)})'

    def heading_open(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        return f"<{_below(tokens[idx])}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, _options: Any, _env: _Env) -> str:
        return f"</{_below(tokens[idx])}>\n"

    def table_open(self, *_: object) -> str:
        return '<div class="wide"><table>\n'

    def table_close(self, *_: object) -> str:
        return "</table></div>\n"


def _below(heading: Token) -> str:
    """Returns a heading's tag below those of the page."""
    return f"h{min(int(heading.tag[1]) + 2, 6)}"
