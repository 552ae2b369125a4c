"""The OpenAPI document, and bodies made from it: right, nearly right and absurd."""

from __future__ import annotations

import httpx
import pytest
import schemathesis
from embeddings import make_served
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance
from servers import PLACE, serving

from edgespec import LLM
from edgespec.serve.openapi import document

pytestmark = pytest.mark.slow

# What a document cannot say: that a prompt fits the context, or which tokens there are.
UNSAID = [positive_data_acceptance]
PATIENCE = 300  # seconds


@pytest.fixture(scope="module")
def running(served_bundle):
    llm = LLM(served_bundle, draft="none", context=48, **PLACE)
    with serving(llm, parallel=2) as running:
        yield running


# What is wrong may also be too long, which is told first.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]
SCHEMA = schemathesis.openapi.from_dict(
    document(needs_key=False),
    config=SchemathesisConfig.from_dict(
        {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
    ),
)


@SCHEMA.parametrize()
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_sent_is_answered_or_refused_as_the_document_says(case, running):
    case.call_and_validate(running.url, excluded_checks=UNSAID, timeout=PATIENCE)


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    llm = LLM(make_served(tmp_path_factory.mktemp("embedding")), context=48, **PLACE)
    with serving(llm, parallel=2) as running:
        yield running


@SCHEMA.include(path_regex="/embed").parametrize()
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_so_is_whatever_is_sent_to_an_embedding_model(case, embedding):
    case.call_and_validate(embedding.url, excluded_checks=UNSAID, timeout=PATIENCE)


def test_the_document_has_all_routes(running):
    found = httpx.get(f"{running.url}/openapi.json").json()
    assert sorted(found["paths"]) == [
        "/",
        "/api/chat",
        "/api/embed",
        "/api/embeddings",
        "/api/generate",
        "/api/ps",
        "/api/show",
        "/api/tags",
        "/api/version",
        "/detokenize",
        "/health",
        "/infill",
        "/lora-adapters",
        "/metrics",
        "/openapi.json",
        "/pdf",
        "/render",
        "/rerank",
        "/tokenize",
        "/tools",
        "/tools/call",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embed",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/rerank",
        "/v1/responses",
        "/v2/embed",
        "/v2/rerank",
    ]
    for path, methods in found["paths"].items():
        for method, described in methods.items():
            status = httpx.request(method, running.url + path).status_code
            assert str(status) in described["responses"]


@pytest.mark.parametrize("needs_key", [False, True])
def test_the_document_says_what_needs_the_key(needs_key):
    whole = document(needs_key)
    for path, methods in whole["paths"].items():
        needed = needs_key and path not in ("/", "/health", "/openapi.json")
        for method, described in methods.items():
            assert described.get("security", whole["security"]) == [{"key": []}] * needed
            assert ("401" in described["responses"]) == (needed or method == "post")
