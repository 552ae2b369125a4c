"""Reranking over HTTP, as clients of Jina's and Cohere's APIs ask for it."""

from __future__ import annotations

import httpx
import pytest
from embeddings import make_served
from encoders import make_ranker
from servers import MODEL, PLACE, refused, serving

from edgespec import LLM, export
from edgespec.export import ExportOptions

QUERY = "what is a tree"
DOCUMENTS = ["a tree", "the quick brown fox", "x", "one two three " * 40]
ASKED = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS}
PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_ranker(folder / "checkpoint", "bert")
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm) as running:
        yield running


def told(answer):
    return [(each["index"], each["relevance_score"]) for each in answer["results"]]


def expected(llm, **options):
    return [(each.index, each.score) for each in llm.rerank(QUERY, DOCUMENTS, **options)]


@pytest.mark.parametrize("path", PATHS)
def test_documents_come_by_their_scores(llm, running, path):
    answer = running.post(ASKED, path).json()
    assert told(answer) == expected(llm)
    tokens = sum(len(each.tokens) for each in llm.reranker().texts(QUERY, DOCUMENTS))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (answer["model"], answer["object"]) == (MODEL, "list")
    assert answer["id"]


def test_documents_are_told_as_each_api_does(running):
    for path, options, shown in (
        ("/v1/rerank", {}, True),
        ("/v1/rerank", {"return_documents": False}, False),
        ("/v2/rerank", {}, False),
    ):
        results = running.post({**ASKED, **options}, path).json()["results"]
        for each in results:
            own = {"document": {"text": DOCUMENTS[each["index"]]}} if shown else {}
            assert each.keys() - {"index", "relevance_score"} == own.keys()
            assert each.get("document") == own.get("document")


def test_the_best_and_documents_as_objects(llm, running):
    """As LangChain's and LlamaIndex's classes for Jina ask."""
    objects = [{"text": each} for each in DOCUMENTS]
    body = {"query": QUERY, "documents": objects, "model": MODEL, "top_n": 2, "truncation": True}
    assert told(running.post(body, "/v1/rerank").json()) == expected(llm, top_n=2)


def test_ranked_documents_are_counted(running):
    before = counted(running)
    assert running.post(ASKED, "/v1/rerank").status_code == 200
    assert counted(running) == before + len(DOCUMENTS)


def counted(running):
    found = running.metrics().items()
    [value] = [value for key, value in found if key.startswith("edgespec_ranked_documents_total")]
    return value


def test_what_it_can_do(running):
    [model] = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert model["capabilities"] == ["rerank"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"documents": ["a"]}, "query is missing"),
        ({"query": "a"}, "documents is missing"),
        ({"query": "a", "documents": []}, "at least 1 item"),
        ({"query": "", "documents": ["a"]}, "at least 1 character"),
        ({"query": "a", "documents": ["a", " "]}, r"documents[1] is empty"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n is 0"),
        ({"query": "tree " * 600, "documents": ["a"]}, "the query is too long"),
    ],
    ids=str,
)
def test_what_is_refused(running, body, reason):
    refused(running.post(body, "/v1/rerank"), 400, reason)


def test_other_routes_are_refused(running):
    for path, body, reason in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "ranks texts"),
        ("/v1/embeddings", {"input": "a"}, "makes scores of texts, and no embeddings"),
    ):
        refused(running.post(body, path), 400, reason)


def test_a_model_of_embeddings_ranks_nothing(tmp_path):
    with LLM(make_served(tmp_path), **PLACE) as llm, serving(llm) as running:
        refused(running.post(ASKED, "/v1/rerank"), 400, "makes embeddings, and ranks no texts")
