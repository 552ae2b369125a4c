"""Ollama's API: what goes in, what comes out, who is refused and how."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from servers import MODEL, PLACE, PROMPT, serving

from edgespec import LLM

USER = {"role": "user", "content": "hello"}
MESSAGES = [{"role": "system", "content": "be brief"}, USER]
GREEDY = {"temperature": 0, "num_predict": 24}


def lines(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def chat(running, **fields):
    return running.post({"model": MODEL, "messages": MESSAGES, **fields}, "/api/chat")


def generate(running, **fields):
    return running.post({"model": MODEL, "prompt": PROMPT, **fields}, "/api/generate")


def refused(response, status, *parts):
    """Check for Ollama's shape of an error, with the reason and nothing about the machine."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    for part in parts:
        assert part in response.json()["error"]
    assert str(Path.cwd()) not in response.text
    assert len(response.content) < 500


# Texts


def test_an_answer_comes_as_lines_by_default(running, plain):
    expected = plain.chat(MESSAGES, max_new_tokens=24)
    *parts, last = lines(chat(running, options=GREEDY))
    assert len(parts) > 3
    assert "".join(part["message"]["content"] for part in parts) == expected.text
    assert {(part["model"], part["done"], part["message"]["role"]) for part in parts} == {
        (MODEL, False, "assistant")
    }
    times = [datetime.fromisoformat(each["created_at"]) for each in (*parts, last)]
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "length")
    assert (last["prompt_eval_count"], last["eval_count"]) == (expected.prompt_tokens, 24)
    assert last["load_duration"] == 0
    assert 0 < last["prompt_eval_duration"] + last["eval_duration"] <= last["total_duration"]


def test_a_prompt_goes_through_the_template(running, plain):
    expected = plain.chat(MESSAGES, max_new_tokens=24)
    fields = {"prompt": "hello", "system": "be brief", "options": GREEDY}
    whole = generate(running, stream=False, **fields).json()
    *parts, last = lines(generate(running, **fields))
    assert whole["response"] == "".join(part["response"] for part in parts) == expected.text
    assert last["response"] == ""
    assert last["context"] == whole["context"]
    assert whole["context"] == [*plain.chat_tokens(MESSAGES), *expected.tokens]


def test_a_raw_prompt_is_left_as_it_is(running, plain):
    given = generate(running, raw=True, stream=False, options=GREEDY).json()
    assert given["response"] == plain.generate(PROMPT, max_new_tokens=24).text
    assert "context" not in given


def test_a_conversation_goes_on_from_its_context(running, plain):
    first = generate(running, prompt="hello", stream=False, options=GREEDY).json()
    second = generate(
        running, prompt="so?", context=first["context"], stream=False, options=GREEDY
    ).json()
    prompt = [*first["context"], *plain.chat_tokens([{"role": "user", "content": "so?"}])]
    assert second["prompt_eval_count"] == len(prompt)
    assert second["response"] == plain.generate(prompt, max_new_tokens=24).text


def test_a_text_begins_only_once():
    """The embedded pair has no template, and its tokenizer begins texts with a token."""
    with LLM(draft="none", **PLACE) as llm, serving(llm) as running:
        fields = {"stream": False, "options": GREEDY}
        first = generate(running, system="# maths", **fields).json()
        expected = llm.generate(f"# maths\n\n{PROMPT}", max_new_tokens=24)
        assert first["response"] == expected.text
        second = generate(running, prompt="\n", context=first["context"], **fields).json()
        begin = llm.tokenizer.bos_id
        assert second["context"].count(begin) == first["context"].count(begin)
        refused(chat(running), 400, "no chat template")


@pytest.mark.parametrize("empty", [{}, {"prompt": ""}, {"prompt": None, "keep_alive": -1}])
def test_without_a_prompt_there_is_no_text(running, empty):
    given = running.post({"model": MODEL, **empty}, "/api/generate").json()
    assert (given["response"], given["done"], given["done_reason"]) == ("", True, "load")
    given = running.post({"model": MODEL, "messages": []}, "/api/chat").json()
    assert (given["message"]["content"], given["done_reason"]) == ("", "load")


# Options


def test_options_choose_the_text(running, plain):
    options = {
        "temperature": 1.3,
        "seed": 7,
        "num_predict": 24,
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.01,
        "repeat_penalty": 1.2,
    }
    given = chat(running, stream=False, options=options).json()
    expected = plain.chat(
        MESSAGES,
        temperature=1.3,
        seed=7,
        max_new_tokens=24,
        top_k=50,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.2,
        repeat_last_n=64,
    )
    assert given["message"]["content"] == expected.text
    unpenalized = chat(running, stream=False, options={**options, "repeat_last_n": 0}).json()
    assert unpenalized["message"]["content"] != expected.text
    penalties = {"presence_penalty": 1.5, "frequency_penalty": -0.5, "repeat_last_n": 9}
    given = chat(running, stream=False, options={**GREEDY, **penalties}).json()
    expected = plain.chat(MESSAGES, max_new_tokens=24, **penalties)
    assert given["message"]["content"] == expected.text


def test_samplers_of_llama_cpp_choose_the_text(running, plain):
    asked = {"temperature": 1.3, "seed": 7}
    for how in ({"mirostat": 2, "mirostat_tau": 1.0}, {"typical_p": 0.3}, {"xtc_probability": 1.0}):
        given = chat(running, stream=False, options={**asked, **how, "num_predict": 24}).json()
        sampled = {**plain.sampling, **asked, **how}
        expected = plain.chat(MESSAGES, max_new_tokens=24, **sampled).text
        assert given["message"]["content"] == expected


def test_options_that_are_left_out_are_the_models(running, plain):
    seeded = {"seed": 3, "num_predict": 24}
    for options in (seeded, {**seeded, "temperature": None, "top_k": None, "top_p": None}):
        given = chat(running, stream=False, options=options).json()
        expected = plain.chat(MESSAGES, **plain.sampling, seed=3, max_new_tokens=24)
        assert given["message"]["content"] == expected.text


@pytest.mark.parametrize("most", [-1, -2, 0, None])
def test_a_text_without_a_limit_fills_the_context(running, plain, most):
    given = chat(running, stream=False, options={"temperature": 0, "num_predict": most}).json()
    assert given["prompt_eval_count"] + given["eval_count"] == plain.context_length
    assert given["done_reason"] == "length"


def test_what_is_unknown_or_about_loading_is_passed_over(running, plain):
    options = {
        **GREEDY,
        "num_ctx": 8,
        "num_gpu": 1,
        "penalize_newline": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "nobody_knows": "this",
    }
    fields = {"keep_alive": "5m", "think": False, "tools": [], "format": "", "shift": True}
    message = {**USER, "images": [], "tool_calls": None, "thinking": "hm"}
    given = chat(running, messages=[message], stream=False, options=options, **fields).json()
    assert given["message"]["content"] == plain.chat([USER], max_new_tokens=24).text


def test_logprobs(running, plain):
    expected = plain.chat(MESSAGES, max_new_tokens=24, logprobs=2).logprobs
    fields = {"options": GREEDY, "logprobs": True, "top_logprobs": 2}
    whole = chat(running, stream=False, **fields).json()["logprobs"]
    streamed = [
        each for line in lines(chat(running, **fields)) for each in line.get("logprobs", ())
    ]
    raw = generate(running, raw=True, logprobs=True, stream=False, options=GREEDY).json()
    assert [each["token"] for each in streamed] == [each["token"] for each in whole]
    data = b"".join(bytes(each["bytes"]) for each in raw["logprobs"])
    assert data.decode(errors="replace") == raw["response"]
    for told, right in zip(whole, expected, strict=True):
        assert told["logprob"] == pytest.approx(right.logprob, abs=1e-3)
        assert [top["logprob"] for top in told["top_logprobs"]] == pytest.approx(
            [value for _, value in right.top], abs=1e-3
        )


def test_the_format_of_json_begins_like_it(ending):
    given = chat(ending, format="json", options={"num_predict": 8}, stream=False).json()
    assert given["message"]["content"].startswith("{")


# Models


def test_it_says_what_it_has(running, llm):
    (listed,) = httpx.get(f"{running.url}/api/tags").json()["models"]
    assert listed["name"] == listed["model"] == f"{MODEL}:latest"
    assert (listed["size"], listed["digest"]) == (llm.bundle.size, llm.bundle.digest)
    assert listed["details"]["family"] == "llama"
    assert listed["details"]["quantization_level"] == "fp32"
    (loaded,) = httpx.get(f"{running.url}/api/ps").json()["models"]
    assert loaded["context_length"] == llm.context_length
    assert loaded["size"] > loaded["size_vram"] == 0
    version = httpx.get(f"{running.url}/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]  # what clients ask for


@pytest.mark.parametrize("field", ["model", "name"])
@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_it_shows_its_model(running, llm, field, name):
    shown = running.post({field: name}, "/api/show").json()
    info = shown["model_info"]
    target = llm.bundle.target
    assert info["general.architecture"] == "llama"
    assert info["general.parameter_count"] == target.parameters
    assert info["llama.context_length"] == llm.context_length
    assert "add_generation_prompt" in shown["template"] or "<assistant>" in shown["template"]
    assert shown["capabilities"] == ["completion"]
    assert str(llm.bundle.path) not in json.dumps(shown)


def test_a_model_may_be_named_with_its_tag(running):
    given = chat(running, model=f"{MODEL}:latest", stream=False, options=GREEDY).json()
    assert given["model"] == f"{MODEL}:latest"


# Refusals


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show"])
@pytest.mark.parametrize("name", ["other", f"{MODEL}:7b", f"x/{MODEL}"])
def test_another_model_is_not_found(running, path, name):
    body = {"model": name, "prompt": "x", "messages": [USER]}
    refused(running.post(body, path), 404, f"model '{name}' not found", f"use '{MODEL}'")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"messages": [{**USER, "images": ["aGk="]}]}, "the model is a llama of text alone"),
        ({"messages": [{"role": "robot", "content": "1"}]}, "messages.0.role is 'robot'"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "function is missing"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content is 1"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "nonsense"}]}, "tools.0"),
        ({"format": "xml"}, "format is 'xml'"),
        ({"options": {"top_k": -2}}, "options.top_k is -2"),
        ({"options": {"frequency_penalty": 2.5}}, "options.frequency_penalty is 2.5"),
        ({"options": [1]}, "options is [1]"),
        ({"top_logprobs": 3}, "top_logprobs is 3"),
        ({"model": None}, "model is null"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "shorten the prompt"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_chat_is_named(running, fields, reason):
    refused(chat(running, **fields), 400, reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"suffix": "x"}, ""),  # the model has no tokens for it
        ({"template": "{{ .Prompt }}"}, "template is not supported"),
        ({"raw": True, "system": "be brief"}, "system and raw are given"),
        ({"raw": True, "context": [1]}, "context and raw are given"),
        ({"images": ["aGk="]}, "the model is a llama of text alone"),
        ({"context": [1, "x"]}, "context.1 is 'x'"),
        ({"context": [1 << 40]}, "is not in the vocabulary"),
        ({"context": [-1], "raw": False}, "is not in the vocabulary"),
        ({"prompt": ["x"]}, "prompt is"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_prompt_is_named(running, fields, reason):
    refused(generate(running, **fields), 400, reason)


def test_bodies_that_are_none(running):
    refused(running.post({}, "/api/show"), 400, "model is missing")
    refused(running.post(b" " * 100_001, "/api/show"), 413, "100000 bytes")
    refused(httpx.get(f"{running.url}/api/nothing"), 404, "this route does not exist")
    refused(httpx.get(f"{running.url}/api/chat"), 405, "does not support the method")


@pytest.mark.parametrize("name", ["pull", "push", "create", "copy"])
def test_what_is_about_other_models_is_refused(running, name):
    refused(running.post({"model": MODEL}, f"/api/{name}"), 400, f"/api/{name} is not supported")


@pytest.mark.parametrize("name", ["embed", "embeddings"])
def test_who_asks_for_vectors_is_told_that_there_are_none(running, name):
    body = {"model": MODEL, "input": "a", "prompt": "a"}
    refused(running.post(body, f"/api/{name}"), 400, "makes texts, and no embeddings")


def test_no_model_is_deleted(running):
    given = httpx.request("DELETE", f"{running.url}/api/delete", json={"model": MODEL})
    refused(given, 400, "/api/delete is not supported")


# Access


def test_bodies_are_sent_as_json_by_pages_and_anyhow_by_programs(running):
    """Pages of other sites may post what `curl -d` posts without asking."""
    body = json.dumps({"model": MODEL, "prompt": "hello", "stream": False, "options": GREEDY})
    form = {"content-type": "application/x-www-form-urlencoded"}
    url = f"{running.url}/api/generate"
    assert httpx.post(url, content=body, headers=form).status_code == 200
    for more in ({"origin": "http://evil.example"}, {"origin": "null"}):
        given = httpx.post(url, content=body, headers={**form, **more})
        refused(given, 415, "send application/json")


@pytest.mark.parametrize("path", ["tags", "ps", "version", "chat", "nothing"])
def test_pages_of_other_sites_are_refused(running, path):
    for site, status in (("cross-site", 403), ("same-origin", None), ("none", None)):
        given = httpx.get(f"{running.url}/api/{path}", headers={"sec-fetch-site": site})
        assert (given.status_code == 403) == (status == 403)


def test_the_key_and_the_host_are_asked_for(plain):
    with serving(plain, api_key="secret") as running:
        for path in ("tags", "ps", "version"):
            refused(httpx.get(f"{running.url}/api/{path}"), 401, "the API key is missing")
        for path in ("chat", "generate", "show", "pull"):
            refused(running.post({"model": MODEL}, f"/api/{path}"), 401, "the API key is missing")
        key = {"authorization": "Bearer secret"}
        assert httpx.get(f"{running.url}/api/tags", headers=key).status_code == 200
        strange = httpx.get(f"{running.url}/api/tags", headers={**key, "host": "evil.example"})
        refused(strange, 403, "only accepts requests to localhost")


# Life
