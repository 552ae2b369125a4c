"""`/tokenize`, `/detokenize`, and what `/v1/models` says."""

from __future__ import annotations

import httpx
import pytest
from fillers import make_filler
from servers import MODEL, PLACE, refused, serving

from edgespec import LLM

TEXT = "def größe(x):\n    return '🙂'\n"


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(make_filler(tmp_path_factory.mktemp("filler")), draft="none", **PLACE) as llm:
        yield llm


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm) as running:
        yield running


def tokens(running, **body):
    return running.post(body, "/tokenize").json()["tokens"]


@pytest.mark.parametrize("text", [TEXT, "", " a", "<|fim_prefix|>x"])
def test_a_text_in_tokens_and_back(running, llm, text):
    found = tokens(running, content=text)
    assert found == llm.tokenizer.encode(text, add_special=False)
    assert running.post({"tokens": found}, "/detokenize").json() == {"content": text}


def test_names_of_special_tokens_may_be_text(running, llm):
    special, spelled = (
        tokens(running, content="<|fim_prefix|>", parse_special=parse) for parse in (True, False)
    )
    assert special == [llm.tokenizer.backend.token_to_id("<|fim_prefix|>")]
    assert len(spelled) > 3
    given = running.post({"tokens": spelled}, "/detokenize").json()
    assert given == {"content": "<|fim_prefix|>"}


def test_what_is_around_a_text_may_be_asked_for(served_bundle):
    with LLM(served_bundle, draft="none", **PLACE) as llm, serving(llm) as running:
        for parse in (True, False):
            given = tokens(running, content="def", add_special=True, parse_special=parse)
            assert given == llm.tokenizer.encode("def")


def test_pieces_are_text_or_bytes(running):
    found = tokens(running, content=TEXT, with_pieces=True)
    pieces = [each["piece"] for each in found]
    assert [each["id"] for each in found] == tokens(running, content=TEXT)
    assert any(isinstance(piece, list) for piece in pieces)  # a part of a character
    whole = b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces)
    assert whole.decode() == TEXT


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/tokenize", {}, "content is missing"),
        ("/tokenize", {"content": 5}, "content is 5"),
        ("/tokenize", {"content": "x", "add_special": "yes"}, "add_special is 'yes'"),
        ("/detokenize", {}, "tokens is missing"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0 is -1"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0 is 'a'"),
        ("/detokenize", {"tokens": [331]}, "token id 331 is not in the vocabulary of 331"),
        ("/detokenize", {"tokens": [10**30]}, "is not in the vocabulary of 331"),
        ("/detokenize", b"{", "the body is not UTF-8 JSON"),
    ],
    ids=str,
)
def test_what_is_refused(running, path, body, reason):
    refused(running.post(body, path), 400, reason)


def test_another_model_is_not_there(running):
    for path, body in (("/tokenize", {"content": "x"}), ("/detokenize", {"tokens": []})):
        refused(running.post({**body, "model": "other"}, path), 404, "model 'other' not found")
        assert running.post({**body, "model": MODEL}, path).status_code == 200


def test_a_key_is_needed(llm):
    with serving(llm, api_key="secret") as running:
        refused(running.post({"content": "x"}, "/tokenize"), 401, "the API key is missing")


def test_models_say_what_they_can_do(running, llm):
    (model,) = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert model["context_length"] == model["max_model_len"] == llm.context_length
    assert model["capabilities"] == ["completion", "infill"]
    assert httpx.get(f"{running.url}/v1/models/{MODEL}").json() == model


def test_a_model_with_a_template_can_chat(served_bundle):
    with LLM(served_bundle, draft="none", context=64, **PLACE) as llm, serving(llm) as running:
        (model,) = httpx.get(f"{running.url}/v1/models").json()["data"]
        assert model["capabilities"] == ["completion", "chat"]
        assert model["context_length"] == 64
