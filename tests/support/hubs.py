"""Stand-ins for the Hugging Face Hub."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants, hf_api

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def list_files(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
    """Has every repository list these files."""
    siblings = [SimpleNamespace(rfilename=name, size=None) for name in names]
    told = SimpleNamespace(siblings=siblings)
    monkeypatch.setattr(huggingface_hub, "model_info", lambda _, **__: told)


class Hub:
    """A server with the Hub's API for models, as far as edgespec and its client ask it.

    Attributes:
        repositories: files by repository and name.
        asked: the paths that were asked for, each with its query.
        address: where it is.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Path]] = {}
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def environment(self, home: Path) -> dict[str, str]:
        """Returns what has a process ask this server, with a cache folder of its own."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def take_the_place(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        """Has this process, and those that it starts, ask this server."""
        for name, value in self.environment(home).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", self.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        address = f"{self.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(hf_api.api, "endpoint", self.address)

    def model(self, repository: str) -> Mapping[str, object] | None:
        """Returns what the Hub tells of a repository; None if there is none."""
        if repository not in self.repositories:
            return None
        files = self.repositories[repository].items()
        return {
            "id": repository,
            "modelId": repository,
            "sha": COMMIT,
            "downloads": 7,
            "tags": ["gguf", "license:mit"],
            "gguf": {"total": 1_000_000_000, "architecture": "llama"},
            "siblings": [{"rfilename": name, "size": file.stat().st_size} for name, file in files],
        }

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def hub() -> Iterator[Hub]:
    """Runs a stand-in."""
    server = Hub()
    try:
        yield server
    finally:
        server.close()


def _handler(served: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, body: bool) -> None:
            served.asked.append(self.path)
            url = urlsplit(self.path)
            path = url.path.strip("/")
            if path == "api/models":
                self._tell(self._found(parse_qs(url.query)))
            elif path.startswith("api/models/"):
                self._tell(served.model("/".join(path.split("/")[2:4])))
            else:
                self._send_file(path, body)

        def _found(self, asked: Mapping[str, Sequence[str]]) -> Sequence[object]:
            assert asked["filter"] == ["gguf"]
            word = asked["search"][0].lower()
            names = [name for name in served.repositories if word in name.lower()]
            return [served.model(name) for name in names[: int(asked["limit"][0])]]

        def _tell(self, told: object) -> None:
            self._send(404 if told is None else 200, json.dumps(told).encode(), {})

        def _send_file(self, path: str, body: bool) -> None:
            repository, _, name = path.partition(f"/resolve/{COMMIT}/")
            if not name:
                repository, _, name = path.partition("/resolve/main/")
            file = served.repositories.get(repository, {}).get(name)
            if file is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            content = file.read_bytes()
            etag = sha256(content).hexdigest()
            self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)

        def _send(
            self, status: int, content: bytes, headers: Mapping[str, str], body: bool = True
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body and self.command != "HEAD":
                self.wfile.write(content)

    return Handler
