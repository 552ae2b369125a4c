"""What the server renders for its page: as ever, within a second, and for those who wait."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from html import escape

import httpx
import psutil
import pytest
from servers import refused, serving, until

from edgespec.serve import markdown
from edgespec.serve.markdown import blocks, rendered
from edgespec.serve.protocols import render as rendering

TEXT = """# A title

Words **of** `code`, <b>HTML</b> and [a link](https://example.org).

```python
def f(x): return x + 1
```

| a | b |
|---|---|
| 1 | 2 |

```kotlin
fun f(x: Int) = x + 1
```
"""
TABLE = "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + "|\n" * 9000  # 20 kB become 3 million cells


def test_the_child_renders_as_this_process_would():
    found = rendered(TEXT)
    assert found == blocks(TEXT)
    assert '<span class="c-k">def</span>' in found[2]["html"]


def test_what_takes_too_long_is_shown_as_it_is():
    rendered("ready")
    child = psutil.Process(markdown._WORKER._child.pid)
    before = child.cpu_times().children_user
    found = rendered(TABLE + "\n\n<b>")
    assert child.cpu_times().children_user - before < 1.1
    assert [each["line"] for each in found] == [0]
    shown = escape(TABLE + "\n\n<b>").replace("\n", "<br>\n")
    assert found[0]["html"] == f"<p>{shown}</p>\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such timer")
def test_code_that_is_coloured_too_long_is_plain(monkeypatch):
    slow = re.compile(r"(a+)+$")

    def highlight(code, *_):
        return slow.sub("b", code) if "slow" in code else "coloured"

    monkeypatch.setattr(markdown, "highlight", highlight)
    monkeypatch.setattr(markdown, "_COLOURING", 0.5)
    before = signal.signal(signal.SIGVTALRM, markdown._end)
    try:
        begun = time.process_time()
        fences = ["x", "slow " + "a" * 50 + "!", "y"]
        found = blocks("\n\n".join(f"```c\n{each}\n```" for each in fences))
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert time.process_time() - begun < 5
    shown = [re.search(r"<code>(.*?)\n?</code>", each["html"], re.DOTALL)[1] for each in found]
    assert shown == ["coloured", fences[1], "y"]


def test_renders_count_in_the_queue(llm, monkeypatch):
    go_on = threading.Event()

    def waiting(text):
        go_on.wait(60)
        return blocks(text)

    monkeypatch.setattr(rendering, "rendered", waiting)
    with serving(llm, limit=8) as running, ThreadPoolExecutor(9) as threads:
        asked = [threads.submit(running.post, {"text": TEXT}, "/render") for _ in range(9)]
        until(lambda: running.queue.running + running.queue.waiting == 9)
        refused(running.post({"text": TEXT}, "/render"), 429, "8 requests are waiting")
        go_on.set()
        assert [each.result().json() for each in asked] == [{"blocks": blocks(TEXT)}] * 9


def test_a_render_ends_with_its_client(llm):
    with serving(llm) as running:
        running.post({"text": "ready"}, "/render")
        for _ in range(4):
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{running.url}/render", json={"text": TABLE}, timeout=0.2)
        begun = time.monotonic()
        until(lambda: not running.queue.busy)
        assert time.monotonic() - begun < 2  # where the renders together take longer
        assert running.post({"text": TEXT}, "/render").json() == {"blocks": blocks(TEXT)}
