"""The server under pressure: who waits, who goes, what a shutdown does to texts under way."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import httpx
import openai
import pytest
from commandline import FAST, fails
from servers import MODEL, PROMPT, one_model, serving, started, until

from edgespec.llm.llm import inside
from edgespec.serve.queue import RequestQueue

LONG = {"model": MODEL, "temperature": 0, "max_tokens": 400}
SHORT = {"model": MODEL, "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def expected(plain):
    return plain.generate(PROMPT, max_new_tokens=8).text


def ask(client, errors=()):
    """A short text, or the error that comes in its place."""
    try:
        return client.completions.create(prompt=PROMPT, **SHORT).choices[0].text
    except errors as error:
        return error


# The queue


def test_more_than_may_wait_are_told_to_come_later(plain, expected):
    with serving(plain, limit=2) as running, ThreadPoolExecutor(3) as threads:
        client = running.client()
        queue = running.queue
        with inside(plain).engine.exclusive():  # no round is made meanwhile
            answers = [threads.submit(ask, client) for _ in range(3)]
            until(lambda: (queue.running, queue.waiting) == (1, 2))
            with pytest.raises(openai.RateLimitError, match="2 requests are waiting") as caught:
                ask(client)
            assert caught.value.response.headers["retry-after"] == "1"
            assert running.metrics()["edgespec_texts_waiting"] == 2
        assert [answer.result() for answer in answers] == [expected] * 3
        assert ask(client) == expected


def test_who_asks_first_is_served_first(plain):
    queue = RequestQueue(one_model(plain), 2, 9)
    made = []

    async def drop(_part):
        pass

    async def ask(number):
        begin = partial(plain.stream, PROMPT, max_new_tokens=8 * (number + 1))
        try:
            await queue.texts(queue.models.find(None), lambda _: [begin()], drop)
        finally:
            made.append(number)

    async def work():
        tasks = []
        for number in (30, 0, 2, 3, 1):
            tasks.append(asyncio.create_task(ask(number)))
            await asyncio.sleep(0.1)
            assert queue.running == min(len(tasks), 2)
            assert queue.waiting == len(tasks) - queue.running
        tasks[3].cancel()  # while it waits
        await asyncio.wait([tasks[3]])
        assert queue.waiting == 2
        release.set()
        await asyncio.wait(tasks)
        assert made == [3, 0, 2, 1, 30]
        assert queue.running == queue.waiting == 0

    def hold():
        with inside(plain).engine.exclusive():  # no round is made meanwhile
            held.set()
            release.wait(30)

    held = threading.Event()
    release = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    asyncio.run(work())
    holder.join()


def test_a_short_text_beside_a_long_one_does_not_wait_for_it(plain, expected):
    with serving(plain, parallel=2) as running:
        client = running.client()
        with client.completions.create(prompt=PROMPT, stream=True, **LONG) as long:
            next(iter(long))
            assert ask(client) == expected
            assert running.queue.running == 1


def test_a_client_that_reads_nothing_keeps_nobody_waiting(plain, expected):
    """Its text is made, and what it was not shown yet waits for it alone."""
    queue = RequestQueue(one_model(plain), 1, 1)

    def begin(llm):
        return [llm.stream(PROMPT, max_new_tokens=8)]

    async def read_nothing(_part):
        await asyncio.Event().wait()

    async def read(_part):
        pass

    async def work():
        model = queue.models.find(None)
        idle = asyncio.create_task(queue.texts(model, begin, read_nothing))
        [result] = await asyncio.wait_for(queue.texts(model, begin, read), 30)
        assert not idle.done()
        idle.cancel()
        await asyncio.wait([idle])
        return result.text

    assert asyncio.run(work()) == expected
    assert queue.running == 0


# Clients that go


def test_a_disconnect_ends_the_text_within_a_round(plain, expected):
    with serving(plain) as running:
        client = running.client()
        for _ in range(3):
            with client.completions.create(prompt=PROMPT, stream=True, **LONG) as chunks:
                for _ in zip(range(3), chunks, strict=False):
                    pass
        until(lambda: running.queue.running == 0)
        numbers = running.metrics()
        assert numbers["edgespec_rounds_after_cancel_count"] == 3
        assert numbers['edgespec_rounds_after_cancel_bucket{le="1.0"}'] == 3
        assert numbers['edgespec_texts_total{finish_reason="cancelled"}'] == 3
        assert numbers["edgespec_new_tokens_total"] < 3 * 400
        assert ask(client) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_before_the_first_token_leaves_nothing(plain, expected, stream):
    with serving(plain) as running:
        queue = running.queue
        body = {"prompt": PROMPT, "stream": stream, **LONG}
        with inside(plain).engine.exclusive():
            connections = [connect(running, {**body, "stream": True})]
            assert connections[0].recv(1)  # its turn has come; all are prepared on several threads
            connections += [connect(running, body) for _ in range(2)]
            until(lambda: (queue.running, queue.waiting) == (1, 2))
            connections[1].close()
            until(lambda: queue.waiting == 1)
            connections[2].close()
            connections[0].close()
            until(lambda: queue.waiting == 0)
        until(lambda: queue.running == 0)
        numbers = running.metrics()
        assert numbers["edgespec_rounds_after_cancel_count"] == 3
        assert numbers["edgespec_rounds_after_cancel_sum"] == 0
        assert numbers['edgespec_texts_total{finish_reason="cancelled"}'] == 3
        assert ask(running.client()) == expected


def test_a_client_that_goes_while_its_request_is_checked_is_counted(plain):
    queue = RequestQueue(one_model(plain), 1, 1)
    checking = threading.Event()
    checked = threading.Event()

    def begin(llm):
        checking.set()
        assert checked.wait(30)
        return [llm.stream(PROMPT, max_new_tokens=8)]

    async def work():
        task = asyncio.create_task(queue.texts(queue.models.find(None), begin, None))
        await asyncio.to_thread(checking.wait, 30)
        task.cancel()
        # It may wait for the check, which cannot be broken off.
        asyncio.get_running_loop().call_later(0.2, checked.set)
        await asyncio.wait([task])

    asyncio.run(work())
    assert queue.running == 0
    counted = b'edgespec_texts_total{finish_reason="cancelled",model="tiny"} 1.0'
    assert counted in queue.metrics.text()


def connect(running, body):
    """A request on a connection of its own, whose answer nobody reads yet."""
    request = httpx.Request("POST", f"{running.url}/v1/completions", json=body)
    sock = socket.create_connection((request.url.host, request.url.port))
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    sock.sendall(f"POST {request.url.path} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
    return sock


def test_a_client_that_goes_in_the_midst_of_its_body_is_forgotten(plain, expected):
    with serving(plain) as running:
        with socket.create_connection(("127.0.0.1", running.port)) as sock:
            sock.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            )
        assert ask(running.client()) == expected
        assert running.queue.running == 0


# The end


def test_a_shutdown_ends_texts_after_their_round(plain):
    """A text under way is told that it is cut, who waits is refused, and the port is closed."""
    with serving(plain) as running, ThreadPoolExecutor(2) as threads:
        client = running.client()
        queue = running.queue
        chunks = iter(client.completions.create(prompt=PROMPT, stream=True, **LONG))
        next(chunks)
        with inside(plain).engine.exclusive():
            waiting = threads.submit(ask, client, openai.InternalServerError)
            until(lambda: queue.waiting == 1)
            running.server.should_exit = True
            assert "shutting down" in str(waiting.result())
        with pytest.raises(openai.APIError, match="shutting down"):
            list(chunks)
        running.thread.join(30)
        assert not running.thread.is_alive()
        with pytest.raises(openai.APIConnectionError):
            ask(client)
    assert plain.generate(PROMPT, max_new_tokens=8).finish_reason == "length"


def test_a_shutdown_does_not_wait_for_a_client_that_reads_nothing(plain):
    with serving(plain) as running:
        with inside(plain).engine.exclusive():
            sock = connect(running, {"prompt": PROMPT, "stream": True, **LONG})
            until(lambda: running.queue.running == 1)
        running.server.should_exit = True
        running.thread.join(30)
        assert not running.thread.is_alive()
        sock.close()


# The command


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_0(start, served_bundle, expected, ending):
    process = start("serve", served_bundle, "--port=0", *FAST, "--draft=none")
    name, url = started(process)
    assert name == "bundle"
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    given = client.completions.create(prompt=PROMPT, **{**SHORT, "model": name})
    assert given.choices[0].text == expected
    begun = threading.Event()
    ended = threading.Event()

    def read():
        """One text after the other, until one is cut or refused."""
        with suppress(openai.APIError):
            while True:
                for _ in client.completions.create(
                    prompt=PROMPT, stream=True, **{**LONG, "model": name}
                ):
                    begun.set()
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(30)
    process.send_signal(ending)
    assert process.wait(30) == 0
    assert process.stderr.read() == b""
    assert ended.wait(30)
    reader.join()


def test_a_key_from_the_environment(start, served_bundle):
    process = start(
        "serve", served_bundle, "--port=0", *FAST, "--draft=none", EDGESPEC_API_KEY="secret"
    )
    name, url = started(process)
    assert httpx.get(f"{url}/v1/models").status_code == 401
    headers = {"authorization": "Bearer secret"}
    assert httpx.get(f"{url}/v1/models", headers=headers).json()["data"][0]["id"] == name


def test_texts_are_made_at_once_without_being_asked_to(start, served_bundle):
    """All have begun before the first one ends."""
    process = start("serve", served_bundle, "--port=0", *FAST, "--draft=none", "--memory=4GiB")
    name, url = started(process)
    asked = {"model": name, "prompt": PROMPT, "max_tokens": 300, "stream": True}

    def times(_number):
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=60) as response:
            came = [time.monotonic() for line in response.iter_lines() if line]
        return came[0], came[-1]

    with ThreadPoolExecutor(8) as clients:
        begun, ended = zip(*clients.map(times, range(8)), strict=True)
    assert max(begun) < min(ended)


def test_what_cannot_be_served_is_refused_before_anything_is_loaded(cli, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fails(cli("serve", tmp_path, "--port", port), f"port {port} of 127.0.0.1", "--port")
    fails(cli("serve", "--host", "no.such.host.invalid"), "of no.such.host.invalid")
    fails(cli("serve", "--port", 65536), "--port is 65536")
    fails(cli("serve", "--parallel", 0), "--parallel is 0")
    fails(cli("serve", "--queue", -1), "--queue is -1")
    fails(cli("serve", "--api-key", ""), "API key is empty")
    for key in ("schlüssel", "secret\n", " secret", "sec\tret"):
        fails(cli("serve", tmp_path, "--api-key", key), "printable ASCII")
    fails(cli("serve", "--max-body", "much"), "size 'much'")
    fails(cli("serve", "--allow-origin", "http://a.example/"), "without a path")


def test_whoever_can_reach_a_server_without_a_key_is_said(cli, tmp_path):
    result = cli("serve", tmp_path, "--host", "0.0.0.0", "--port", 0)
    assert result.code == 2
    assert "anybody who can reach 0.0.0.0 can use the model: set --api-key" in result.err


def test_without_its_packages_the_command_names_them(tmp_path):
    code = (
        "import sys; sys.modules['starlette'] = None;"
        "from edgespec.cli import main; sys.exit(main(['serve']))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert 'pip install ".[serve]" in a checkout of edgespec' in run.stderr
