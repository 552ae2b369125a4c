"""First calls of the models before anybody asks for a text."""

from __future__ import annotations

import threading

import pytest
from commandline import FAST
from embeddings import make_served

from edgespec import LLM
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import DeviceError, InputError
from edgespec.server.running import Server

PLACE = {"device": "onnxruntime:cpu", "draft_device": "onnxruntime:cpu", "threads": 1}
PROMPT = "def fibonacci(n):\n"


@pytest.fixture(scope="module")
def text():
    with LLM(draft="model", **PLACE) as llm:
        return llm.generate(PROMPT, max_new_tokens=12).text


def seconds(llm):
    return {name: loaded.model.seconds for name, loaded in llm._loaded.items()}


def test_both_models_are_called_and_no_text_knows_of_it(text):
    with LLM(draft="model", **PLACE) as llm:
        assert seconds(llm) == {TARGET: 0, DRAFT: 0}
        llm.warm_up()
        assert min(seconds(llm).values()) > 0
        result = llm.generate(PROMPT, max_new_tokens=12)
    assert (result.text, result.reused) == (text, 0)


def test_texts_begin_meanwhile(text):
    with LLM(draft="model", **PLACE) as llm:
        warming = [threading.Thread(target=llm.warm_up) for _ in range(4)]
        for each in warming:
            each.start()
        assert llm.generate(PROMPT, max_new_tokens=12).text == text
        for each in warming:
            each.join()


def test_models_that_make_embeddings_are_called_too(tmp_path):
    with LLM(make_served(tmp_path), **PLACE) as llm:
        llm.warm_up()
        assert seconds(llm)[TARGET] > 0


def test_a_closed_model_is_not_called():
    llm = LLM(draft="none", **PLACE)
    llm.close()
    with pytest.raises(InputError, match="the model was closed"):
        llm.warm_up()


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("command", ["chat", "serve"])
def test_commands_call_the_models_while_they_wait(cli, monkeypatch, command, failing):
    called = threading.Event()

    def warm_up(_llm):
        called.set()
        if failing:
            raise DeviceError("out of order")

    monkeypatch.setattr(LLM, "warm_up", warm_up)
    monkeypatch.setattr(Server, "serve_here", lambda _server: None)
    result = cli(command, *FAST, *(["--port", "0"] if command == "serve" else []))
    assert called.wait(60)
    assert result.code == 0
    assert "out of order" not in result.err
