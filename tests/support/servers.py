"""Servers for tests, each on a thread and a port of its own."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx
import pytest
from checkpoints import make_checkpoint
from openai import OpenAI

from edgespec import LLM, export
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.serve.access import Access, Certificate
from edgespec.serve.models import Models
from edgespec.serve.queue import RequestQueue
from edgespec.serve.running import Server, listen
from edgespec.serve.served_model import ServedModel

MODEL = "tiny"
PROMPT = "def fibonacci(n):\n"
PLACE = {"threads": 1}

_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
_PATIENCE = 60  # seconds


SAMPLING = {"temperature": 1, "top_k": 0}


def make_bundle(
    folder: Path, template: str = _TEMPLATE, architecture: str = "llama", **config: object
) -> Path:
    """Make a bundle of random fp32 weights with a chat template, whose texts end by length only.

    Its authors ask for `SAMPLING`, so that a request that gives a temperature gives all.
    """
    make_checkpoint(folder / "checkpoint", architecture, eos_token_id=None, **config)
    (folder / "checkpoint" / "chat_template.jinja").write_text(template)
    (folder / "checkpoint" / "generation_config.json").write_text(json.dumps(SAMPLING))
    export.make(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="fp32"))
    return folder / "bundle"


@dataclass(frozen=True)
class Running:
    """A server that answers at `url`."""

    url: str
    server: Server
    queue: RequestQueue
    thread: threading.Thread

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self.url.rpartition(":")[2])

    def client(self, **options) -> OpenAI:
        """Returns OpenAI's own client, which does not retry."""
        key = options.pop("api_key", "none")
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    def post(self, body: object, path: str = "/v1/completions", **headers: str) -> httpx.Response:
        """Send bytes or JSON as they are."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        headers = {"content-type": "application/json", **headers}
        return httpx.post(self.url + path, headers=headers, **content)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics by name and labels, but that of `MODEL`."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        label = re.compile(rf',?model="{MODEL}"')
        return {label.sub("", name).replace("{}", ""): float(value) for name, value in pairs}


def one_model(llm: LLM) -> Models:
    """Returns models of which there is one, loaded."""
    return Models([ServedModel(MODEL, llm.bundle, llm.options, llm=llm)])


@contextmanager
def serving(
    served: LLM | Models,
    *,
    parallel: int = 1,
    limit: int = 8,
    api_key: str | None = None,
    host: str = "127.0.0.1",
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    body_limit: int = 100_000,
    toolbox: object = None,
    keys: Mapping[str, str] | None = None,
    prefix: str = "",
    certificate: Certificate | None = None,
) -> Iterator[Running]:
    """Run a server for models, or for one that is loaded."""
    ready = threading.Event()
    with listen(host, 0) as sock:
        models = served if isinstance(served, Models) else one_model(served)
        queue = RequestQueue(models, parallel, limit, body_limit, toolbox)
        own = {} if api_key is None else {"--api-key": api_key}
        access = Access(own | dict(keys or {}), hosts, origins, prefix)
        server = Server(queue, sock, access, ready.set, certificate)
        thread = threading.Thread(target=server.serve_here)
        scheme = "http" if certificate is None else "https"
        url = f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"
        thread.start()
        try:
            assert ready.wait(_PATIENCE)
            yield Running(url, server, queue, thread)
        finally:
            server.should_exit = True
            thread.join(_PATIENCE)
            assert not thread.is_alive()


def refused(response: httpx.Response, status: int, reason: str) -> None:
    """Check for a short answer that gives the reason, and nothing about the machine."""
    assert response.status_code == status
    error = response.json()["error"]
    assert reason in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(response.content) < 500
    assert str(Path.cwd()) not in response.text
    assert "Traceback" not in response.text


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + _PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def fail_later(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    """Have a model fail behind a few passes, with an error that names a path."""
    target = inside(llm).models["target"]
    forward = target.forward
    calls = count()

    def failing(*arguments):
        if next(calls) > 5:
            raise RuntimeError(f"cannot read {Path.cwd()}/model.onnx")
        return forward(*arguments)

    monkeypatch.setattr(target, "forward", failing)


def started(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Returns the name and the address that a server says it has, once it does."""
    for line in process.stderr:
        if found := re.search(rb"(\S+) (?:is|are) served on (http://\S+):", line):
            return found[1].decode(), found[2].decode()
    raise AssertionError("it did not start")
