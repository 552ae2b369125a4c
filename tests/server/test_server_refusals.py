"""What the server refuses: with which status, for what reason, and without a word too much."""

from __future__ import annotations

import json
from types import SimpleNamespace

import httpx
import openai
import pytest
from pydantic import ValidationError
from servers import MODEL, refused, serving

from edgespec.serve.protocols.chat import ChatRequest
from edgespec.serve.protocols.completions import CompletionRequest
from edgespec.serve.refusals import RequestError
from edgespec.serve.running import is_local

BAD_BODIES = {
    "no JSON": (b"{", "not UTF-8 JSON"),
    "nothing": (b"", "not UTF-8 JSON"),
    "not UTF-8": (b'{"prompt": "\xff"}', "not UTF-8 JSON"),
    "half a character": (b'{"prompt": "\\ud800"}', "not UTF-8 JSON"),
    "too deep": (b"[" * 5000, "not UTF-8 JSON"),
    "not a number": (b'{"prompt": "a", "temperature": NaN}', "temperature is NaN"),
    "no prompt": ({}, "prompt is missing"),
    "empty prompt": ({"prompt": ""}, "prompt is ''"),
    "no text": ({"prompt": 1.5}, "prompt is 1.5: Input should be a valid string or Input"),
    "no token": ({"prompt": [1, "a"]}, "prompt.1 is 'a'"),
    "echo": ({"prompt": "a", "echo": True}, "echo is true: Input should be false"),
    "echo by number": ({"prompt": "a", "echo": 0}, "echo is 0"),
    "an empty one of two prompts": ({"prompt": ["a", ""]}, "prompt.1 is ''"),
    "too many prompts": ({"prompt": ["a"] * 129}, 'prompt is ["a", "a",'),
    "unknown token": ({"prompt": [331]}, "token id 331 is not in the vocabulary of 331"),
    "negative token": ({"prompt": [-1]}, "token id -1"),
    "two prompts": ({"prompt": "a", "prompt_embeds": "aGk="}, "prompt_embeds is 'aGk=', which is"),
    "no tokens": ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0"),
    "too many texts": ({"prompt": "a", "n": 129}, "n is 129: Input should be less"),
    "no whole number": ({"prompt": "a", "n": True}, "n is true"),
    "penalty": ({"prompt": "a", "presence_penalty": 2.5}, "presence_penalty is 2.5"),
    "window": ({"prompt": "a", "repeat_last_n": -2}, "repeat_last_n is -2"),
    "huge bias": ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias.1 is 101: Input should"),
    "bias of a word": ({"prompt": "a", "logit_bias": {"hi": 1}}, "give numbers by token ids"),
    "bias of no token": ({"prompt": "a", "logit_bias": [[331, 1]]}, "names token 331: give ids"),
    "minus two tokens": ({"prompt": "a", "max_tokens": -2}, "max_tokens is -2"),
    "seed": ({"prompt": "a", "seed": 1 << 64}, "seed is 18446744073709551616"),
    "a long value": ({"prompt": "a", "seed": "x" * 999}, f"seed is '{'x' * 39}...: Input"),
    "many drafts": ({"prompt": "a", "speculative": {"num_draft_tokens": 999}}, "num_draft_tokens"),
    "too long for the context": ({"prompt": "a b" * 1000}, "the model's context length of"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_bodies_are_refused_with_a_reason(running, name):
    body, reason = BAD_BODIES[name]
    refused(running.post(body), 400, reason)


PIXEL = "data:image/png;base64,aGk="
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NO_TEXT = {"name": "f", "arguments": {}}
BAD_MESSAGES = {
    "none": ([], "messages is []"),
    "no list": ("hello", "messages is 'hello'"),
    "unknown role": ([{"role": "god", "content": "a"}], "messages.0.role is 'god'"),
    "no text of a user": ([{"role": "user", "content": None}], "messages.0.content is null"),
    "no text at all": ([{"role": "user"}], "messages.0.content is null"),
    "no call": ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "function is missing"),
    "a user's call": (
        [{"role": "user", "content": "a", "tool_calls": [CALL]}],
        "Only an answer may have tool",
    ),
    "arguments that are no text": (
        [{"role": "assistant", "tool_calls": [{"id": "1", "function": NO_TEXT}]}],
        "messages.0.tool_calls.0.function.arguments is {}: Input should be a valid string",
    ),
    "a call": ([{"role": "assistant", "tool_calls": [CALL]}], "knows no tools"),
    "a tool": ([{"role": "tool", "content": "a", "tool_call_id": "1"}], "knows no tools"),
    "images": ([{"role": "user", "content": "a", "images": ["aGk="]}], "messages.0.images is ["),
    "an image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}],
        "the model is a llama of text alone",
    ),
    "an image of the web": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b"}}]}],
        "the model is a llama of text alone",
    ),
    "an image of this machine": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}],
        "the model is a llama of text alone",
    ),
    "no image": (
        [{"role": "user", "content": [{"type": "image_url"}]}],
        "messages.0.content.0.image_url is missing",
    ),
    "sound": (
        [{"role": "user", "content": [{"type": "input_audio"}]}],
        "Input should be a part of type text, image_url",
    ),
}


UNMADE = {
    "functions": ([{"name": "f"}], "functions is [{"),
    "tool_choice": ("required", "tool_choice is 'required'"),
    "top_logprobs": (2, "top_logprobs is 2 without logprobs: give logprobs true"),
    "thinking": ({"type": "enabled"}, 'thinking is {"type": "enabled"}, which is not supported'),
    "web_search_options": ({}, "web_search_options is {}, which is not supported here: leave it"),
    "audio": ({"voice": None, "é": [True]}, 'audio is {"voice": null, "é": [true]}, which is'),
    "mirostat": (3, "mirostat is 3: Input should be less than or equal to 2"),
    "dry_multiplier": (-0.8, "dry_multiplier is -0.8: Input should be greater than or equal to 0"),
    "dynatemp_range": (True, "dynatemp_range is true, which"),
    "adaptive_target": (0.5, "adaptive_target is 0.5: Input should be less than or equal to 0"),
    "min_tokens": (3, "min_tokens is 3, which"),
    "ignore_eos": (True, "ignore_eos is true, which"),
    "skip_special_tokens": (False, "skip_special_tokens is false, which"),
    "guided_regex": ("a+", "guided_regex is 'a+', which"),
    "stop_token_ids": ([1], "stop_token_ids is [1], which"),
    "chat_template": ("{{ messages }}", "chat_template is '{{ messages }}', which"),
}


@pytest.mark.parametrize("name", UNMADE)
def test_what_would_change_the_text_and_is_not_there_is_refused(running, name):
    value, reason = UNMADE[name]
    body = {"messages": [{"role": "user", "content": "a"}], name: value}
    response = running.post(body, "/v1/chat/completions")
    refused(response, 400, reason)
    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_bad_messages_are_refused_with_a_reason(running, name):
    messages, reason = BAD_MESSAGES[name]
    refused(running.post({"messages": messages}, "/v1/chat/completions"), 400, reason)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": [""] * 1000}),
        (ChatRequest, {"messages": [1] * 1000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * 1000}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "a"}], "tools": [1] * 1000}),
    ],
)
def test_of_a_long_list_the_first_wrong_item_is_told(kind, body):
    """An error for each of a million would take a quarter of a minute."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(body))
    assert caught.value.error_count() <= 2


def test_other_refusals(running):
    whole = {"prompt": "a"}
    refused(running.post({**whole, "model": "gpt-5"}), 404, f"use '{MODEL}'")
    refused(running.post({"prompt": "a" * 200_000}), 413, "more than 100000 bytes")
    refused(running.post(in_bytes(100_001)), 413, "more than 100000 bytes")
    refused(running.post(in_bytes(100_000)), 400, "context length")
    another = httpx.get(f"{running.url}/v1/completions")
    refused(another, 405, "does not support the method")
    assert another.headers["allow"] == "POST"
    refused(httpx.get(f"{running.url}/etc/passwd"), 404, "does not exist")
    refused(running.post(whole, host="evil.example:8080"), 403, "requests to localhost")


KINDS = [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "?"]


@pytest.mark.parametrize("kind", KINDS)
def test_programs_need_not_name_json_but_pages_must(running, kind):
    """Pages of other sites may post what `curl -d` posts without asking."""
    url = f"{running.url}/v1/completions"
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    named = {} if kind is None else {"content-type": kind}
    assert httpx.post(url, content=body, headers=named).status_code == 200
    assert httpx.post(url, content=in_pieces(body), headers=named).status_code == 200
    refused(httpx.post(url, content=b"prompt=a", headers=named), 400, "not UTF-8 JSON")
    pages = [{"origin": site} for site in ("http://evil.example", "null", running.url, "")]
    pages += [{"sec-fetch-site": site} for site in ("cross-site", "same-site")]
    for page in pages:
        refused(httpx.post(url, content=body, headers=named | page), 415, "send application/json")


@pytest.mark.parametrize(
    "host",
    [
        "localhost:1",
        "localhost",
        "LocalHost:80",
        "127.0.0.1",
        "[::1]",
        "[::1]:8080",
    ],
)
def test_a_server_of_this_machine_is_asked_by_any_of_its_names(running, host):
    assert running.post({"prompt": "a", "max_tokens": 1}, host=host).status_code == 200


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_who_can_reach_an_address(address, local):
    assert is_local(SimpleNamespace(getsockname=lambda: (address, 8080))) == local


HELLO = [{"role": "user", "content": "hello"}]
WHOLE = {
    "/v1/completions": {"prompt": [65.0, 66], "max_tokens": 3.0, "seed": 1.0, "n": 1.0,
                        "top_k": 5.0, "logprobs": 2.0, "best_of": 1.0},
    "/v1/chat/completions": {"messages": HELLO, "max_completion_tokens": 3.0, "seed": -1.0,
                             "logprobs": True, "top_logprobs": 2.0},
    "/v1/responses": {"input": "hello", "max_output_tokens": 3.0, "top_logprobs": 1.0},
    "/api/generate": {"prompt": "a", "stream": False,
                      "options": {"num_predict": 3.0, "top_k": 5.0, "seed": 1.0}},
    "/detokenize": {"tokens": [65.0, 66]},
}  # fmt: skip


@pytest.mark.parametrize("path", WHOLE)
def test_whole_numbers_may_be_written_as_floats(running, path):
    body = {"model": MODEL, **WHOLE[path]}
    assert running.post(body, path).status_code == 200
    assert running.post({"prompt": "a", "max_tokens": -1.0, "stop": "e"}).status_code == 200
    refused(running.post({"prompt": "a", "max_tokens": 1.5}), 400, "max_tokens is 1.5")
    refused(running.post({"prompt": "a", "max_tokens": 0.0}), 400, "max_tokens is 0")


def test_a_server_may_be_asked_by_names_that_are_given(llm):
    with serving(llm, hosts=["Box.example"]) as running:
        for host, status in (("box.example", 200), ("BOX.EXAMPLE:80", 200), ("x.example", 403)):
            answer = running.post({"prompt": "a", "max_tokens": 1}, host=host)
            assert answer.status_code == status


@pytest.mark.parametrize("field", ["continue_final_message", "add_generation_prompt"])
def test_what_cannot_be_continued_is_refused(running, field):
    body = {"messages": [{"role": "user", "content": "a"}], field: field[0] == "c"}
    refused(running.post(body, "/v1/chat/completions"), 400, "nothing to continue")


HOSTS = ["", "localhost:x", ":80", "[::2]:80", "localhost.evil.example", "x" * 65, "<b>"]


@pytest.mark.parametrize("host", HOSTS)
def test_and_by_no_other(running, host):
    refused(running.post({"prompt": "a"}, host=host), 403, "requests to localhost")


def test_the_name_of_a_containers_host_is_one_to_be_given(running):
    given = running.post({"prompt": "a"}, host="host.docker.internal:8080")
    refused(given, 403, "start it with --allow-host host.docker.internal")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"), (401, "authentication_error"),
        (404, "invalid_request_error"), (429, "rate_limit_error"), (500, "server_error"),
    ],
)  # fmt: skip
def test_errors_have_openais_types(status, kind):
    error = {"message": "why", "type": kind, "param": "n", "code": "word"}
    assert RequestError(status, "why", "word", "n").body == {"error": error}


def in_pieces(body):
    yield body[:3]
    yield body[3:]


def in_bytes(size):
    beginning, end = b'{"prompt": "', b'"}'
    return beginning + b"a" * (size - len(beginning + end)) + end


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON ;v=1"])
def test_json_is_json_whatever_is_said_of_it(running, kind):
    answer = running.post({"prompt": "a", "max_tokens": 1}, **{"content-type": kind})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "a", "top_p": 3, "n": 0},
         "top_p is 3: Input should be less than or equal to 1"),
        ({"prompt": "a", "top_p": 3, "speculative": {"num_draft_tokens": -1}},
         "speculative.num_draft_tokens is -1: Input should be greater than or equal to 0"),
        ({"prompt": "a", "stop": [2, 3]}, "stop.0 is 2: Input should be a valid string"),
    ],
)  # fmt: skip
def test_of_several_faults_one_is_told_with_what_is_wrong_with_it_alone(running, body, message):
    assert running.post(body).json()["error"]["message"] == message


def test_the_client_sees_its_own_kinds_of_errors(running):
    client = running.client()
    with pytest.raises(openai.NotFoundError, match="not found: use"):
        client.completions.create(model="gpt-5", prompt="a")
    with pytest.raises(openai.NotFoundError, match="not found: use") as caught:
        client.models.retrieve("meta/gpt-5")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="max_tokens is 0") as caught:
        client.completions.create(model=MODEL, prompt="a", max_tokens=0)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match="longer than the model's") as caught:
        client.completions.create(model=MODEL, prompt="a b" * 1000)
    assert caught.value.code == "context_length_exceeded"


def test_without_the_key_only_health_is_told(llm):
    with serving(llm, api_key="secret") as running:
        assert running.client(api_key="secret").models.list().data[0].id == MODEL
        for key in ("secre", "secret1", "geheim"):
            with pytest.raises(openai.AuthenticationError, match="API key is missing or wrong"):
                running.client(api_key=key).models.list()
        for headers in (
            {},
            {"authorization": "secret"},
            {"authorization": "Basic secret"},
            {"authorization": b"Bearer \xff\xfe"},
        ):
            for path in ("/v1/models", "/metrics", "/nowhere"):
                answer = httpx.get(running.url + path, headers=headers)
                refused(answer, 401, "Bearer KEY")
                assert answer.headers["www-authenticate"] == "Bearer"
        small = {"authorization": "bearer secret"}
        assert httpx.get(f"{running.url}/v1/models", headers=small).status_code == 200
        assert httpx.get(f"{running.url}/health").status_code == 200
        assert httpx.get(f"{running.url}/openapi.json").json()["security"] == [{"key": []}]


def test_a_host_header_stands_for_no_path(llm):
    """Of which older Starlettes make the URL."""
    with serving(llm, api_key="secret", host="0.0.0.0") as running:
        answer = httpx.get(
            f"http://127.0.0.1:{running.port}/metrics", headers={"host": "x/health?"}
        )
        refused(answer, 401, "Bearer KEY")
