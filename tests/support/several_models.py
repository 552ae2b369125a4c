"""What clients ask a server of several models, and hear of them."""

from __future__ import annotations

import httpx
from servers import PROMPT

NAMES = ("first", "second", "third")
ASKED = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8}


def text(running, name):
    response = running.post({"model": name, **ASKED})
    assert response.status_code == 200, response.text
    assert response.json()["model"] == name
    return response.json()["choices"][0]["text"]


def states(running):
    listed = httpx.get(f"{running.url}/v1/models").json()["data"]
    return {each["id"]: each["status"]["value"] for each in listed}


def loaded(running):
    return [name for name, state in states(running).items() if state == "loaded"]


def streaming(running, name, tokens=200):
    body = {"model": name, "prompt": PROMPT, "max_tokens": tokens, "stream": True}
    return httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60)
