"""Documents ranked for a query, as Jina's and Cohere's APIs have it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from edgespec.bundle import Bundle
from edgespec.llm.ranking import by_score
from edgespec.runtime.arrays import Floats
from edgespec.serve.protocols.fields import LONG, Count, Fields, Json, Text
from edgespec.serve.refusals import RequestError


@dataclass(frozen=True)
class RankResult:
    """The scores of a request.

    Attributes:
        scores: [N], the score of each document.
        tokens: number of tokens that the model has read.
    """

    scores: Floats
    tokens: int


class DocumentText(Fields):
    """A document as an object."""

    text: Text


class RerankRequest(Fields):
    """`POST /v1/rerank` as Jina's API, and the first version of Cohere's, have it.

    `instruction` is neither's, see `LLM.rerank`.
    """

    returns_documents: ClassVar[bool] = True

    model: str | None = None
    query: Text
    documents: Annotated[list[Text | DocumentText], LONG, Field(min_length=1, max_length=10_000)]
    top_n: Count | None = None
    return_documents: bool | None = None
    instruction: Text | None = None
    # What is done in any case: documents are cut where they do not fit.
    truncation: Any = None
    truncate: Any = None
    max_tokens_per_doc: Any = None
    max_chunks_per_doc: Any = None

    @property
    def texts(self) -> list[str]:
        """The documents."""
        return [each if isinstance(each, str) else each.text for each in self.documents]

    def answer(self, found: RankResult, model: str) -> Json:
        """Returns the response; `model` is the model's name for clients."""
        asked = self.return_documents
        told = self.returns_documents if asked is None else asked
        texts = self.texts
        results = [
            {
                "index": each.index,
                "relevance_score": each.score,
                **({"document": {"text": texts[each.index]}} if told else {}),
            }
            for each in by_score(found.scores, self.top_n)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        meta = {"tokens": {"input_tokens": found.tokens}}
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "object": "list",
            "model": model,
            "results": results,
            "usage": usage,
            "meta": meta,
        }


class CohereRerankRequest(RerankRequest):
    """`POST /v2/rerank`, the second version of Cohere's API."""

    returns_documents = False


def require_ranking(bundle: Bundle) -> None:
    """Checks that a model can rank texts.

    Raises:
        RequestError: if it makes embeddings.
    """
    if bundle.target.embedding is not None:
        raise RequestError(
            400,
            "the model makes embeddings, and ranks no texts: use a reranker, or a model that "
            "writes text",
            "ranking_not_supported",
            "model",
        )
