"""What is asked at which path by a body."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.serve.protocols.chat import ChatAnswer, ChatRequest
from edgespec.serve.protocols.completions import CompletionAnswer, CompletionRequest
from edgespec.serve.protocols.embeddings import EmbeddingsRequest
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
    ObjectProtocol,
    Protocol,
    TextProtocol,
    VectorProtocol,
)
from edgespec.serve.protocols.render import RenderRequest, render
from edgespec.serve.protocols.responses.answer import ResponsesAnswer
from edgespec.serve.protocols.responses.request import ResponsesRequest
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
    "/v1/responses": TextProtocol(
        ResponsesRequest, "the answer to items of a conversation", ResponsesAnswer
    ),
    "/v1/embeddings": VectorProtocol(EmbeddingsRequest, "vectors of texts"),
    "/infill": TextProtocol(InfillRequest, "the text at a cursor", InfillAnswer),
    "/tokenize": ObjectProtocol(TokenizeRequest, "the tokens of a text", tokenized),
    "/detokenize": ObjectProtocol(DetokenizeRequest, "the text of tokens", detokenized),
    "/render": ObjectProtocol(RenderRequest, "HTML of an answer in Markdown, by blocks", render),
    "/api/chat": TextProtocol(OllamaChatRequest, "the answer in a conversation", OllamaChatAnswer),
    "/api/generate": TextProtocol(
        OllamaGenerateRequest, "the answer to a prompt", OllamaGenerateAnswer
    ),
    "/api/embed": VectorProtocol(OllamaEmbedRequest, "vectors of texts"),
    "/api/embeddings": VectorProtocol(OllamaEmbeddingsRequest, "the vector of a text"),
    "/api/show": ObjectProtocol(OllamaShowRequest, "the model of this name", describe_model),
}
