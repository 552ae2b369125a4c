"""What one client can take from the others: before its turn, of connections, and of the cache."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import copy_context

import httpx
import pytest
from commandline import FAST
from servers import MODEL, PROMPT, one_model, refused, serving, started, until

from edgespec.errors import InputError
from edgespec.llm.llm import inside
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.serve import queue as queue_module
from edgespec.serve import running as running_module
from edgespec.serve.protocols.completions import CompletionRequest
from edgespec.serve.protocols.fields import parse_body
from edgespec.serve.protocols.tokens import TokenizeRequest
from edgespec.serve.queue import RequestQueue
from edgespec.serve.refusals import RequestError
from edgespec.system.waiting import NOBODY_WAITS

LONG = "x " * 40_000  # more than the context holds, and less than a body
MESSAGES = [{"role": "user", "content": "hello"}]
ROUTES = {
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "hello"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/api/generate": {"model": MODEL, "prompt": PROMPT},
    "/api/chat": {"model": MODEL, "messages": MESSAGES},
}


# Before the queue


def encoded(monkeypatch):
    """The texts that are converted to tokens from now on."""
    texts = []
    encode = Tokenizer.encode

    def noted(self, text, *arguments, **options):
        texts.append(text)
        return encode(self, text, *arguments, **options)

    monkeypatch.setattr(Tokenizer, "encode", noted)
    return texts


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": ["a", LONG]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/responses", {"input": LONG}),
        ("/api/generate", {"model": MODEL, "prompt": LONG}),
    ],
    ids=["completion", "completions", "chat", "responses", "ollama"],
)
def test_what_is_too_long_is_refused_without_reading_all_of_it(running, monkeypatch, path, body):
    texts = encoded(monkeypatch)
    given = running.post(body, path)
    assert given.status_code == 400
    assert "too long" in str(given.json()["error"])
    assert max(map(len, texts), default=0) < len(LONG) / 4


def test_a_text_of_more_bytes_than_tokens_can_have_is_not_read(llm, monkeypatch):
    texts = encoded(monkeypatch)
    with pytest.raises(Exception, match="bytes are more tokens than"):
        llm.stream("x" * (llm.context_length * max(64, llm.tokenizer.longest) + 1))
    assert texts == []


def test_choices_are_prepared_once(running, monkeypatch):
    texts = encoded(monkeypatch)
    word = "prediction of the text"
    body = {
        "messages": MESSAGES,
        "n": 4,
        "max_tokens": 4,
        "seed": 1,
        "temperature": 1,
        "prediction": {"type": "content", "content": word},
    }
    given = running.post(body, "/v1/chat/completions")
    assert len(given.json()["choices"]) == 4
    assert texts.count(word) == 1
    assert sum("hello" in text for text in texts) == 1


def test_what_waits_to_be_prepared_is_counted_and_leaves_with_its_client(plain):
    """And a shutdown does not wait for it."""
    queue = RequestQueue(one_model(plain), 1, 3)
    begun = threading.Event()
    release = threading.Event()

    def work():
        begun.set()
        assert release.wait(30)

    async def ask():
        tasks = [asyncio.create_task(queue.in_place(work)) for _ in range(4)]
        await asyncio.to_thread(begun.wait, 30)
        with pytest.raises(queue_module.RequestError, match="are waiting already"):
            await queue.in_place(work)
        tasks[3].cancel()
        await asyncio.wait([tasks[3]])
        assert (queue.running, queue.waiting) == (1, 2)
        queue.close()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert ["shutting down" in str(answer) for answer in answers[:3]] == [True] * 3
        assert queue.busy

    try:
        asyncio.run(ask())
    finally:
        release.set()
    until(lambda: not queue.busy)


@pytest.mark.parametrize("kind", ["in place", "text", "in turn"])
def test_what_is_prepared_for_a_client_that_left_counts_until_it_ends(plain, kind):
    queue = RequestQueue(one_model(plain), 1, 0)
    begun = threading.Event()
    left = threading.Event()
    release = threading.Event()

    def work(*_):
        begun.set()
        until(NOBODY_WAITS.get())
        left.set()
        assert release.wait(30)
        raise InputError("nobody hears it")

    async def show(_part):
        pass

    def asked():
        [model] = queue.models.served
        if kind == "text":
            return queue.texts(model, work, show)
        return queue.in_place(work) if kind == "in place" else queue.in_turn(model, work, work)

    async def ask():
        task = asyncio.create_task(asked())
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        assert await asyncio.to_thread(left.wait, 30)
        assert queue.running == 1
        with pytest.raises(RequestError, match="are waiting already"):
            await queue.in_place(int)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (queue.running, queue.waiting, queue.busy) == (0, 0, False)
        assert await queue.in_place(int) == 0
        queue.close()

    try:
        asyncio.run(ask())
    finally:
        release.set()


def test_a_list_of_prompts_is_prepared_no_further_when_its_client_left(plain, monkeypatch):
    texts = []
    gone = threading.Event()
    encode = Tokenizer.encode

    def leaving(self, text, *arguments, **options):
        texts.append(text)
        gone.set()
        return encode(self, text, *arguments, **options)

    monkeypatch.setattr(Tokenizer, "encode", leaving)
    body = CompletionRequest(prompt=[f"text {number}" for number in range(9)])
    context = copy_context()
    context.run(NOBODY_WAITS.set, gone.is_set)
    with pytest.raises(InputError, match="nobody waits"):
        context.run(body.texts, plain)
    assert texts == ["text 0"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_long_texts_of_tokens_do_not_hold_up_the_others(running, path):
    body = {"content": "a b " * 24_000} if path == "/tokenize" else {"tokens": [70] * 24_000}
    with ThreadPoolExecutor(6) as threads:
        answers = [threads.submit(running.post, body, path) for _ in range(6)]
        longest = 0.0
        while not all(answer.done() for answer in answers):
            asked = time.monotonic()
            assert httpx.get(f"{running.url}/health").status_code == 200
            longest = max(longest, time.monotonic() - asked)
    assert {answer.result().status_code for answer in answers} == {200}
    assert longest < 1  # far less where nothing else runs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_whatever_its_threads_do(start, served_bundle, number):
    process = start("serve", served_bundle, "--port=0", *FAST, "--draft=none", "--max-body=64MiB")
    _, url = started(process)
    body = json.dumps({"content": "a b " * 8_000_000}).encode()
    headers = {"content-type": "application/json"}
    with ThreadPoolExecutor(3) as threads:
        for _ in range(3):
            threads.submit(
                lambda: httpx.post(f"{url}/tokenize", content=body, headers=headers, timeout=60)
            )
        time.sleep(0.7)
        process.send_signal(number)
        asked = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - asked < 2.5


# Streams


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_begins_when_it_is_accepted_and_says_that_it_waits(plain, monkeypatch, path):
    monkeypatch.setattr(queue_module, "_SIGNS", 0.1)
    if path == "/infill":
        pytest.skip("the model has no tokens for it")
    with serving(plain) as running, inside(plain).engine.exclusive():
        body = {**ROUTES[path], "stream": True}
        with httpx.stream("POST", running.url + path, json=body, timeout=5) as response:
            assert response.status_code == 200
            if not path.startswith("/api/"):
                lines = (line for line in response.iter_lines() if line.startswith(":"))
                assert [next(lines) for _ in range(3)] == [": waiting"] * 3


def test_what_is_refused_at_once_has_no_stream(running):
    refused(running.post({"prompt": LONG, "stream": True}), 400, "too long")


# Connections


def half_open(running, head=b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"):
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=10)
    sock.sendall(head)
    return sock


def test_requests_that_do_not_come_in_time_are_closed(llm, monkeypatch):
    monkeypatch.setattr(running_module, "IDLE_SECONDS", 0.3)
    with serving(llm) as running:
        body = (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n"
            b"content-type: application/json\r\n\r\n{"
        )
        for head in (b"", b"GET / HTTP/1.1\r\nhost: loc", body):
            with half_open(running, head) as sock, suppress(ConnectionError):
                assert sock.recv(1) == b""
        monkeypatch.setattr(running_module, "REQUEST_SECONDS", 0.6)
        began = time.monotonic()
        with half_open(running) as sock, suppress(ConnectionError):
            while time.monotonic() - began < 5:  # never idle
                sock.sendall(b"a: b\r\n")
                time.sleep(0.05)
        assert time.monotonic() - began < 5


def test_half_open_requests_do_not_shut_others_out(llm, monkeypatch, caplog):
    monkeypatch.setattr(running_module, "MOST_CONNECTIONS", 20)
    with serving(llm) as running, ExitStack() as stack, caplog.at_level(logging.WARNING):
        for _ in range(60):
            stack.enter_context(half_open(running))
        assert running.post({"prompt": PROMPT, "max_tokens": 2}).status_code == 200
        assert len(running.server.server_state.connections) <= 20
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(said) <= 1  # none where another test had the minute's line
    assert all("the idlest are closed" in each for each in said)


def test_long_heads_are_refused(running, caplog):
    for _ in range(3):
        with half_open(running) as sock:
            try:
                sock.sendall(b"a: " + b"b" * 1_000_000)
                answer = sock.recv(100)
            except ConnectionError:
                continue
            assert answer[:12] in (b"HTTP/1.1 400", b"")
    assert len(caplog.records) <= 1


# The cache


def cached(running, prompt, **options):
    body = {"prompt": prompt, "max_tokens": 2, **options}
    usage = running.post(body).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def test_prompts_of_others_cannot_be_found_out_token_by_token(llm):
    llm.forget()
    secret = "the word that opens the door is swordfish, and nobody knows it"
    with serving(llm) as running:
        cached(running, secret)
        cached(running, secret, prompt_cache_key="theirs")
        for end in range(8, len(secret) - 1, 9):
            assert cached(running, secret[:end] + "\x00")[0] == 0
            assert cached(running, secret[:end], prompt_cache_key=f"mine {end}")[0] == 0
        told = running.metrics()["edgespec_reused_total"]
        assert cached(running, "the word that \x01")[0] == 0
        assert running.metrics()["edgespec_reused_total"] == told


def test_of_a_key_only_a_hash_is_kept(llm):
    llm.forget()
    key = "k" * 90_000
    with serving(llm) as running:
        length = cached(running, PROMPT, prompt_cache_key=key)[1]
        assert cached(running, PROMPT, prompt_cache_key=key)[0] == length - 1
        for other in (key + "k", key[:-1], ""):
            assert cached(running, PROMPT, prompt_cache_key=other)[0] == 0
    kept = [each for each in gc.get_objects() if type(each) in (TokenSequence, Generation)]
    salts = {each.salt if isinstance(each, TokenSequence) else each.request.salt for each in kept}
    salts |= set(inside(llm).engine.target.prefixes._roots)
    assert len(salts) > 3
    assert max(map(len, salts)) == 64


def test_a_conversation_knows_what_it_has_said(llm):
    llm.forget()
    with serving(llm) as running:
        for options in ({}, {"prompt_cache_key": "mine"}):
            known, length = cached(running, PROMPT, **options)
            assert known == 0
            assert cached(running, PROMPT + "    return n", **options)[0] >= length
            assert cached(running, PROMPT, **options)[0] == length - 1


# Bodies of many parts


def test_what_would_take_long_to_parse_is_refused_by_its_parts():
    for part in ("{}", "[]", '"a":1'):
        body = f'{{"prompt":"a","x":[{",".join([part] * 60_000)}]}}'.encode()
        with pytest.raises(RequestError, match="more than 50000 objects, lists and fields") as told:
            parse_body(CompletionRequest, body)
        assert told.value.status == 413
    with pytest.raises(RequestError, match="more than 300000 values: shorten it"):
        parse_body(CompletionRequest, json.dumps({"prompt": [5] * 300_010}).encode())
    with pytest.raises(RequestError, match="at most 500000 characters"):
        parse_body(TokenizeRequest, json.dumps({"content": "x" * 500_001}).encode())
    text = '"{[:,\\' * 301_000  # which is text in strings
    assert parse_body(CompletionRequest, json.dumps({"prompt": text}).encode()).prompt == text
