"""Vectors, as clients other than OpenAI's own ask for them; the extra `clients` installs most."""

from __future__ import annotations

import os

import numpy as np
import pytest
from embeddings import make_served
from installed import installed
from servers import MODEL, PLACE, serving

from edgespec import LLM

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


def test_llamaindex(llm, url):
    module = installed("llama_index.embeddings.openai_like")
    embeddings = module.OpenAILikeEmbedding(
        model_name=MODEL, api_base=f"{url}/v1", api_key="none", max_retries=0
    )
    sent = [each.replace("\n", " ") for each in TEXTS]  # by the library
    assert same(embeddings.get_text_embedding_batch(TEXTS), llm.embed(sent))
    assert same([embeddings.get_query_embedding(TEXTS[0])], llm.embed(sent[0]))


def test_langchains_client_of_jina(llm, url, monkeypatch):
    module = installed("langchain_community.embeddings.jina")
    monkeypatch.setattr(module, "JINA_API_URL", f"{url}/v1/embeddings")  # it has no field for it
    embeddings = module.JinaEmbeddings(model_name=MODEL, jina_api_key="none")
    assert same(embeddings.embed_documents(TEXTS), llm.embed(TEXTS))
    assert same([embeddings.embed_query(TEXTS[0])], llm.embed(TEXTS[0]))
