"""Vectors of texts, from a bundle of an embedding model."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from edgespec.bundle import Bundle
from edgespec.llm.embedding import Embedder, Inputs
from edgespec.llm.pooling import Check
from edgespec.runtime.arrays import Floats
from edgespec.serve.protocols.fields import Count, Fields, Json, KeepAlive, Off, Text, Tokens
from edgespec.serve.protocols.unsupported import NoValue
from edgespec.serve.refusals import RequestError


@dataclass(frozen=True)
class EmbeddingResult:
    """The vectors of a request.

    Attributes:
        vectors: [N, dimensions], a vector for each text.
        tokens: number of tokens of all texts.
    """

    vectors: Floats
    tokens: int


class VectorBody(Fields, ABC):
    """The body of a request for vectors."""

    keep_alive: KeepAlive | None = None
    dimensions: Count | None = None

    @property
    @abstractmethod
    def inputs(self) -> Inputs:
        """The texts."""

    def tokens(self, embedder: Embedder) -> list[list[int]]:
        """Returns the token ids of the texts.

        Raises:
            InputError: if one is empty or invalid.
            ContextLengthError: if one does not fit the context.
        """
        return embedder.tokens(self.inputs)

    def vectors(self, embedder: Embedder, tokens: Sequence[Sequence[int]], check: Check) -> Floats:
        """Returns the vectors of these texts; see `Embedder.vectors`."""
        return embedder.vectors(tokens, self.dimensions, check)

    @abstractmethod
    def answer(self, found: EmbeddingResult, model: str, nanoseconds: int) -> Json:
        """Returns the response.

        Args:
            found: the vectors.
            model: the model's name for clients.
            nanoseconds: how long they took.
        """


class EmbeddedText(Fields):
    """A text as an object, as Jina's clients send it."""

    text: Text


Purpose = Literal[
    "query", "document", "passage", "search_query", "search_document", "classification",
    "clustering", "retrieval.query", "retrieval.passage", "text-matching", "separation",
]  # fmt: skip
"""What vectors are for, in words of Cohere's, Jina's and NVIDIA's APIs."""


class EmbeddingsRequest(VectorBody):
    """`POST /v1/embeddings` as OpenAI's and Jina's clients send it, and others that follow them.

    `prompt_name` is neither's, see `LLM.embed`.
    """

    input: (
        Text
        | Tokens
        | Annotated[list[Text | Tokens | EmbeddedText], Field(min_length=1, max_length=2048)]
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: str | None = None
    user: Any = None
    # Jina's; the first one is also that of others.
    input_type: Purpose | None = None
    task: Purpose | None = None
    embedding_type: Literal["float", "base64"] | None = None
    normalized: bool | None = None
    truncate: bool | None = None
    late_chunking: Off | None = None
    # What other servers have, and would make other vectors.
    pooling: NoValue = None
    truncate_prompt_tokens: NoValue = None

    @property
    def inputs(self) -> Inputs:
        """See `VectorBody`."""
        if not isinstance(self.input, list):
            return self.input
        texts = [each.text if isinstance(each, EmbeddedText) else each for each in self.input]
        return cast("Inputs", texts)

    def tokens(self, embedder: Embedder) -> list[list[int]]:
        """See `VectorBody`."""
        purpose = self.input_type or self.task
        name = self.prompt_name
        if name is None and purpose is not None:
            name = embedder.prompt_for(purpose)
        return embedder.tokens(self.inputs, name, bool(self.truncate))

    def vectors(self, embedder: Embedder, tokens: Sequence[Sequence[int]], check: Check) -> Floats:
        """See `VectorBody`."""
        return embedder.vectors(tokens, self.dimensions, check, self.normalized)

    def answer(self, found: EmbeddingResult, model: str, _nanoseconds: int = 0) -> Json:
        """See `VectorBody`."""
        coded = "base64" in (self.encoding_format, self.embedding_type)
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": in_base64(vector) if coded else vector.tolist(),
            }
            for index, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}


def in_base64(vector: Floats) -> str:
    """Returns a vector as OpenAI's client reads it: little-endian float32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def require_embeddings(bundle: Bundle) -> None:
    """Checks that the model is for embeddings.

    Raises:
        RequestError: if it makes texts, or ranks them.
    """
    if bundle.target.embedding is None:
        made = "texts" if bundle.target.writes else "scores of texts"
        raise RequestError(
            400,
            f"the model makes {made}, and no embeddings: use an embedding model",
            "embeddings_not_supported",
            "model",
        )
