"""Vectors of texts, from a bundle of an embedding model."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from edgespec.bundle import Bundle
from edgespec.llm.embedding import Inputs
from edgespec.runtime.arrays import Floats
from edgespec.serve.protocols.fields import Count, Fields, Json, Text, Tokens
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


class EmbeddingsRequest(Fields):
    """`POST /v1/embeddings`; `prompt_name` is not OpenAI's, see `LLM.embed`."""

    input: Text | Tokens | Annotated[list[Text | Tokens], Field(min_length=1, max_length=2048)]
    model: str | None = None
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: str | None = None
    user: Any = None
    # What other servers have, and would make other vectors.
    pooling: NoValue = None
    input_type: NoValue = None
    truncate_prompt_tokens: NoValue = None

    @property
    def inputs(self) -> Inputs:
        """The texts."""
        return self.input

    def answer(self, found: EmbeddingResult, model: str, _nanoseconds: int = 0) -> Json:
        """Returns the response; `model` is the model's name for clients."""
        coded = self.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                # As OpenAI's client reads them: little-endian float32.
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode()
                if coded
                else vector.tolist(),
            }
            for index, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}


def require_embeddings(bundle: Bundle) -> None:
    """Checks that the model is for embeddings.

    Raises:
        RequestError: if it makes texts.
    """
    if bundle.target.embedding is None:
        raise RequestError(
            400,
            "the model makes texts, and no embeddings: use an embedding model",
            "embeddings_not_supported",
            "model",
        )
