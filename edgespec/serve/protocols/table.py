"""What is asked at which path by a body."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.serve.protocols.adapters import AdapterScales, set_scales
from edgespec.serve.protocols.anthropic.answer import MessagesAnswer, error_body
from edgespec.serve.protocols.anthropic.request import CountRequest, MessagesRequest, count_tokens
from edgespec.serve.protocols.chat import ChatAnswer, ChatRequest
from edgespec.serve.protocols.cohere import CohereEmbedRequest, OlderCohereEmbedRequest
from edgespec.serve.protocols.completions import CompletionAnswer, CompletionRequest
from edgespec.serve.protocols.documents import PdfRequest, read_pdf
from edgespec.serve.protocols.embeddings import EmbeddingsRequest
from edgespec.serve.protocols.fields import Json
from edgespec.serve.protocols.infill import InfillAnswer, InfillRequest
from edgespec.serve.protocols.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer
from edgespec.serve.protocols.ollama.models import describe_model
from edgespec.serve.protocols.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from edgespec.serve.protocols.protocol import (
    ErrorForm,
    ObjectProtocol,
    Protocol,
    RankProtocol,
    TextProtocol,
    VectorProtocol,
)
from edgespec.serve.protocols.render import RenderRequest, render
from edgespec.serve.protocols.rerank import CohereRerankRequest, RerankRequest
from edgespec.serve.protocols.responses.answer import ResponsesAnswer
from edgespec.serve.protocols.responses.request import ResponsesProtocol, ResponsesRequest
from edgespec.serve.protocols.tokens import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenized,
    tokenized,
)

PROTOCOLS: Mapping[str, Protocol] = {
    "/v1/completions": TextProtocol(
        CompletionRequest, "the continuation of a prompt", CompletionAnswer
    ),
    "/v1/chat/completions": TextProtocol(ChatRequest, "the answer in a conversation", ChatAnswer),
    "/v1/responses": ResponsesProtocol(
        ResponsesRequest, "the answer to items of a conversation", ResponsesAnswer
    ),
    "/v1/messages": TextProtocol(
        MessagesRequest, "the answer in a conversation of blocks", MessagesAnswer
    ),
    "/v1/messages/count_tokens": ObjectProtocol(
        CountRequest, "the number of tokens of a conversation", count_tokens
    ),
    "/v1/embeddings": VectorProtocol(EmbeddingsRequest, "vectors of texts"),
    "/v1/embed": VectorProtocol(OlderCohereEmbedRequest, "vectors of texts"),
    "/v2/embed": VectorProtocol(CohereEmbedRequest, "vectors of texts"),
    "/v1/rerank": RankProtocol(RerankRequest, "documents ranked for a query"),
    "/v2/rerank": RankProtocol(CohereRerankRequest, "documents ranked for a query"),
    "/rerank": RankProtocol(RerankRequest, "documents ranked for a query"),
    "/lora-adapters": ObjectProtocol(
        AdapterScales, "whether the scales of adapters were set", set_scales
    ),
    "/infill": TextProtocol(InfillRequest, "the text at a cursor", InfillAnswer),
    "/tokenize": ObjectProtocol(TokenizeRequest, "the tokens of a text", tokenized),
    "/detokenize": ObjectProtocol(DetokenizeRequest, "the text of tokens", detokenized),
    "/render": ObjectProtocol(RenderRequest, "HTML of an answer in Markdown, by blocks", render),
    "/pdf": ObjectProtocol(PdfRequest, "the text of a PDF file", read_pdf),
    "/api/chat": TextProtocol(OllamaChatRequest, "the answer in a conversation", OllamaChatAnswer),
    "/api/generate": TextProtocol(
        OllamaGenerateRequest, "the answer to a prompt", OllamaGenerateAnswer
    ),
    "/api/embed": VectorProtocol(OllamaEmbedRequest, "vectors of texts"),
    "/api/embeddings": VectorProtocol(OllamaEmbeddingsRequest, "the vector of a text"),
    "/api/show": ObjectProtocol(OllamaShowRequest, "the model of this name", describe_model),
}

_STRING: Json = {"type": "string"}
_STRING_OR_NULL: Json = {"type": ["string", "null"]}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": [*properties], "properties": properties}


OPENAI_ERRORS = ErrorForm(
    "Error",
    lambda refusal: refusal.body,
    _object(
        error=_object(message=_STRING, type=_STRING, param=_STRING_OR_NULL, code=_STRING_OR_NULL)
    ),
)
OLLAMA_ERRORS = ErrorForm(
    "OllamaError", lambda refusal: {"error": str(refusal)}, _object(error=_STRING)
)
ANTHROPIC_ERRORS = ErrorForm(
    "AnthropicError",
    error_body,
    _object(type=_STRING, error=_object(type=_STRING, message=_STRING)),
)


def error_form(path: str) -> ErrorForm:
    """Returns how the errors of a route are written."""
    if path.startswith("/api/"):
        return OLLAMA_ERRORS
    return ANTHROPIC_ERRORS if path.startswith("/v1/messages") else OPENAI_ERRORS
