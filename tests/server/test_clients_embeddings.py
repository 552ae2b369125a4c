"""Vectors, as clients other than OpenAI's own ask for them; the extra `clients` installs two."""

from __future__ import annotations

import os

import numpy as np
import pytest
from embeddings import make_served
from encoders import make_ranker
from installed import installed
from servers import MODEL, PLACE, serving

from edgespec import LLM, export
from edgespec.export import ExportOptions

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXTS = ["def add(a, b):\n", "class Tree:\n"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(make_served(tmp_path_factory.mktemp("served")), **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def url(llm):
    with serving(llm) as running:
        yield running.url


def same(found, expected):
    return np.array_equal(np.array(found, np.float32), expected)


def test_langchain(llm, url):
    langchain = installed("langchain_openai")
    embeddings = langchain.OpenAIEmbeddings(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        check_embedding_ctx_length=False,
    )
    assert same(embeddings.embed_documents(TEXTS), llm.embed(TEXTS))
    assert same([embeddings.embed_query(TEXTS[0])], llm.embed(TEXTS[0]))


def test_litellm(llm, url):
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network
    litellm = installed("litellm")
    place = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}
    found = litellm.embedding(input=TEXTS, **place)
    assert same([each["embedding"] for each in found.data], llm.embed(TEXTS))
    assert found.usage.prompt_tokens == sum(map(len, llm.embedder.tokens(TEXTS)))


def test_ollama(llm, url):
    client = pytest.importorskip("ollama").Client(url)
    found = client.embed(MODEL, TEXTS, dimensions=8)
    assert same(found.embeddings, llm.embed(TEXTS, dimensions=8))
    assert same([client.embed(MODEL, TEXTS[0]).embeddings[0]], llm.embed(TEXTS[0]))
    assert same([client.embeddings(MODEL, TEXTS[0]).embedding], llm.embed(TEXTS[0]))
    assert client.show(MODEL).capabilities == ["embedding"]


def test_cohere(llm, url):
    cohere = installed("cohere")
    asked = {"model": MODEL, "texts": TEXTS, "input_type": "search_query"}
    expected = llm.embed(TEXTS, prompt_name="query")
    newer = cohere.ClientV2("none", base_url=url)
    found = newer.embed(**asked, embedding_types=["float"], output_dimension=64)
    assert same(found.embeddings.float_, expected)
    older = cohere.Client("none", base_url=url)
    assert same(older.embed(**asked).embeddings, expected)
    assert same(older.embed(**asked, embedding_types=["float"]).embeddings.float_, expected)


def test_cohere_ranks(tmp_path):
    cohere = installed("cohere")
    make_ranker(tmp_path / "checkpoint", "bert")
    export.make(tmp_path / "checkpoint", tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLACE) as ranker, serving(ranker) as running:
        expected = [(each.index, each.score) for each in ranker.rerank("a tree", TEXTS, top_n=1)]
        for kind in (cohere.Client, cohere.ClientV2):
            found = kind("none", base_url=running.url).rerank(
                model=MODEL, query="a tree", documents=TEXTS, top_n=1
            )
            assert [(each.index, each.relevance_score) for each in found.results] == expected
