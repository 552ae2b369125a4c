"""A stand-in of the Hugging Face Hub's API on this machine, for what is sent and fetched again."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """Holds files of repositories in memory."""

    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        place = self.path.partition("?")[0]
        base = f"http://{self.headers['Host']}"
        if place == "/api/repos/create":
            self._tell({"url": f"{base}/me/{json.loads(body)['name']}"})
        elif place.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            known = [{"path": each["path"], "uploadMode": "regular"} for each in asked]
            self._tell({"files": [{**each, "shouldIgnore": False} for each in known]})
        elif place.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"{base}/me/head/commit/{COMMIT}"
            self._tell({"commitUrl": url, "commitOid": COMMIT, "success": True})
        else:  # such as the check of a card
            self._tell({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            sizes = {name: len(content) for name, content in self.files.items()}
            known = {"type": "file", "oid": COMMIT}
            self._tell([{**known, "path": name, "size": size} for name, size in sizes.items()])
            return
        if self.path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in self.files]
            self._tell({"id": "me/head", "sha": COMMIT, "siblings": siblings})
            return
        content = self.files[self.path.rpartition("/")[2]]
        tag = hashlib.sha256(content).hexdigest()
        self._send(content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})

    def _tell(self, answer: object) -> None:
        self._send(json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def hub() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yields the address of a Hub, and the files that it has."""
    handler = type("OwnHub", (Hub,), {"files": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.files
    finally:
        server.shutdown()
        server.server_close()
