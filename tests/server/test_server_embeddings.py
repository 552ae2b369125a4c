"""Embeddings of a model that writes text, which has none: clients are told so."""

from __future__ import annotations

import openai
import pytest
from servers import MODEL, PLACE, refused, serving

from edgespec import LLM

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def running(served_bundle):
    with serving(LLM(served_bundle, draft="none", **PLACE)) as running:
        yield running


@pytest.mark.parametrize("given", ["a", ["a", "b"], [1, 2], [[1, 2], [3]]], ids=str)
def test_the_client_is_told_that_there_are_none(running, given):
    with pytest.raises(openai.BadRequestError, match="makes texts, and no embeddings") as caught:
        running.client().embeddings.create(model=MODEL, input=given)
    assert caught.value.code == "embeddings_not_supported"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"model": MODEL}, 400, "input is missing"),
        ({"input": []}, 400, "at least 1 item"),
        ({"input": ["a", ""]}, 400, "at least 1 character"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions is 0"),
        ({"input": "a", "pooling": "mean"}, 400, "pooling is not supported"),
        ({"input": "a", "model": "text-embedding-3-small"}, 404, "there is no model"),
    ],
    ids=str,
)
def test_what_else_is_wrong_is_told_first(running, body, status, reason):
    refused(running.post(body, PATH), status, reason)
