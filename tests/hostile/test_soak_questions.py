"""What the test of a server under load asks, and how it reads the answers."""

from __future__ import annotations

import asyncio
import importlib
import sys

import chats
import httpx
import pytest
from checkout import BENCHMARKS
from fillers import make_filler
from pairs import with_eos
from servers import MODEL, make_bundle, serving

from edgespec import LLM

# Last: both folders have modules of the same name.
sys.path.append(str(BENCHMARKS))

soak = importlib.import_module("soak_questions")

OF_CHATS = ["/v1/chat/completions", "/v1/responses", "/api/chat"]


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chatting")
    path = with_eos(make_bundle(folder, chats.template("hermes")), folder / "ending", 0)
    with LLM(path, draft="lookup", threads=1) as llm, serving(llm) as running:
        yield running.url


@pytest.fixture(scope="module")
def filling(tmp_path_factory):
    path = make_filler(tmp_path_factory.mktemp("filling"))
    with LLM(path, draft="lookup", threads=1) as llm, serving(llm) as running:
        yield running.url


def answered(url, ask):
    async def both():
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return [
                (each.path, *[await each.answer(client, stream) for stream in (False, True)])
                for each in await ask(client)
            ]

    return asyncio.run(both())


def test_chats_and_calls_are_read_alike_whole_and_streamed(chatting, monkeypatch):
    monkeypatch.setattr(soak, "TOOLS", chats.TOOLS)
    monkeypatch.setattr(soak, "REQUESTS", ["hello"])
    found = answered(chatting, soak.questions)
    assert [path for path, *_ in found] == OF_CHATS * 2
    for _, whole, streamed in found:
        assert whole == streamed
        assert whole[0]
    for _, (call,), _ in found[3:5]:  # Ollama's API cannot require a call
        assert call.startswith(("get_weather{", "clock{"))


def test_infill_is_read_alike_whole_and_streamed(filling, monkeypatch):
    monkeypatch.setattr(soak, "_TOKENS", 8)
    found = answered(filling, soak.questions)
    assert {path for path, *_ in found} == {"/infill"}
    assert len(found) == len(soak.REQUESTS)
    for _, whole, streamed in found:
        assert whole == streamed
        assert whole[0]


def test_known_texts_are_asked_for_on_both_routes(chatting):
    with httpx.Client(base_url=chatting) as client:
        body = {"prompt": [5, 6, 7], "max_tokens": 6, "temperature": 0}
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    known = soak.Known([5, 6, 7], "", 6, text).questions(MODEL)[:2]

    async def ask(_client):
        return [question for question, _ in known]

    assert answered(chatting, ask) == [("/v1/completions", wanted, wanted) for _, wanted in known]
    assert [len(wanted) for _, wanted in known] == [1, 2]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat", "/infill"])
def test_a_stream_that_ends_too_early_is_lost(path):
    server = httpx.MockTransport(lambda _: httpx.Response(200, text=""))

    async def ask():
        async with httpx.AsyncClient(transport=server, base_url="http://none") as client:
            await soak.Question(path, {}).answer(client, stream=True)

    with pytest.raises(ValueError, match=f"a stream of {path} ended"):
        asyncio.run(ask())
