"""Documents ranked, as libraries ask for it; the extra `clients` installs most of them."""

from __future__ import annotations

import pytest
from encoders import make_ranker
from installed import installed
from servers import MODEL, PLACE, serving

from edgespec import LLM, export
from edgespec.export import ExportOptions

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

QUERY = "a tree"
TEXTS = ["def add(a, b):\n", "class Tree:\n", "the quick brown fox"]
TOP = 2


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A ranker's address, and its ranking: indices and scores."""
    folder = tmp_path_factory.mktemp("ranker")
    make_ranker(folder / "checkpoint", "bert")
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLACE) as ranker, serving(ranker) as running:
        found = ranker.rerank(QUERY, TEXTS, top_n=TOP)
        yield running.url, [(each.index, each.score) for each in found]


@pytest.mark.parametrize("kind", ["Client", "ClientV2"])
def test_cohere(served, kind):
    url, expected = served
    client = getattr(installed("cohere"), kind)("none", base_url=url)
    found = client.rerank(model=MODEL, query=QUERY, documents=TEXTS, top_n=TOP)
    assert [(each.index, each.relevance_score) for each in found.results] == expected


def test_langchain_cohere(served):
    url, expected = served
    kind = pytest.importorskip("langchain_cohere").CohereRerank
    found = kind(model=MODEL, base_url=url, cohere_api_key="none", top_n=TOP).rerank(TEXTS, QUERY)
    assert [(each["index"], each["relevance_score"]) for each in found] == expected


def test_langchains_client_of_jina(served, monkeypatch):
    url, expected = served
    module = installed("langchain_community.document_compressors.jina_rerank")
    monkeypatch.setattr(module, "JINA_API_URL", f"{url}/v1/rerank")  # it has no field for it
    documents = [installed("langchain_core.documents").Document(each) for each in TEXTS]
    ranker = module.JinaRerank(model=MODEL, jina_api_key="none", top_n=TOP)
    found = ranker.compress_documents(documents, QUERY)
    assert [
        (TEXTS.index(each.page_content), each.metadata["relevance_score"]) for each in found
    ] == expected


@pytest.mark.parametrize(
    ("module", "kind", "path"),
    [("jinaai_rerank", "JinaRerank", "/v1"), ("cohere_rerank", "CohereRerank", "")],
)
def test_llamaindex(served, module, kind, path):
    url, expected = served
    schema = installed("llama_index.core.schema")
    made = getattr(pytest.importorskip(f"llama_index.postprocessor.{module}"), kind)
    ranker = made(top_n=TOP, model=MODEL, base_url=f"{url}{path}", api_key="none")
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=each)) for each in TEXTS]
    found = ranker.postprocess_nodes(nodes, query_str=QUERY)
    assert [(TEXTS.index(each.node.text), each.score) for each in found] == expected
