"""One line of a batch: its check, its text or vectors, and its line of the output.

Bodies are checked, and answers are written, by the code of the server's routes. The output has only
what follows from the input: ids are hashes, times are the input's, and there are no statistics of
drafts and caches. So it is the same however often a batch was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from edgespec.batch.files import BatchLine
from edgespec.errors import EdgespecError
from edgespec.llm.at_once import Work
from edgespec.llm.llm import LLM
from edgespec.llm.result import Result
from edgespec.serve.protocols.embeddings import (
    EmbeddingResult,
    EmbeddingsRequest,
    require_embeddings,
)
from edgespec.serve.protocols.fields import Fields, Json, Text, parse_body
from edgespec.serve.protocols.protocol import Answer, Origin, TextProtocol
from edgespec.serve.protocols.table import PROTOCOLS
from edgespec.serve.protocols.text import RequestBody, TextRequest
from edgespec.serve.refusals import RequestError, as_refusal, internal_error, require_model

_log = logging.getLogger(__name__)

_CALL_ID = 9  # characters, of which templates of Mistral want as many

LineResult = Result | EmbeddingResult | None
"""What a line has asked for: a text or vectors; None for vectors that were cancelled."""


class BatchRequest(Fields):
    """A line of the input, as OpenAI's batch API defines it."""

    custom_id: Text
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    body: Annotated[Json, Field(description="The request body of the route.")]


@dataclass(frozen=True)
class Answerer:
    """What all lines of a batch share.

    Attributes:
        llm: model to use.
        model: name of the model for clients.
        key: name of the batch, from which the ids of answers follow.
        created: time of all answers, in seconds since 1970.
    """

    llm: LLM
    model: str
    key: str
    created: int

    @cached_property
    def _server(self) -> Origin:
        return Origin.of(self.model, self.llm.bundle, self.llm.tokenizer)

    def origin(self, number: int) -> LineOrigin:
        """Returns where the answer to the line of a number comes from."""
        of = self._server
        facts = of.model, of.fingerprint, of.texts, of.sampling
        return LineOrigin(*facts, self.key, number, self.created)


@dataclass(frozen=True)
class LineOrigin(Origin):
    """Where the answer to a line comes from; it is the same whenever it is made.

    Attributes:
        key: see `Answerer`.
        number: the line's number.
        created: see `Answerer`.
    """

    key: str = ""
    number: int = 0
    created: int = 0
    tells_work: ClassVar[bool] = False

    def id_of(self, kind: str, place: int | None = None) -> str:
        """See `Origin`."""
        return kind + self.hash_of(place)

    def hash_of(self, place: int | None = None) -> str:
        """Returns a hash of the line, or of a part of its answer."""
        return _hashed(self.key, self.number if place is None else f"{self.number}:{place}")

    @property
    def time(self) -> int:
        """See `Origin`."""
        return self.created


class Task:
    """A line of a batch that is to be answered.

    Args:
        answerer: what all lines share.
        line: the line.
    """

    def __init__(self, answerer: Answerer, line: BatchLine) -> None:
        self._of = answerer
        self._origin = answerer.origin(line.number)
        self.line = line
        self._answer: Answer | EmbeddingsRequest | None = None

    def begin(self) -> Work[LineResult]:
        """Checks the line, and creates the stream of its text, or what makes its vectors.

        Raises:
            InputError: as `RequestBody.texts` or `Embedder.tokens`.
            RequestError: if the line or its body is invalid.
        """
        try:
            request = parse_body(BatchRequest, self.line.data.strip(), "the line")
        except RequestError as error:
            raise RequestError(
                error.status, f"line {self.line.number}: {error}", error.code, error.param
            ) from error
        content = json.dumps(request.body).encode()
        protocol = PROTOCOLS[request.url]
        if not isinstance(protocol, TextProtocol):
            asked: EmbeddingsRequest = protocol.parse(content)
            require_model(asked.model, self._of.model)
            self._answer = asked
            return VectorsOfLine(self._of.llm, asked)
        return self._text(protocol, content, request.custom_id)

    def _text(self, protocol: TextProtocol, content: bytes, custom_id: str) -> Work[Result]:
        body: RequestBody = protocol.parse(content)
        require_model(body.model, self._of.model)
        if body.stream:
            raise RequestError(
                400,
                "stream is true: leave it out, since answers of a batch come whole",
                "invalid_value",
                "stream",
            )
        if isinstance(body, TextRequest) and body.choices > 1:
            raise RequestError(
                400,
                f"the line asks for {body.choices} texts: ask for one in each line",
                "invalid_value",
                "n" if body.prompts == 1 else "prompt",
            )
        if body.seed is None:
            body = body.model_copy(update={"seed": seed_of(custom_id)})
        self._answer = protocol.answer(body, self._origin)
        [text] = body.texts(self._of.llm)
        return text

    @staticmethod
    def stopped(made: Future[LineResult]) -> bool:
        """Whether the work was cancelled, so that there is no answer."""
        if made.exception() is not None:
            return False
        result = made.result()
        return not isinstance(result, EmbeddingResult) and (
            result is None or result.finish_reason == "cancelled"
        )

    def output(self, made: Future[LineResult]) -> Json:
        """Returns the line of the output.

        Args:
            made: what the line asked for, which was not stopped.

        Raises:
            EdgespecError: if the work has failed for a reason that may concern all lines.
            MemoryError: likewise.
            OSError: likewise.
        """
        try:
            return self._output(200, self._body(made.result()), None)
        except Exception as error:
            if (refusal := as_refusal(error)) is None:
                if isinstance(error, EdgespecError | MemoryError | OSError):
                    raise
                # A fault of ours, which should not stop a long batch.
                name = type(error).__name__
                _log.error("line %d: internal error: %s: %s", self.line.number, name, error)
                refusal = internal_error()
        told = {"code": refusal.code or "invalid_request", "message": str(refusal)}
        return self._output(refusal.status, refusal.body, told)

    def _output(self, status: int, body: Json, error: Json | None) -> Json:
        response = {"status_code": status, "request_id": self._origin.id_of("req_"), "body": body}
        return {
            "id": answer_id(self._of.key, self.line.number),
            "custom_id": self.line.custom_id,
            "response": response,
            "error": error,
        }

    def _body(self, result: LineResult) -> Json:
        if isinstance(self._answer, EmbeddingsRequest):
            assert isinstance(result, EmbeddingResult), "of a line that was not stopped"
            return self._answer.answer(result, self._of.model)
        assert self._answer is not None, "set before the text was begun"
        assert isinstance(result, Result), "a text's"
        cut = () if result.cut_call is None else (result.cut_call,)
        calls = tuple(
            replace(call, id=self._origin.hash_of(place)[:_CALL_ID])
            for place, call in enumerate((*result.tool_calls, *cut))
        )
        whole = len(result.tool_calls)
        last = calls[whole] if cut else None
        named = replace(result, tool_calls=calls[:whole], cut_call=last, reused=0)
        return self._answer.whole([named])


class _CancelledError(Exception):
    pass


class VectorsOfLine:
    """What `TextsAtOnce` makes for a line that asks for vectors.

    Args:
        llm: model to use.
        body: the request of the line.

    Raises:
        InputError: as `Embedder.tokens`.
        RequestError: if the model makes texts.
    """

    def __init__(self, llm: LLM, body: EmbeddingsRequest) -> None:
        require_embeddings(llm.bundle)
        self._embedder = llm.embedder
        self._tokens = body.tokens(self._embedder)
        self._body = body
        self._cancelled = threading.Event()
        self._made = False

    @property
    def tokens(self) -> int:
        """The number of tokens of the texts once they are read; 0 before."""
        return sum(map(len, self._tokens)) if self._made else 0

    def cancel(self) -> None:
        """Ends the work before its next pass of the model."""
        self._cancelled.set()

    def finish(self) -> EmbeddingResult | None:
        """Makes the vectors; None if it was cancelled before all were there.

        Raises:
            InputError: if the vectors have fewer dimensions than asked for.
        """
        try:
            vectors = self._body.vectors(self._embedder, self._tokens, self._check)
        except _CancelledError:
            return None
        self._made = True
        return EmbeddingResult(vectors, self.tokens)

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise _CancelledError


def answer_id(key: str, number: int) -> str:
    """Returns the id of the answer to a line of the batch `key`."""
    return f"batch_req_{_hashed(key, number)}"


def seed_of(custom_id: str) -> int:
    """Returns the seed of a request that has none: the first 32 bits of its custom_id's SHA-256."""
    return int.from_bytes(hashlib.sha256(custom_id.encode()).digest()[:4], "big")


def _hashed(batch: str, name: object) -> str:
    return hashlib.sha256(f"{batch}:{name}".encode()).hexdigest()[:32]
