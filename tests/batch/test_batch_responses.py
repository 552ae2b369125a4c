"""Lines of a batch that ask for responses, of a model that chats."""

from __future__ import annotations

import os

import pytest
from batches import FEW, act_after, answers, completion, interrupt, write
from chats import QUESTION, TOOLS, template
from openai.types.responses import Response
from pairs import with_eos
from servers import MODEL, PLACE, make_bundle, serving

from edgespec import LLM
from edgespec.batch.answering import seed_of

TIME = 1_700_000_000
SAID = ["hello", "what is a tree?", "add two numbers", "name a bird", "why?"]
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]


def line(custom_id, fields):
    body = {"max_output_tokens": 16, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": body}


def response(custom_id, said, **fields):
    return line(custom_id, {"input": said, **fields})


def chat(custom_id, said, **fields):
    body = {"messages": [{"role": "user", "content": said}], "max_tokens": 16, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


@pytest.fixture
def batch(cli, served_bundle, tmp_path):
    """Answer requests; returns the exit code and the answers."""

    def run(requests, out="out.jsonl", *more, bundle=served_bundle):
        given, output = write(tmp_path / "in.jsonl", requests), tmp_path / out
        os.utime(given, (TIME, TIME))  # as if it were not written anew
        options = [f"--model-name={MODEL}", *FEW, *more]
        result = cli("batch", bundle, given, "-o", output, *options)
        return result.code, answers(output) if output.exists() else []

    return run


def body(answer):
    """The body of an answer, which has all that OpenAI's client requires."""
    assert (answer["response"]["status_code"], answer["error"]) == (200, None), answer
    Response.model_validate(answer["response"]["body"])
    return answer["response"]["body"]


def without_a_run(told):
    """A response without what is another in each run of a server."""
    rest = {name: value for name, value in told.items() if name not in ("id", "edgespec")}
    rest |= {name: None for name in rest if name.endswith("_at")}
    rest["output"] = [{**item, "id": None} for item in rest["output"]]
    rest["usage"] = {**rest["usage"], "input_tokens_details": None}
    return rest


def test_a_line_has_the_body_of_the_servers_answer(batch, served_bundle):
    asked = [
        {"input": SAID[0], "temperature": 0},
        {"input": SAID[1], "instructions": "be brief", "seed": 3, "model": MODEL},
        {"input": [{"role": "user", "content": SAID[2]}], "seed": 4, "metadata": {"of": "me"}},
        {"input": SAID[3], "temperature": 0, "top_logprobs": 2},
    ]
    code, found = batch([line(f"r{number}", each) for number, each in enumerate(asked)])
    assert code == 0
    assert [answer["custom_id"] for answer in found] == ["r0", "r1", "r2", "r3"]
    with LLM(served_bundle, **PLACE) as llm, serving(llm) as running:
        for each, answer in zip(asked, found, strict=True):
            of_server = running.post({"max_output_tokens": 16, **each}, "/v1/responses").json()
            told = body(answer)
            assert without_a_run(told) == without_a_run(of_server)
            assert told["usage"]["output_tokens"] == 16
    for answer in found:
        told, name = body(answer), answer["response"]["request_id"].removeprefix("req_")
        assert (told["id"], told["created_at"]) == (f"resp_{name}", TIME)
        assert set(told["edgespec"]) == {"seed"}
        assert told["usage"]["input_tokens_details"]["cached_tokens"] == 0


def test_a_line_without_a_seed_has_that_of_its_name(batch, served_bundle):
    [found] = batch([response("of a name", SAID[0])])[1]
    told = body(found)
    assert told["edgespec"] == {"seed": seed_of("of a name")}
    with LLM(served_bundle, draft="none", **PLACE) as llm:
        expected = llm.chat(
            [{"role": "user", "content": SAID[0]}],
            max_new_tokens=16, temperature=1.0, seed=seed_of("of a name"),
        )  # fmt: skip
    assert told["output"][0]["content"][0]["text"] == expected.text


def test_calls_are_the_same_in_every_run(batch, tmp_path):
    bundle = with_eos(make_bundle(tmp_path / "tools", template("hermes")), tmp_path / "ending", 0)
    fields = {"tools": FUNCTIONS, "tool_choice": "required", "max_output_tokens": 220}
    [said] = QUESTION
    lines = [response(name, said["content"], **fields) for name in ("one", "two")]
    code, found = batch(lines, "first.jsonl", bundle=bundle)
    assert code == 0
    assert batch(lines, "again.jsonl", bundle=bundle)[0] == 0
    assert (tmp_path / "first.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()
    items = [item for answer in found for item in body(answer)["output"]]
    assert {item["type"] for item in items} == {"function_call"}
    assert all(item["id"].startswith("fc_") for item in items)
    for name in ("id", "call_id"):
        assert len({item[name] for item in items}) == len(items) >= 2


def test_what_is_wrong_is_said_in_its_line(batch):
    wrong = [
        (response("good", "x"), 200, None),
        (response("stream", "x", stream=True), 400, "stream is true: leave it out"),
        (response("stored", "x", previous_response_id="resp_1"), 400, "Nothing is stored here"),
        (response("model", "x", model="gpt-4o"), 404, f"use '{MODEL}'"),
        (response("field", "x", n=2), 400, "n is not supported"),
        (response("none", []), 400, "input"),
        (response("rule", "x", regex="a"), 400, "cannot follow a grammar"),
        (response("chosen", "x", tool_choice="required"), 400, "there is no such tool"),
        (response("long", "x " * 5000), 400, "longer than the model's context length"),
        (response("last", "y"), 200, None),
    ]
    code, found = batch([asked for asked, *_ in wrong])
    assert code == 4
    for (asked, status, message), answer in zip(wrong, found, strict=True):
        assert answer["custom_id"] == asked["custom_id"]
        assert answer["response"]["status_code"] == status, answer
        if message is not None:
            error = answer["response"]["body"]["error"]
            assert message in error["message"]
            assert answer["error"]["message"] == error["message"]


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_stopped_batch_goes_on_and_ends_alike(
    batch, tmp_path, monkeypatch, parallel, interruptible
):
    """Ctrl-C comes behind the second answer, among lines for several routes."""
    makers = (response, chat, completion)
    lines = [makers[n % 3](f"line-{n}", said) for n, said in enumerate(SAID * 2)]
    assert batch(lines, "undisturbed.jsonl")[0] == 0
    with monkeypatch.context() as patch:
        act_after(patch, 2, interrupt)
        assert batch(lines, "out.jsonl", f"--parallel={parallel}")[0] == 130
    kept = answers(tmp_path / "out.jsonl.partial")[1:]
    assert 2 <= len(kept) <= 1 + parallel  # those under way may have ended as well
    code, found = batch(lines, "out.jsonl", f"--parallel={parallel}")
    assert code == 0
    assert [answer["custom_id"] for answer in found] == [each["custom_id"] for each in lines]
    kinds = [answer["response"]["body"]["object"] for answer in found[:3]]
    assert kinds == ["response", "chat.completion", "text_completion"]
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
