"""`POST /tokenize` and `POST /detokenize`: a text in the model's tokens, and back.

Fields and answers are those of llama-server's documentation (llama.cpp, tools/server/README.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, TypeVar

from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from edgespec.errors import InputError
from edgespec.runtime.text.plain import PlainEncoder
from edgespec.runtime.text.vocabulary import Vocabulary
from edgespec.server.answers import Json
from edgespec.server.bodies import read
from edgespec.server.endpoint import Served
from edgespec.server.fields import LONG, Fields


class TokenizeRequest(Fields):
    """`POST /tokenize`."""

    model: str | None = None
    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Fields):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], LONG]


Body = TypeVar("Body", TokenizeRequest, DetokenizeRequest)


class TokenRoutes:
    """The two routes.

    Args:
        served: model that is served.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._tokenizer = served.service.llm.tokenizer

    async def tokenize(self, request: Request) -> Response:
        """Answers with the tokens of a text."""
        return await self._answer(request, TokenizeRequest, self._tokens)

    async def detokenize(self, request: Request) -> Response:
        """Answers with the text of tokens, names of special ones included."""
        return await self._answer(request, DetokenizeRequest, self._text)

    async def _answer(
        self, request: Request, kind: type[Body], make: Callable[[Body], Json]
    ) -> Response:
        try:
            body = await read(request, kind, self._served.body_limit)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        if body.model is not None:
            self._served.require(body.model)
        # A long text takes a while, in which other requests go on.
        return JSONResponse(await asyncio.to_thread(make, body))

    def _tokens(self, body: TokenizeRequest) -> Json:
        if body.parse_special is False:
            ids = self._plain.encode(body.content)
            if body.add_special:
                ids = [*self._tokenizer.encode(""), *ids]
        else:
            ids = self._tokenizer.encode(body.content, add_special=bool(body.add_special))
        if not body.with_pieces:
            return {"tokens": ids}
        return {"tokens": [{"id": id_, "piece": self._piece(id_)} for id_ in ids]}

    def _text(self, body: DetokenizeRequest) -> Json:
        for id_ in body.tokens:
            if id_ >= self._tokenizer.vocab_size:
                raise InputError(
                    f"token id {id_} is not in the vocabulary of {self._tokenizer.vocab_size}"
                )
        return {"content": self._tokenizer.decode(body.tokens, skip_special=False)}

    def _piece(self, id_: int) -> Any:
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
