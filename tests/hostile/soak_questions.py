"""Questions for a server, on all routes that make texts, and what it answers."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from structured import REQUESTS, TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import httpx

_TOKENS = 128
_TOOLS = 2  # the first ones, whose calls are short: a stream also holds calls that the limit cut
_BEFORE = "def gcd(a, b):\n    while b:\n        "
_BEHIND = "\n    return a\n\n\ndef lcm(a, b):\n    return a // gcd(a, b) * b\n"


@dataclass(frozen=True)
class Question:
    """A request.

    Attributes:
        path: the route.
        body: the request's body, without `stream`.
    """

    path: str
    body: Mapping[str, Any]

    async def answer(self, client: httpx.AsyncClient, stream: bool) -> list[str]:
        """Asks, and returns the texts: reasoning, content, then names and arguments of calls.

        Args:
            client: a client of the server.
            stream: whether the answer comes in pieces. The texts are the same.

        Raises:
            httpx.HTTPError: if the server refuses.
            KeyError, ValueError: if what comes is not an answer, or a stream ends too early.
        """
        read, end = _READERS[self.path]
        texts: dict[int, str] = defaultdict(str)
        last = ""
        async with client.stream("POST", self.path, json={**self.body, "stream": stream}) as given:
            given.raise_for_status()
            async for line in given.aiter_lines():
                last = line.removeprefix("data: ") or last
                if line and last.startswith("{"):
                    for choice, text in read(json.loads(last)):
                        texts[choice] += text
        if stream and end not in last:
            raise ValueError(f"a stream of {self.path} ended with {last}")
        return [text for _, text in sorted(texts.items())]


@dataclass(frozen=True)
class Known:
    """A prompt and the greedy text behind it.

    Attributes:
        prompt: the prompt's tokens.
        written: the prompt as a text.
        tokens: length of the text in tokens.
        text: the text.
    """

    prompt: list[int]
    written: str
    tokens: int
    text: str

    def questions(self, model: str) -> list[tuple[Question, list[str]]]:
        """Returns questions for the text to a model of a name, and their answers."""
        body = {"prompt": self.prompt, "max_tokens": self.tokens, "temperature": 0}
        options = {"temperature": 0, "num_predict": self.tokens}
        raw = {"model": model, "prompt": self.written, "raw": True, "options": options}
        return [
            (Question("/v1/completions", body), [self.text]),
            (Question("/v1/completions", {**body, "n": 2}), 2 * [self.text]),
            (Question("/api/generate", raw), [self.text]),
        ]


async def questions(client: httpx.AsyncClient) -> list[Question]:
    """Returns questions for chats, calls of tools and infill, as far as the model can do these."""
    model = (await client.get("/v1/models")).raise_for_status().json()["data"][0]
    able = model["capabilities"]
    asked: list[Question] = []
    for number, request in enumerate(REQUESTS):
        if "chat" in able:
            asked += _chats(model["id"], request, number, [])
        if "tools" in able:
            asked += _chats(model["id"], request, number, TOOLS[:_TOOLS])
        if "infill" in able:
            asked.append(_infill(number))
    return asked


def _infill(number: int) -> Question:
    body = {
        "input_prefix": f"# {number}\n{_BEFORE}",
        "input_suffix": _BEHIND,
        "n_predict": _TOKENS,
        "temperature": number % 2,
        "seed": number,
    }
    return Question("/infill", body)


def _chats(model: str, request: str, number: int, tools: list[dict[str, Any]]) -> list[Question]:
    """Asks the same on all routes of chats, where they can require it with a call of a tool."""
    messages = [{"role": "user", "content": request}]
    sampling = {"temperature": number % 2, "seed": number}
    needed: dict[str, Any] = {}
    if tools:
        needed = {"tool_choice": "required", "parallel_tool_calls": False}
    chat = {"messages": messages, "tools": tools, "max_tokens": _TOKENS, **sampling, **needed}
    ollama = {
        "model": model,
        "messages": messages,
        "tools": tools,
        "options": {**sampling, "num_predict": _TOKENS},
    }
    response = {
        "input": request,
        "tools": [{"type": "function", **each["function"]} for each in tools],
        "temperature": 0,
        "max_output_tokens": _TOKENS,
        **needed,
    }
    return [
        Question("/v1/chat/completions", chat),
        Question("/v1/responses", response),
        Question("/api/chat", ollama),
    ]


def _of_completion(event: dict[str, Any]) -> Iterable[tuple[int, str]]:
    return [(choice["index"], choice["text"]) for choice in event["choices"]]


def _of_chat(event: dict[str, Any]) -> Iterable[tuple[int, str]]:
    for choice in event["choices"]:
        yield choice["index"], _said(choice["message"] if "message" in choice else choice["delta"])


def _of_response(event: dict[str, Any]) -> Iterable[tuple[int, str]]:
    """The text of a whole response, which is also what the last event of a stream holds."""
    response = event.get("response", event)
    for item in response.get("output", ()):
        if item["type"] == "function_call":
            yield 0, item["name"] + item["arguments"]
        else:
            yield 0, "".join(part["text"] for part in item["content"])


def _said(message: dict[str, Any]) -> str:
    text = "".join(message.get(name) or "" for name in ("reasoning_content", "thinking", "content"))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments", "")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        text += function.get("name", "") + written
    return text


# How the texts of choices are read from the events of a route, and what a stream's last line holds.
_READERS: dict[str, tuple[Callable[[dict[str, Any]], Iterable[tuple[int, str]]], str]] = {
    "/v1/completions": (_of_completion, "[DONE]"),
    "/v1/chat/completions": (_of_chat, "[DONE]"),
    "/v1/responses": (_of_response, '"output": [{'),
    "/infill": (lambda event: [(0, event["content"])], '"stop": true'),
    "/api/generate": (lambda event: [(0, event["response"])], '"done": true'),
    "/api/chat": (lambda event: [(0, _said(event["message"]))], '"done": true'),
}
