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

from edgespec.errors import InputError
from edgespec.llm.options import conversational
from edgespec.runtime.speculation.generation import NO_DRAFT
from edgespec.runtime.text.infill import InfillFormat
from edgespec.runtime.text.plain import PlainEncoder
from edgespec.runtime.text.thinking import thinking_form
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.tools.forms import call_form
from edgespec.runtime.text.vocabulary.vocabulary import Vocabulary
from edgespec.serve.answers import ChatAnswer, CompletionAnswer, Origin, Writer
from edgespec.serve.bodies import LONG, Fields, Json, Whole
from edgespec.serve.embeddings import EmbeddingsEndpoint, EmbeddingsRequest
from edgespec.serve.endpoint import JsonEndpoint, TextEndpoint
from edgespec.serve.infill import InfillRequest, InfillWriter
from edgespec.serve.models import Models, ServedModel
from edgespec.serve.rendering import RenderRequest, render
from edgespec.serve.requests import ChatRequest, CompletionRequest, RequestBody
from edgespec.serve.response_output import ResponsesWriter
from edgespec.serve.response_requests import ResponsesRequest
from edgespec.serve.service import TextService


class TextRoute(NamedTuple):
    """A route that makes texts: the class of its bodies, and what makes the writer for one."""

    bodies: type[RequestBody]
    writers: Callable[[Any, Origin], Writer]


TEXT_ROUTES: Mapping[str, TextRoute] = {
    "/v1/completions": TextRoute(CompletionRequest, CompletionAnswer),
    "/v1/chat/completions": TextRoute(ChatRequest, ChatAnswer),
    "/v1/responses": TextRoute(ResponsesRequest, ResponsesWriter),
}
"""The routes of OpenAI's API that make texts."""

CAPABILITIES: Mapping[str, Callable[[ServedModel], bool]] = {
    "completion": lambda model: True,
    "chat": lambda model: model.tokenizer.has_chat_template,
    "infill": lambda model: InfillFormat.known(model.tokenizer),
    "tools": lambda model: call_form(model.tokenizer.chat_source) is not None,
    "reasoning": lambda model: thinking_form(model.tokenizer.chat_source) is not None,
    "images": lambda model: model.bundle.target.vision is not None,
}
"""What a model that makes texts may be able to do, by the name that clients see."""

_WEB = Path(__file__).parent / "web"
# Scripts of the page, each of which uses those before it.
_SCRIPTS = ("view", "settings", "answer", "store", "markdown", "files", "chat", "chats")
# Text from a model can do no harm: the page loads nothing and connects only to its own server.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def capabilities(model: ServedModel) -> list[str]:
    """Returns what a model can do: those of `CAPABILITIES`, or `embedding` alone."""
    if model.bundle.target.embedding is not None:
        return ["embedding"]
    return [name for name, holds in CAPABILITIES.items() if holds(model)]


def openai_routes(service: TextService) -> list[Route]:
    """Returns the routes of OpenAI's API, and of llama-server's."""
    models = _ModelList(service.models)
    tokens = {each.name: _Tokens(each.tokenizer) for each in models.all.served}
    texts = {**TEXT_ROUTES, "/infill": TextRoute(InfillRequest, InfillWriter)}
    made = {
        **{path: TextEndpoint(service, *route) for path, route in texts.items()},
        "/v1/embeddings": EmbeddingsEndpoint(service, EmbeddingsRequest),
        "/tokenize": JsonEndpoint(
            service, TokenizeRequest, lambda body, model: tokens[model.name].tokenized(body)
        ),
        "/detokenize": JsonEndpoint(
            service, DetokenizeRequest, lambda body, model: tokens[model.name].detokenized(body)
        ),
        "/render": JsonEndpoint(service, RenderRequest, render),
    }
    return [
        *(Route(path, models.list) for path in ("/v1/models", "/v1/models/")),
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


class _ModelList:
    """`GET /v1/models`: what is served, whether it is loaded, and what it can do."""

    def __init__(self, models: Models) -> None:
        self.all = models
        self._created = int(time.time())
        self._able = {each.name: capabilities(each) for each in models.served}

    async def list(self, _request: Request) -> Response:
        data = list(map(self._facts, self.all.served))
        return JSONResponse({"object": "list", "data": data})

    async def one(self, request: Request) -> Response:
        return JSONResponse(self._facts(self.all.find(request.path_params["model"])))

    def _facts(self, model: ServedModel) -> Json:
        able = self._able[model.name]
        length = model.plan.context
        sampling = conversational(model.bundle.manifest.sampling)
        return {
            "id": model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "edgespec",
            # By the names of OpenRouter, of vLLM and of llama-server, which clients look for.
            "context_length": length,
            "max_model_len": length,
            "status": {"value": self.all.status(model)},
            "capabilities": able,
            "edgespec": {
                "chat": "chat" in able,
                "draft": NO_DRAFT if "embedding" in able else model.options.draft,
                **({} if "embedding" in able else {"sampling": sampling}),
            },
        }


class TokenizeRequest(Fields):
    """`POST /tokenize`, as llama-server has it (llama.cpp, tools/server/README.md)."""

    model: str | None = None
    # A longer one's tokens are given back in more than 0.1 s, while no other thread can go on.
    content: Annotated[str, Field(max_length=500_000)]
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Fields):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], LONG, Whole]


class _Tokens:
    """A text in the model's tokens, and back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

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
