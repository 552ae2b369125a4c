"""Embeddings over HTTP, as OpenAI's client and programs for Ollama ask for them."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time

import httpx
import numpy as np
import openai
import pytest
from embeddings import ids_of, make_served
from servers import MODEL, PLACE, refused, serving, until

from edgespec import LLM
from edgespec.llm.pooling import TextRows

PATH = "/v1/embeddings"
ASKED = {"model": MODEL, "input": "x"}
TEXTS = ["def add(a, b):\n", "class Tree:\n", "x"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_served(folder)
    return folder


@pytest.fixture(scope="module")
def llm(made):
    with LLM(made / "bundle", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm, parallel=2) as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    return running.client()


def vectors(answer):
    return np.array([each.embedding for each in answer.data], np.float32)


def test_openais_client_gets_the_vectors_of_the_model(made, llm, client):
    """It asks for base64 unless it is told otherwise."""
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert np.array_equal(vectors(answer), llm.embed(TEXTS))
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert (answer.object, answer.data[0].object, answer.model) == ("list", "embedding", MODEL)
    tokens = sum(len(ids_of(made / "checkpoint", text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_base64_and_numbers_are_the_same(running, llm):
    body = {"model": MODEL, "input": TEXTS}
    written = running.post({**body, "encoding_format": "base64"}, PATH).json()["data"]
    numbers = running.post({**body, "encoding_format": "float"}, PATH).json()["data"]
    decoded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in written]
    assert np.array_equal(decoded, llm.embed(TEXTS))
    assert np.array_equal(decoded, np.array([each["embedding"] for each in numbers], np.float32))
    assert running.post(body, PATH).json()["data"] == numbers


def test_a_text_and_tokens_in_all_forms(made, llm, client):
    ids = [ids_of(made / "checkpoint", text) for text in TEXTS]
    whole = llm.embed(TEXTS)
    for given, expected in ((TEXTS[0], whole[:1]), (ids[0], whole[:1]), (ids, whole)):
        answer = client.embeddings.create(model=MODEL, input=given)
        assert np.array_equal(vectors(answer), expected)


def test_fewer_dimensions_and_prompts(llm, client):
    answer = client.embeddings.create(model=MODEL, input=TEXTS, dimensions=16)
    assert np.array_equal(vectors(answer), llm.embed(TEXTS, dimensions=16))
    named = {"prompt_name": "query"}
    answer = client.embeddings.create(model=MODEL, input=TEXTS, extra_body=named)
    assert np.array_equal(vectors(answer), llm.embed(TEXTS, prompt_name="query"))


def test_vectors_are_counted(made, running):
    before = running.metrics()
    assert running.post({"input": TEXTS}, PATH).status_code == 200
    after = running.metrics()
    tokens = sum(len(ids_of(made / "checkpoint", text)) for text in TEXTS)
    for name, more in (("embeddings", 3), ("prompt_tokens", tokens), ("texts", 0)):
        assert sum_of(after, name) - sum_of(before, name) == more


def sum_of(metrics, name):
    return sum(value for key, value in metrics.items() if key.startswith(f"edgespec_{name}_total"))


def test_several_clients_at_once_get_their_own(llm, client):
    expected = llm.embed(TEXTS)
    found = {}

    def ask(number):
        found[number] = vectors(client.embeddings.create(model=MODEL, input=TEXTS[number % 3]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(np.array_equal(found[number], [expected[number % 3]]) for number in found)


def test_ollamas_routes(made, llm, running):
    given = running.post({"model": MODEL, "input": TEXTS, "truncate": True}, "/api/embed").json()
    assert np.array_equal(np.array(given["embeddings"], np.float32), llm.embed(TEXTS))
    assert given["model"] == MODEL
    tokens = sum(len(ids_of(made / "checkpoint", text)) for text in TEXTS)
    assert given["prompt_eval_count"] == tokens
    assert given["total_duration"] > 0
    body = {"model": f"{MODEL}:latest", "input": TEXTS[0], "dimensions": 8, "keep_alive": "5m"}
    given = running.post(body, "/api/embed").json()
    expected = llm.embed(TEXTS[0], dimensions=8)
    assert np.array_equal(np.array(given["embeddings"], np.float32), expected)
    given = running.post({"model": MODEL, "prompt": TEXTS[0]}, "/api/embeddings").json()
    assert np.array_equal(np.array(given["embedding"], np.float32), llm.embed(TEXTS[0])[0])


def test_ollamas_route_cuts_what_is_too_long_unless_it_must_not(llm, running):
    text = "a word after another " * 300
    most = llm.context_length
    tokens = llm.tokenizer.encode(text)
    assert len(tokens) > most
    end = llm.tokenizer.ended([])
    expected = llm.embed([*tokens[: most - len(end)], *end])
    for truncate in ({}, {"truncate": None}, {"truncate": True}):
        body = {"model": MODEL, "input": [TEXTS[0], text], **truncate}
        given = running.post(body, "/api/embed").json()
        found = np.array(given["embeddings"], np.float32)
        assert np.array_equal(found, np.concatenate([llm.embed(TEXTS[0]), expected]))
    for body, path in (
        ({"input": text, "truncate": False}, "/api/embed"),
        ({"prompt": text}, "/api/embeddings"),
    ):
        given = running.post({"model": MODEL, **body}, path)
        assert given.status_code == 400
        assert "too long" in given.json()["error"]


def test_ollama_is_asked_for_nothing_to_load_a_model(running):
    for nothing in ({}, {"input": ""}, {"input": []}):
        assert running.post({"model": MODEL, **nothing}, "/api/embed").json()["embeddings"] == []
    assert running.post({"model": MODEL}, "/api/embeddings").json() == {"embedding": []}


def test_the_model_says_that_it_makes_embeddings_alone(running):
    (model,) = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert model["capabilities"] == ["embedding"]
    assert model["edgespec"] == {"chat": False, "draft": "none"}
    shown = running.post({"model": MODEL}, "/api/show").json()
    assert shown["capabilities"] == ["embedding"]
    assert shown["model_info"]["qwen3.embedding_length"] == 64


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_who_asks_for_a_text_is_told_that_there_is_none(running, path, body):
    refused(running.post({"model": MODEL, **body}, path), 400, "makes embeddings, and no text")


def test_so_is_who_asks_as_ollamas_clients_do(running):
    for path in ("/api/chat", "/api/generate"):
        body = {"model": MODEL, "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
        given = running.post(body, path)
        assert given.status_code == 400
        assert "makes embeddings, and no text" in given.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"input": [7] * 513}, 400, "it has 513 tokens"),
        ({"input": [[1], [7] * 513]}, 400, "texts[1]: the text is too long"),
        ({"input": [331]}, 400, "token id 331 is not in the vocabulary"),
        ({"input": [-1]}, 400, "token id -1"),
        ({"input": [1, "a"]}, 400, "input"),
        ({"input": "a", "dimensions": 65}, 400, "the model's vectors have 64"),
        ({"input": "a", "dimensions": 10**1000}, 400, "dimensions is 1000"),
        ({"input": "a", "prompt_name": "poem"}, 400, "prompt_name is 'poem'"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format is 'int8'"),
        ({"input": "a", "model": "other"}, 404, "not found: use"),
    ],
    ids=lambda each: f"{each!r:.40}",
)
def test_what_is_wrong_is_named(running, body, status, reason):
    refused(running.post(body, PATH), status, reason)


def test_a_text_that_is_too_long_has_a_code_of_its_own(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input=[7] * 513)
    assert caught.value.code == "context_length_exceeded"


@pytest.fixture
def endless(monkeypatch):
    """Texts are read until somebody stops it."""

    def read(self, group, check):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            check()
            time.sleep(0.005)
        raise AssertionError("nobody has stopped it")

    monkeypatch.setattr(TextRows, "_read", read)


def test_a_client_that_goes_ends_the_work(running, endless):
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        content = json.dumps(ASKED)
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: {len(content)}\r\n\r\n{content}".encode())
        until(lambda: running.queue.running)
    until(lambda: not running.queue.running)


def test_a_server_that_stops_refuses_at_once(llm, endless):
    answers = []
    with serving(llm) as running:
        thread = threading.Thread(target=lambda: answers.append(running.post(ASKED, PATH)))
        thread.start()
        until(lambda: running.queue.running)
    thread.join()
    refused(answers[0], 503, "the server is shutting down")


# A model that writes texts


@pytest.fixture(scope="module")
def texts(plain):
    with serving(plain) as running:
        yield running


@pytest.mark.parametrize("given", ["a", ["a", "b"], [1, 2], [[1, 2], [3]]], ids=str)
def test_the_client_is_told_that_there_are_none(texts, given):
    with pytest.raises(openai.BadRequestError, match="makes texts, and no embeddings") as caught:
        texts.client().embeddings.create(model=MODEL, input=given)
    assert caught.value.code == "embeddings_not_supported"


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"model": MODEL}, 400, "input is missing"),
        ({"input": []}, 400, "at least 1 item"),
        ({"input": ["a", ""]}, 400, "at least 1 character"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions is 0"),
        ({"input": "a", "pooling": "mean"}, 400, "pooling is 'mean', which is not supported"),
        ({"input": "a", "model": "text-embedding-3-small"}, 404, "not found: use"),
    ],
    ids=str,
)
def test_what_else_is_wrong_is_told_first(texts, body, status, reason):
    refused(texts.post(body, PATH), status, reason)


# What other APIs' clients ask for


def test_what_vectors_are_for_names_the_prompt(llm, running):
    query = llm.embed(TEXTS, prompt_name="query").tolist()
    plain = llm.embed(TEXTS).tolist()
    for field, purpose, expected in (
        ("input_type", "query", query),
        ("input_type", "search_query", query),
        ("task", "retrieval.query", query),
        ("input_type", "passage", plain),
        ("task", "classification", plain),
    ):
        answer = running.post({"input": TEXTS, field: purpose}, PATH).json()
        assert [each["embedding"] for each in answer["data"]] == expected
    refused(running.post({"input": "a", "input_type": "poem"}, PATH), 400, "input_type is 'poem'")


def test_jinas_form(llm, running):
    body = {
        "model": MODEL,
        "input": [{"text": each} for each in TEXTS],
        "task": "retrieval.passage",
        "embedding_type": "float",
        "normalized": True,
        "late_chunking": False,
        "truncate": True,
        "dimensions": 8,
    }
    answer = running.post(body, PATH).json()
    found = [each["embedding"] for each in answer["data"]]
    assert found == llm.embed(TEXTS, dimensions=8).tolist()
    raw = running.post({**body, "normalized": False}, PATH).json()["data"][0]["embedding"]
    assert np.linalg.norm(raw) > 2
    refused(running.post({**body, "late_chunking": True}, PATH), 400, "late_chunking is true")
    long = {"input": "x " * 9000, "truncate": True}
    assert running.post(long, PATH).status_code == 200


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_coheres_form(llm, running, path):
    body = {
        "model": MODEL,
        "texts": TEXTS,
        "input_type": "search_query",
        "embedding_types": ["float", "base64"],
        "output_dimension": 8,
        "truncate": "END",
    }
    answer = running.post(body, path).json()
    expected = llm.embed(TEXTS, dimensions=8, prompt_name="query")
    assert answer["embeddings"]["float"] == expected.tolist()
    decoded = [
        np.frombuffer(base64.b64decode(each), "<f4") for each in answer["embeddings"]["base64"]
    ]
    assert np.array_equal(decoded, expected)
    assert answer["texts"] == TEXTS
    assert answer["meta"]["tokens"]["input_tokens"] > 0
    refused(running.post({**body, "images": ["a"]}, path), 400, 'images is ["a"], which is not')


def test_coheres_older_form_without_types(llm, running):
    answer = running.post({"texts": TEXTS}, "/v1/embed").json()
    assert answer["embeddings"] == llm.embed(TEXTS).tolist()
    assert answer["response_type"] == "embeddings_floats"
