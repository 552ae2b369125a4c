"""The requests of Ollama's documents, sent as curl sends them."""

from __future__ import annotations

import json

import httpx
import pytest
from servers import MODEL

CURL = {"content-type": "application/x-www-form-urlencoded", "accept": "*/*"}
WHY = {"role": "user", "content": "why is the sky blue?"}
ALL_OPTIONS = {
    "num_keep": 5,
    "seed": 42,
    "num_predict": 4,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 0.7,
    "repeat_last_n": 33,
    "temperature": 0.8,
    "repeat_penalty": 1.2,
    "presence_penalty": 1.5,
    "frequency_penalty": 1.0,
    "mirostat": 1,
    "mirostat_tau": 0.8,
    "mirostat_eta": 0.6,
    "penalize_newline": True,
    "stop": ["\n", "user:"],
    "numa": False,
    "num_ctx": 1024,
    "num_batch": 2,
    "num_gpu": 1,
    "main_gpu": 0,
    "low_vram": False,
    "vocab_only": False,
    "use_mmap": True,
    "use_mlock": False,
    "num_thread": 8,
    "tfs_z": 1.0,
}
FEW = {"num_predict": 2}
SHAPE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
BODIES = {
    "generate": ("generate", {"prompt": WHY["content"]}),
    "generate, whole": ("generate", {"prompt": WHY["content"], "stream": False}),
    "generate, empty fields": (
        "generate",
        {
            "prompt": "a",
            "suffix": "",
            "images": [],
            "format": "",
            "system": "",
            "template": "",
            "context": [],
            "raw": False,
            "think": False,
            "keep_alive": "5m",
        },
    ),
    "generate, raw": ("generate", {"prompt": "[INST] why? [/INST]", "raw": True, "stream": False}),
    "generate, json": ("generate", {"prompt": "Respond using JSON", "format": "json"}),
    "generate, a schema": ("generate", {"prompt": "Respond using JSON", "format": SHAPE}),
    "generate, all options": ("generate", {"prompt": "why?", "options": ALL_OPTIONS}),
    "generate, load": ("generate", {}),
    "generate, unload": ("generate", {"keep_alive": 0}),
    "chat": ("chat", {"messages": [WHY]}),
    "chat, empty fields": (
        "chat",
        {
            "messages": [{**WHY, "images": [], "tool_calls": []}],
            "tools": [],
            "format": "",
            "think": False,
            "keep_alive": -1,
            "shift": False,
            "truncate": True,
        },
    ),
    "chat, history": (
        "chat",
        {"messages": [WHY, {"role": "assistant", "content": "rayleigh"}, WHY], "stream": False},
    ),
    "chat, load": ("chat", {"messages": []}),
    "chat, unload": ("chat", {"messages": [], "keep_alive": 0}),
    "show": ("show", {"verbose": True, "options": {}}),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_the_documents_ask_for_is_answered(ending, name):
    path, body = BODIES[name]
    options = {"options": FEW} if path != "show" else {}
    asked = json.dumps({"model": MODEL, **options, **body})
    given = httpx.post(f"{ending.url}/api/{path}", content=asked, headers=CURL)
    assert given.status_code == 200, given.text
    lines = [json.loads(line) for line in given.text.splitlines()]
    assert not any("error" in line for line in lines)
    if path != "show":
        assert lines[-1]["done"]


@pytest.mark.parametrize("path", ["", "api/version", "api/tags", "api/ps"])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_clients_look_whether_it_is_there(ending, path, method):
    given = httpx.request(method, f"{ending.url}/{path}")
    assert given.status_code == 200
    assert bool(given.content) == (method == "GET")


@pytest.mark.parametrize("name", ["model", "name"])
def test_a_model_is_shown_by_either_name(ending, name):
    given = httpx.post(f"{ending.url}/api/show", content=json.dumps({name: MODEL}), headers=CURL)
    assert given.json()["details"]["format"] == "onnx"
