"""The server's APIs that make texts: how the same question is asked, and how answers are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from servers import MODEL

from edgespec import LLM

QUESTION = "def fibonacci(n):\n"
_OLLAMA = ("temperature", "num_predict", "seed", "stop", "top_p", "min_p")
_SAID = [{"role": "user", "content": QUESTION}]


@dataclass(frozen=True)
class Reply:
    """What an answer says, in any API.

    Attributes:
        text: its text.
        ended: whether it ended by itself, and not by its length.
        made: number of its tokens.
        reasoning: reasoning before the text.
        calls: names and arguments of calls.
    """

    text: str
    ended: bool
    made: int | None
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()


def _events(response: httpx.Response) -> list[Any]:
    """Events that have data, but the one that says that all is over."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = (line for line in response.text.splitlines() if line.startswith("data: "))
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


@dataclass(frozen=True)
class Api:
    """How one API is asked.

    Attributes:
        path: path of its route.
        tokens: its name of the number of tokens.
        usual: what every body has.
        thinks: whether it has reasoning.
        calls: whether it has tools.
    """

    path: str
    tokens: str
    usual: Mapping[str, Any]
    thinks: bool = False
    calls: bool = False

    def body(self, **asked: Any) -> dict[str, Any]:
        """Returns a body.

        Args:
            asked: `tokens`, `temperature`, `seed` and others in OpenAI's words, and `schema`.
        """
        body = {"model": MODEL, "temperature": 0, **self.usual}
        for name, value in {"tokens": 24, **asked}.items():
            given = {self.tokens if name == "tokens" else name: value}
            body |= self.form(value) if name == "schema" else given
        return body

    def form(self, schema: Any) -> dict[str, Any]:
        """Returns the fields of a text that follows a schema."""
        return {"json_schema": schema}

    def truth(self, llm: LLM, **options: Any) -> Any:
        """Returns the text that a model makes for the question."""
        return llm.chat(_SAID, max_new_tokens=24, **options)

    def whole(self, given: Any) -> Reply:
        """Reads an answer in one piece."""
        raise NotImplementedError

    def streamed(self, response: httpx.Response) -> Reply:
        """Reads a stream."""
        raise NotImplementedError

    def error(self, given: Any) -> str:
        """Reads a refusal, or the event that ends a stream that failed."""
        assert set(given["error"]) == {"message", "type", "param", "code"}
        return given["error"]["message"]

    def failure(self, response: httpx.Response) -> str:
        """Reads the end of a stream that failed."""
        return self.error(_events(response)[-1])


class Completions(Api):
    def truth(self, llm, **options):
        return llm.generate(QUESTION, max_new_tokens=24, **options)

    def whole(self, given):
        [choice] = given["choices"]
        made = given["usage"]["completion_tokens"]
        return Reply(choice["text"], choice["finish_reason"] == "stop", made)

    def streamed(self, response):
        events = _events(response)
        text = "".join(event["choices"][0]["text"] for event in events)
        return Reply(text, events[-1]["choices"][0]["finish_reason"] == "stop", None)


class Chat(Api):
    def form(self, schema):
        given = {"name": "x", "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": given}}

    def whole(self, given):
        [choice] = given["choices"]
        return self._reply(choice, [choice["message"]], given["usage"]["completion_tokens"])

    def streamed(self, response):
        choices = [event["choices"][0] for event in _events(response)]
        return self._reply(choices[-1], [choice["delta"] for choice in choices], None)

    def _reply(self, last: Any, deltas: Sequence[Any], made: int | None) -> Reply:
        calls: list[list[str]] = []
        for each in (each for delta in deltas for each in delta.get("tool_calls", ())):
            function = each["function"]
            if "name" in function:
                calls.append([function["name"], ""])
            calls[-1][1] += function["arguments"]
        return Reply(
            _joined(deltas, "content"),
            last["finish_reason"] in ("stop", "tool_calls"),
            made,
            _joined(deltas, "reasoning_content"),
            tuple((name, json.loads(arguments)) for name, arguments in calls),
        )


class Responses(Api):
    def body(self, **asked):
        if "tools" in asked:
            asked["tools"] = [{"type": "function", **tool["function"]} for tool in asked["tools"]]
        return super().body(**asked)

    def form(self, schema):
        return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}

    def whole(self, given):
        told = {each["type"]: each for each in given["output"] if "content" in each}
        texts = {kind: each["content"][0]["text"] for kind, each in told.items()}
        calls = [each for each in given["output"] if each["type"] == "function_call"]
        return Reply(
            texts.get("message", ""),
            given["status"] == "completed",
            given["usage"]["output_tokens"],
            texts.get("reasoning", ""),
            tuple((each["name"], json.loads(each["arguments"])) for each in calls),
        )

    def streamed(self, response):
        events = _events(response)
        whole = self.whole(events[-1]["response"])
        for kind, said in (("output_text", whole.text), ("reasoning_text", whole.reasoning)):
            deltas = [each for each in events if each["type"] == f"response.{kind}.delta"]
            assert _joined(deltas, "delta") == said
        return whole

    def failure(self, response):
        last = _events(response)[-1]
        assert last["type"] == "response.failed"
        return last["response"]["error"]["message"]


class Messages(Api):
    def body(self, **asked):
        if "stop" in asked:
            stop = asked.pop("stop")
            asked["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if "tools" in asked:
            functions = [tool["function"] for tool in asked["tools"]]
            asked["tools"] = [
                {"name": each["name"], "input_schema": each.get("parameters", {"type": "object"})}
                for each in functions
            ]
        return super().body(**asked)

    def form(self, schema):
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}

    def whole(self, given):
        told = {each["type"]: each for each in given["content"]}
        calls = [each for each in given["content"] if each["type"] == "tool_use"]
        return Reply(
            told.get("text", {}).get("text", ""),
            given["stop_reason"] in ("end_turn", "stop_sequence", "tool_use"),
            given["usage"]["output_tokens"],
            told.get("thinking", {}).get("thinking", ""),
            tuple((each["name"], each["input"]) for each in calls),
        )

    def streamed(self, response):
        blocks = []
        message = None
        for event in _events(response):
            kind = event["type"]
            if kind == "message_start":
                message = event["message"]
            elif kind == "content_block_start":
                blocks.append({**event["content_block"]})
            elif kind == "content_block_delta":
                assert event["index"] == len(blocks) - 1
                delta = dict(event["delta"])
                kind = delta.pop("type")
                [(name, text)] = delta.items()
                blocks[-1][name] = blocks[-1].get(name, "") + text
                assert kind == _DELTAS[name]
            elif kind == "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
        for each in blocks:
            if "partial_json" in each:
                each["input"] = json.loads(each.pop("partial_json"))
        return self.whole({**message, "content": blocks})

    def error(self, given):
        assert (set(given), given["type"]) == ({"type", "error"}, "error")
        assert set(given["error"]) == {"type", "message"}
        return given["error"]["message"]


_DELTAS = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "partial_json": "input_json_delta",
}


class OllamaChat(Api):
    def body(self, **asked):
        body = super().body(**asked)
        options = {name: body.pop(name) for name in _OLLAMA if name in body}
        return {**body, "options": options}

    def form(self, schema):
        return {"format": schema}

    def whole(self, given):
        return self._reply([given])

    def streamed(self, response):
        assert response.headers["content-type"] == "application/x-ndjson"
        return self._reply([json.loads(line) for line in response.text.splitlines()])

    def message(self, line: Any) -> Any:
        """Returns what a line says."""
        return line["message"]

    def _reply(self, lines: Sequence[Any]) -> Reply:
        said = list(map(self.message, lines))
        calls = [each["function"] for one in said for each in one.get("tool_calls", ())]
        return Reply(
            _joined(said, "content"),
            lines[-1]["done_reason"] == "stop",
            lines[-1]["eval_count"],
            _joined(said, "thinking"),
            tuple((each["name"], each["arguments"]) for each in calls),
        )

    def error(self, given):
        assert set(given) == {"error"}
        return given["error"]

    def failure(self, response):
        return self.error(json.loads(response.text.splitlines()[-1]))


class OllamaGenerate(OllamaChat):
    def message(self, line):
        return {"content": line["response"], "thinking": line.get("thinking", "")}


class OllamaRaw(OllamaGenerate):
    def truth(self, llm, **options):
        return llm.generate(QUESTION, max_new_tokens=24, **options)


class Infill(Api):
    def truth(self, llm, **options):
        return llm.infill(QUESTION, "\n", max_new_tokens=24, **options)

    def whole(self, given):
        return Reply(given["content"], given["stop_type"] != "limit", given["tokens_predicted"])

    def streamed(self, response):
        *parts, last = _events(response)
        return self.whole({**last, "content": _joined(parts, "content")})


def _joined(parts: Sequence[Any], name: str) -> str:
    return "".join(part.get(name) or "" for part in parts)


_OPENAI = {"messages": _SAID}
_RAW = {"prompt": QUESTION, "stream": False}

APIS = {
    "completions": Completions("/v1/completions", "max_tokens", {"prompt": QUESTION}),
    "chat": Chat("/v1/chat/completions", "max_tokens", _OPENAI, thinks=True, calls=True),
    "responses": Responses(
        "/v1/responses", "max_output_tokens", {"input": QUESTION}, thinks=True, calls=True
    ),
    "messages": Messages("/v1/messages", "max_tokens", _OPENAI, thinks=True, calls=True),
    "ollama chat": OllamaChat(
        "/api/chat", "num_predict", {**_OPENAI, "stream": False}, thinks=True, calls=True
    ),
    "ollama generate": OllamaGenerate("/api/generate", "num_predict", _RAW, thinks=True),
    "ollama raw": OllamaRaw("/api/generate", "num_predict", {**_RAW, "raw": True}),
    "infill": Infill("/infill", "n_predict", {"input_prefix": QUESTION, "input_suffix": "\n"}),
}
