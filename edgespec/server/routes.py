"""What is served at which path."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from edgespec.api.llm import LLM
from edgespec.errors import InputError
from edgespec.runtime.speculation.generation import NO_DRAFT
from edgespec.runtime.text.answer_forms import call_form, thinking_form
from edgespec.runtime.text.infill import InfillFormat
from edgespec.runtime.text.plain import PlainEncoder
from edgespec.runtime.text.vocabulary import Vocabulary
from edgespec.server.answers import ChatAnswer, CompletionAnswer, Origin, Writer
from edgespec.server.bodies import LONG, Fields, Json, Whole
from edgespec.server.embeddings import EmbeddingsEndpoint, EmbeddingsRequest
from edgespec.server.endpoint import JsonEndpoint, Served, TextEndpoint
from edgespec.server.infill import InfillRequest, InfillWriter
from edgespec.server.markdown import RenderEndpoint, RenderRequest
from edgespec.server.refusals import require_model
from edgespec.server.requests import Asked, ChatRequest, CompletionRequest
from edgespec.server.response_output import ResponsesWriter
from edgespec.server.response_requests import ResponsesRequest


class TextRoute(NamedTuple):
    """A route that makes texts: the class of its bodies, and what makes the writer for one."""

    bodies: type[Asked]
    writers: Callable[[Any, Origin], Writer]


TEXT_ROUTES: Mapping[str, TextRoute] = {
    "/v1/completions": TextRoute(CompletionRequest, CompletionAnswer),
    "/v1/chat/completions": TextRoute(ChatRequest, ChatAnswer),
    "/v1/responses": TextRoute(ResponsesRequest, ResponsesWriter),
}
"""The routes of OpenAI's API that make texts."""

CAPABILITIES: Mapping[str, Callable[[LLM], bool]] = {
    "completion": lambda llm: True,
    "chat": lambda llm: llm.tokenizer.has_chat_template,
    "infill": lambda llm: InfillFormat.known(llm.tokenizer),
    "tools": lambda llm: call_form(llm.tokenizer.chat_source) is not None,
    "reasoning": lambda llm: thinking_form(llm.tokenizer.chat_source) is not None,
    "images": lambda llm: llm.bundle.target.vision is not None,
}
"""What a model that makes texts may be able to do, by the name that clients see."""

_WEB = Path(__file__).parent / "web"
# Scripts of the page, each of which uses those before it.
_SCRIPTS = ("view", "settings", "answer", "store", "markdown", "files", "chat", "chats")
# Text from a model can do no harm: the page loads nothing and connects only to its own server.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def capabilities(llm: LLM) -> list[str]:
    """Returns what a model can do: those of `CAPABILITIES`, or `embedding` alone."""
    if llm.bundle.target.embedding is not None:
        return ["embedding"]
    return [name for name, holds in CAPABILITIES.items() if holds(llm)]


def openai_routes(served: Served) -> list[Route]:
    """Returns the routes of OpenAI's API, and of llama-server's."""
    models, tokens = _Models(served), _Tokens(served.service.llm)
    texts = {**TEXT_ROUTES, "/infill": TextRoute(InfillRequest, InfillWriter)}
    made = {
        **{path: TextEndpoint(served, *route) for path, route in texts.items()},
        "/v1/embeddings": EmbeddingsEndpoint(served, EmbeddingsRequest),
        "/tokenize": JsonEndpoint(served, TokenizeRequest, tokens.tokenized),
        "/detokenize": JsonEndpoint(served, DetokenizeRequest, tokens.detokenized),
        "/render": RenderEndpoint(served, RenderRequest),
    }
    return [
        *(Route(path, models.all) for path in ("/v1/models", "/v1/models/")),
        Route("/v1/models/{model:path}", models.one),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in made.items()),
    ]


def page_route() -> Route:
    """Returns the route of the chat page: the files of `web/` in one, so that it needs no other."""

    def read(name: str) -> str:
        return (_WEB / name).read_text(encoding="utf-8")

    page = read("page.html").replace("{{style}}", read("page.css"))
    text = page.replace("{{script}}", "".join(read(f"{name}.js") for name in _SCRIPTS))

    async def get(_request: Request) -> Response:
        return HTMLResponse(text, headers=_PAGE_HEADERS)

    return Route("/", get)


class _Models:
    """`GET /v1/models`: what is served, and what it can do."""

    def __init__(self, served: Served) -> None:
        llm, able = served.service.llm, capabilities(served.service.llm)
        self._facts: Json = {
            "id": served.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "edgespec",
            # By the names of OpenRouter and of vLLM, which clients look for.
            "context_length": llm.context_length,
            "max_model_len": llm.context_length,
            "capabilities": able,
            "edgespec": {
                "chat": "chat" in able,
                "draft": NO_DRAFT if "embedding" in able else llm.draft,
                **({} if "embedding" in able else {"sampling": llm.sampling}),
            },
        }

    async def all(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._facts]})

    async def one(self, request: Request) -> Response:
        require_model(request.path_params["model"], self._facts["id"])
        return JSONResponse(self._facts)


class TokenizeRequest(Fields):
    """`POST /tokenize`, as llama-server has it (llama.cpp, tools/server/README.md)."""

    model: str | None = None
    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Fields):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], LONG, Whole]


class _Tokens:
    """A text in the model's tokens, and back."""

    def __init__(self, llm: LLM) -> None:
        self._tokenizer = llm.tokenizer

    def tokenized(self, body: TokenizeRequest) -> Json:
        tokenizer = self._tokenizer
        if body.parse_special is False:
            ids = self._plain.encode(body.content)
            if body.add_special:
                ids = [*tokenizer.encode(""), *ids]
        else:
            ids = tokenizer.encode(body.content, add_special=bool(body.add_special))
        if not body.with_pieces:
            return {"tokens": ids}
        told = {each: {"id": each, "piece": self._piece(each)} for each in set(ids)}
        return {"tokens": [told[each] for each in ids]}

    def detokenized(self, body: DetokenizeRequest) -> Json:
        for id_ in body.tokens:
            if id_ >= self._tokenizer.vocab_size:
                raise InputError(
                    f"token id {id_} is not in the vocabulary of {self._tokenizer.vocab_size}"
                )
        return {"content": self._tokenizer.decode(body.tokens, skip_special=False)}

    def _piece(self, id_: int) -> str | list[int]:
        """Returns the text of a token; its bytes if they are not whole characters."""
        piece = self._vocabulary.bytes_of([id_])
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return list(piece)

    @cached_property
    def _plain(self) -> PlainEncoder:
        return PlainEncoder(self._tokenizer)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary(self._tokenizer)
