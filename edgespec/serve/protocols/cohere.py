"""Cohere's API: vectors of texts. Documents are ranked as `RerankRequest` says."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from edgespec.llm.embedding import Embedder, Inputs
from edgespec.llm.pooling import Check
from edgespec.runtime.arrays import Floats
from edgespec.serve.protocols.embeddings import EmbeddingResult, Purpose, VectorBody, in_base64
from edgespec.serve.protocols.fields import LONG, Count, Json, Text
from edgespec.serve.protocols.unsupported import NoValue


class CohereEmbedRequest(VectorBody):
    """`POST /v2/embed`, and `/v1/embed` with `embedding_types`."""

    texts: Annotated[list[Text], LONG, Field(min_length=1, max_length=2048)]
    model: str | None = None
    input_type: Purpose | None = None
    embedding_types: list[Literal["float", "base64"]] | None = None
    output_dimension: Count | None = None
    truncate: Literal["NONE", "END"] | None = None
    max_tokens: Any = None
    # Pictures, and texts with them.
    images: NoValue = None
    inputs_: NoValue = Field(None, alias="inputs")

    @property
    def inputs(self) -> Inputs:
        """See `VectorBody`."""
        return self.texts

    def tokens(self, embedder: Embedder) -> list[list[int]]:
        """See `VectorBody`; ends are left out unless that is refused, as in Cohere's API."""
        name = None if self.input_type is None else embedder.prompt_for(self.input_type)
        return embedder.tokens(self.inputs, name, self.truncate != "NONE")

    def vectors(self, embedder: Embedder, tokens: Sequence[Sequence[int]], check: Check) -> Floats:
        """See `VectorBody`."""
        return embedder.vectors(tokens, self.output_dimension or self.dimensions, check)

    def answer(self, found: EmbeddingResult, _model: str, _nanoseconds: int = 0) -> Json:
        """See `VectorBody`."""
        numbers: Json = {}
        for kind in self.embedding_types or ["float"]:
            coded = kind == "base64"
            numbers[kind] = [*map(in_base64, found.vectors)] if coded else found.vectors.tolist()
        return {
            "id": f"embed-{uuid.uuid4().hex}",
            "embeddings": numbers,
            "texts": self.texts,
            "meta": {"tokens": {"input_tokens": found.tokens}},
            "response_type": "embeddings_by_type",
        }


class OlderCohereEmbedRequest(CohereEmbedRequest):
    """`POST /v1/embed`, whose answers have no types unless some are named."""

    def answer(self, found: EmbeddingResult, model: str, nanoseconds: int = 0) -> Json:
        """See `VectorBody`."""
        whole = super().answer(found, model, nanoseconds)
        if self.embedding_types is not None:
            return whole
        numbers = whole["embeddings"]["float"]
        return {**whole, "embeddings": numbers, "response_type": "embeddings_floats"}
