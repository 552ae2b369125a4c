"""Lines of a batch for each route, of a model that chats and of an embedding model."""

from __future__ import annotations

import os

import numpy as np
import pytest
from batches import FEW, act_after, answers, completion, interrupt, write
from chats import QUESTION, TOOLS, template
from embeddings import make_served
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pairs import with_eos
from servers import MODEL, PLACE, make_bundle, serving

from edgespec import LLM
from edgespec.batch.answering import VectorsOfLine, seed_of
from edgespec.llm.embedding import Embedder
from edgespec.llm.llm import inside
from edgespec.serve.protocols.embeddings import EmbeddingsRequest

TIME = 1_700_000_000
SAID = ["hello", "what is a tree?", "add two numbers", "name a bird", "why?"]
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"


def line(custom_id, url, **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def response(custom_id, said, **fields):
    return line(custom_id, RESPONSES, **{"input": said, "max_output_tokens": 16, **fields})


def chat(custom_id, said, **fields):
    fields = {"messages": [{"role": "user", "content": said}], "max_tokens": 16, **fields}
    return line(custom_id, "/v1/chat/completions", **fields)


def vectors(custom_id, asked, **fields):
    return line(custom_id, EMBEDDINGS, input=asked, **fields)


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    return make_served(tmp_path_factory.mktemp("embedding"))


@pytest.fixture
def batch(cli, served_bundle, tmp_path):
    """Answer requests; returns the exit code and the answers."""

    def run(requests, out="out.jsonl", *more, bundle=served_bundle):
        given = write(tmp_path / "in.jsonl", requests)
        output = tmp_path / out
        os.utime(given, (TIME, TIME))  # as if it were not written anew
        options = [f"--model-name={MODEL}", *FEW, *more]
        result = cli("batch", bundle, given, "-o", output, *options)
        return result.code, answers(output) if output.exists() else []

    return run


def body(answer):
    """The body of an answer, which has all that OpenAI's client requires."""
    assert (answer["response"]["status_code"], answer["error"]) == (200, None), answer
    found = answer["response"]["body"]
    if found["object"] == "response":
        Response.model_validate(found)
    return found


def without_a_run(told):
    """A response without what is another in each run of a server."""
    rest = {name: value for name, value in told.items() if name not in ("id", "edgespec")}
    rest |= {name: None for name in rest if name.endswith("_at")}
    rest["output"] = [{**item, "id": None} for item in rest["output"]]
    rest["usage"] = {**rest["usage"], "input_tokens_details": None}
    return rest


def test_a_response_has_the_body_of_the_servers_answer(batch, served_bundle):
    asked = [
        {"input": SAID[0], "temperature": 0},
        {"input": SAID[1], "instructions": "be brief", "seed": 3, "model": MODEL},
        {"input": [{"role": "user", "content": SAID[2]}], "seed": 4, "metadata": {"of": "me"}},
        {"input": SAID[3], "temperature": 0, "top_logprobs": 2},
    ]
    code, found = batch(
        [
            line(f"r{number}", RESPONSES, max_output_tokens=16, **each)
            for number, each in enumerate(asked)
        ]
    )
    assert code == 0
    assert [answer["custom_id"] for answer in found] == ["r0", "r1", "r2", "r3"]
    with LLM(served_bundle, **PLACE) as llm, serving(llm) as running:
        for each, answer in zip(asked, found, strict=True):
            of_server = running.post({"max_output_tokens": 16, **each}, RESPONSES).json()
            told = body(answer)
            assert without_a_run(told) == without_a_run(of_server)
            assert told["usage"]["output_tokens"] == 16
    for answer in found:
        told = body(answer)
        name = answer["response"]["request_id"].removeprefix("req_")
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
            max_new_tokens=16,
            temperature=1.0,
            seed=seed_of("of a name"),
        )
    assert told["output"][0]["content"][0]["text"] == expected.text


def test_calls_are_the_same_in_every_run(batch, tmp_path):
    bundle = with_eos(make_bundle(tmp_path / "tools", template("hermes")), tmp_path / "ending", 0)
    fields = {"tool_choice": "required", "parallel_tool_calls": False}
    [said] = QUESTION
    lines = [
        make(f"{make.__name__}-{name}", said["content"], tools=tools, **{most: 220}, **fields)
        for make, tools, most in (
            (response, FUNCTIONS, "max_output_tokens"),
            (chat, TOOLS, "max_tokens"),
        )
        for name in ("one", "two")
    ]
    # One that is cut short is told, too.
    lines.append(chat("cut", said["content"], tools=TOOLS, max_tokens=40, **fields))
    code, found = batch(lines, "first.jsonl", bundle=bundle)
    assert code == 0
    assert batch(lines, "again.jsonl", bundle=bundle)[0] == 0
    assert (tmp_path / "first.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()
    items = [item for answer in found[:2] for item in body(answer)["output"]]
    assert {item["type"] for item in items} == {"function_call"}
    assert all(item["id"].startswith("fc_") for item in items)
    assert len({item["id"] for item in items}) == len(items) == 2
    chats = [ChatCompletion.model_validate(body(each), strict=True) for each in found[2:]]
    choices = [answer.choices[0] for answer in chats]
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "tool_calls", "length"]
    ids = [call.id for choice in choices for call in choice.message.tool_calls]
    ids += [item["call_id"] for item in items]
    assert len(set(ids)) == 5
    assert all(len(each) == 9 for each in ids)


def test_vectors_have_the_body_of_the_servers_answer(batch, embedding):
    asked = [
        {"input": SAID[0]},
        {"input": SAID, "dimensions": 8, "model": MODEL},
        {"input": [[5, 6, 7], [8]], "encoding_format": "base64", "user": "me"},
        {"input": SAID[1], "prompt_name": "query"},
    ]
    lines = [line(f"v{place}", EMBEDDINGS, **each) for place, each in enumerate(asked)]
    code, found = batch(lines, bundle=embedding)
    assert code == 0
    assert [answer["custom_id"] for answer in found] == ["v0", "v1", "v2", "v3"]
    with LLM(embedding, **PLACE) as llm, serving(llm) as running:
        for answer, each in zip(found, asked, strict=True):
            assert body(answer) == running.post(each, EMBEDDINGS).json()
        told = np.array([each["embedding"] for each in body(found[1])["data"]], np.float32)
        assert np.array_equal(told, llm.embed(SAID, dimensions=8))


WRONG_TEXTS = [
    (response("good", "x"), 200, None),
    (response("stream", "x", stream=True), 400, "stream is true: leave it out"),
    (response("stored", "x", previous_response_id="resp_1"), 400, "which is not here"),
    (response("model", "x", model="gpt-4o"), 404, f"use '{MODEL}'"),
    (response("field", "x", n=2), 400, "n is 2, which is not supported"),
    (response("none", []), 400, "input"),
    (response("rule", "x", regex="a"), 400, "cannot follow a grammar"),
    (response("chosen", "x", tool_choice="required"), 400, "there is no such tool"),
    (response("long", "x " * 5000), 400, "more tokens than the model's context length"),
    (vectors("vectors", "x"), 400, "makes texts, and no embeddings"),
    (response("last", "y"), 200, None),
]
WRONG_VECTORS = [
    (vectors("good", "x"), 200, None),
    (vectors("empty", ""), 400, "input"),
    (vectors("wide", "x", dimensions=65), 400, "the model's vectors have 64"),
    (vectors("long", [1] * 5000), 400, "the text is too long"),
    (vectors("prompt", "x", prompt_name="poem"), 400, "prompt_name is 'poem'"),
    (vectors("model", "x", model="gpt-4o"), 404, f"use '{MODEL}'"),
    (vectors("field", "x", pooling="cls"), 400, "pooling is 'cls', which is not"),
    (completion("text", "x"), 400, "the model makes embeddings, and no text"),
]


@pytest.mark.parametrize(
    ("wrong", "kind"), [(WRONG_TEXTS, "served_bundle"), (WRONG_VECTORS, "embedding")]
)
def test_what_is_wrong_is_said_in_its_line_of_either_model(batch, request, wrong, kind):
    lines = [asked for asked, *_ in wrong]
    code, found = batch(lines, bundle=request.getfixturevalue(kind))
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
    stop_and_go_on(batch, lines, tmp_path, monkeypatch, parallel)
    found = answers(tmp_path / "out.jsonl")
    assert [answer["custom_id"] for answer in found] == [each["custom_id"] for each in lines]
    kinds = [answer["response"]["body"]["object"] for answer in found[:3]]
    assert kinds == ["response", "chat.completion", "text_completion"]


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_stopped_batch_of_vectors_makes_none_again(
    batch, embedding, tmp_path, monkeypatch, parallel, interruptible
):
    lines = [vectors(f"v{place}", [text, SAID[0]]) for place, text in enumerate(SAID)]
    made = []
    make = Embedder.vectors

    def counted(self, *arguments):
        made.append(arguments)
        return make(self, *arguments)

    def begin():
        monkeypatch.setattr(Embedder, "vectors", counted)

    kept = stop_and_go_on(batch, lines, tmp_path, monkeypatch, parallel, begin, bundle=embedding)
    assert len(made) == len(SAID) - kept


def stop_and_go_on(batch, lines, tmp_path, monkeypatch, parallel, begin=lambda: None, **options):
    """Check that a batch with an interruption has the same output; returns what that has kept."""
    assert batch(lines, "undisturbed.jsonl", **options)[0] == 0
    with monkeypatch.context() as patch:
        act_after(patch, 2, interrupt)
        assert batch(lines, "out.jsonl", f"--parallel={parallel}", **options)[0] == 130
    kept = answers(tmp_path / "out.jsonl.partial")[1:]
    assert 2 <= len(kept) <= 1 + parallel  # those under way may have ended as well
    begin()
    assert batch(lines, "out.jsonl", f"--parallel={parallel}", **options)[0] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()
    return len(kept)


def test_a_line_that_is_cancelled_within_has_no_answer(embedding, monkeypatch):
    """Between the passes of a line, of which short texts share one, and not only between lines."""
    with LLM(embedding, **PLACE) as llm:
        texts = [each * 9 for each in SAID]
        asked = EmbeddingsRequest(input=texts)
        whole = VectorsOfLine(llm, asked)
        cut = VectorsOfLine(llm, asked)
        assert whole.tokens == 0
        assert len(whole.finish().vectors) == len(texts)
        assert whole.tokens == sum(map(len, llm.embedder.tokens(texts)))
        target = inside(llm).models["target"]
        passes = []
        forward = target.forward

        def reading(batch):
            passes.append(batch)
            if len(passes) == 2:
                cut.cancel()
            return forward(batch)

        monkeypatch.setattr(target, "forward", reading)
        assert cut.finish() is None
        assert (len(passes), cut.tokens) == (2, 0)
