"""A headless Chromium, controlled over a pipe by its own protocol, without a driver."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needed = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here")
_PATIENCE = 60  # seconds
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}  # Windows' codes
_CONTROL, _SHIFT = 2, 8


class Page:
    """One page of a browser; a context manager.

    Args:
        folder: folder for the browser's profile.
        url: address of the page.
    """

    def __init__(self, folder: Path, url: str) -> None:
        reads, self._commands = os.pipe()
        self._answers, writes = os.pipe()
        browser = (
            f'exec "{PROGRAM}" --headless --no-sandbox --disable-gpu --remote-debugging-pipe '
            f'--disable-background-networking --window-size=900,700 --user-data-dir="{folder}" '
            f"3<&{reads} 4>&{writes}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", browser], pass_fds=(reads, writes), stderr=subprocess.DEVNULL
        )
        os.close(reads)
        os.close(writes)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self._tabs = list[str]()
        self.open_tab(url)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)
        os.close(self._answers)
        self._process.kill()
        self._process.wait()

    def open_tab(self, url: str) -> None:
        """Open another tab, with which everything happens from now on."""
        self._session = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._tabs.append(attached["sessionId"])
        self.switch(-1)
        self._ask("Emulation.setFocusEmulationEnabled", enabled=True)
        self.open(url)

    def switch(self, tab: int) -> None:
        """Go to a tab, which are counted from 0."""
        self._session = self._tabs[tab]

    def reload(self) -> None:
        """Load the page of this address once more."""
        self.run("window.old = true")
        self._ask("Page.reload")
        self.until("!window.old && document.readyState === 'complete'")

    def open(self, url: str) -> None:
        """Go to an address, also once more to the same one."""
        self._ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while not self.run(f"Boolean({condition})"):  # an element has no value here
            assert time.monotonic() < end, f"{condition} is not so"
            time.sleep(0.02)

    def press(self, key: str, shift: bool = False, control: bool = False) -> None:
        """Press Tab, Enter, Escape or what writes a character."""
        code = _KEYS[key] if key in _KEYS else ord(key.upper())
        facts = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        facts["modifiers"] = _SHIFT * shift + _CONTROL * control
        written = "\r" if key == "Enter" else key
        text = {"text": written} if len(written) == 1 and not control else {}
        self._ask("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **facts)

    def write(self, text: str) -> None:
        """Write a text where the focus is."""
        self._ask("Input.insertText", text=text)

    def resize(self, width: int, height: int = 700) -> None:
        """Give the window a size in CSS pixels."""
        size = {"width": width, "height": height}
        self._ask("Emulation.setDeviceMetricsOverride", deviceScaleFactor=1, mobile=False, **size)

    def prefer(self, **features: str) -> None:
        """Set what the user prefers, as `color_scheme="dark"`."""
        wanted = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        self._ask("Emulation.setEmulatedMedia", features=wanted)

    def print(self) -> None:
        """Show what is printed from now on."""
        self._ask("Emulation.setEmulatedMedia", media="print")

    def reachable(self) -> list[tuple[str, str]]:
        """Returns role and name of all that can have the focus, as screen readers meet them."""
        nodes = self._ask("Accessibility.getFullAXTree")["nodes"]
        by_id = {node["nodeId"]: node for node in nodes}

        def read(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
            facts = {
                each["name"]: each["value"].get("value") for each in node.get("properties", ())
            }
            if facts.get("focusable"):
                yield node["role"]["value"], node["name"]["value"]
            for child in node.get("childIds", ()):
                yield from read(by_id[child])

        return list(read(nodes[0]))

    def picture(self, path: Path) -> None:
        """Save a screenshot as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                data = os.read(self._answers, 1 << 16)
                assert data, "the browser has ended"
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
