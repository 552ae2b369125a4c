"""The answer of `/v1/responses`: a chat's answer as items and their events.

https://platform.openai.com/docs/api-reference/responses-streaming describes the events.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from edgespec.api.result import GenerationResult
from edgespec.server.answers import ChatAnswer, Origin, Writer
from edgespec.server.bodies import Json
from edgespec.server.refusals import RequestError
from edgespec.server.response_requests import ResponsesRequest
from edgespec.server.service import Part

_GROWING = "in_progress"
_CUT = "length"  # a chat's word for an answer that did not end by itself


class Output:
    """The items of one response, in the order in which they begin; the last one grows."""

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._done: list[Json] = []

    @property
    def items(self) -> list[Json]:
        """The finished items."""
        return list(self._done)

    def add(self, delta: Json, logprobs: Sequence[Json] = ()) -> list[Json]:
        """Adds to the items; returns the events of that.

        Args:
            delta: delta of a chat's answer, or its whole message.
            logprobs: log-probabilities of the tokens of the delta, as in a chat.
        """
        events: list[Json] = []
        if thought := delta.get("reasoning_content"):
            events += self._begin_text(_THOUGHT) + self._items[-1].add(thought)
        text = delta.get("content") or ""
        # Log-probabilities without a text are of the end of a text, or of what is none.
        if text or (logprobs and self._grows(_SAID)):
            events += self._begin_text(_SAID) + self._items[-1].add(text, logprobs)
        for call in delta.get("tool_calls") or ():
            events += self._begin_call(call)
            events += self._items[-1].add(call["function"].get("arguments") or "")
        return events

    def close(self, whole: bool) -> list[Json]:
        """Finishes the last item; an answer without any gets an empty text.

        Args:
            whole: whether the answer ended by itself.
        """
        events = [] if self._items else self._begin_text(_SAID)
        return events + self._end("completed" if whole else "incomplete")

    def _grows(self, kind: _Kind) -> bool:
        """Whether the last item is a text of this kind."""
        last = self._items[-1] if self._items else None
        return isinstance(last, _Text) and last.kind is kind

    def _begin_text(self, kind: _Kind) -> list[Json]:
        return [] if self._grows(kind) else self._begin(_Text(len(self._items), kind))

    def _begin_call(self, call: Json) -> list[Json]:
        """Begins a call, unless the last one goes on: then there is no id, or the same one."""
        last = self._items[-1] if self._items else None
        if isinstance(last, _Call) and call.get("id") in (None, last.call_id):
            return []
        return self._begin(_Call(len(self._items), call["id"], call["function"]["name"]))

    def _begin(self, item: _Item) -> list[Json]:
        ended = self._end("completed")
        self._items.append(item)
        return ended + item.opening()

    def _end(self, status: str) -> list[Json]:
        if len(self._done) == len(self._items):
            return []
        last = self._items[-1]
        self._done.append(last.value(status))
        return [*last.closing(), last.event("output_item.done", item=self._done[-1])]


class _Item(ABC):
    """An item of the output.

    Args:
        place: its place among the items.
        prefix: how its id begins.
    """

    def __init__(self, place: int, prefix: str) -> None:
        self._place = place
        self._id = f"{prefix}_{uuid.uuid4().hex}"

    def event(self, name: str, **facts: Any) -> Json:
        return {"type": f"response.{name}", "output_index": self._place, **facts}

    def opening(self) -> list[Json]:
        """Returns the events at the beginning."""
        return [self.event("output_item.added", item=self.value(_GROWING))]

    @abstractmethod
    def value(self, status: str) -> Json:
        """Returns the item as it is by now."""

    @abstractmethod
    def add(self, text: str, logprobs: Sequence[Json] = ()) -> list[Json]:
        """Adds a text; returns the events of that."""

    @abstractmethod
    def closing(self) -> list[Json]:
        """Returns the events at the end, without the item's own."""


@dataclass(frozen=True)
class _Kind:
    """A kind of text.

    Attributes:
        prefix: how ids of such items begin.
        item: fields of such items.
        part: type of their part, and the name of its events.
        facts: further fields of the part.
    """

    prefix: str
    item: Json
    part: str
    facts: Json


_SAID = _Kind("msg", {"type": "message", "role": "assistant"}, "output_text", {"annotations": []})
_THOUGHT = _Kind("rs", {"type": "reasoning", "summary": []}, "reasoning_text", {})


class _Text(_Item):
    """What the model says or thinks: an item with one part, which is text."""

    def __init__(self, place: int, kind: _Kind) -> None:
        super().__init__(place, kind.prefix)
        self.kind = kind
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []

    def value(self, status: str) -> Json:
        content = [] if status == _GROWING else [self._part()]
        return {"id": self._id, "status": status, "content": content, **self.kind.item}

    def opening(self) -> list[Json]:
        added = self._part_event("content_part.added", part=self._part())
        return [*super().opening(), added]

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> list[Json]:
        self._pieces.append(text)
        self._logprobs += logprobs
        return [self._text_event("delta", logprobs, delta=text)]

    def closing(self) -> list[Json]:
        return [
            self._text_event("done", self._logprobs, text="".join(self._pieces)),
            self._part_event("content_part.done", part=self._part()),
        ]

    def _part(self) -> Json:
        part = {"type": self.kind.part, "text": "".join(self._pieces), **self.kind.facts}
        return {**part, "logprobs": list(self._logprobs)} if self.kind is _SAID else part

    def _part_event(self, name: str, **facts: Any) -> Json:
        return self.event(name, item_id=self._id, content_index=0, **facts)

    def _text_event(self, name: str, logprobs: Sequence[Json], **facts: Any) -> Json:
        if self.kind is _SAID:
            facts["logprobs"] = list(logprobs)
        return self._part_event(f"{self.kind.part}.{name}", **facts)


class _Call(_Item):
    """A function that the model calls."""

    def __init__(self, place: int, call_id: str, name: str) -> None:
        super().__init__(place, "fc")
        self.call_id = call_id
        self._name = name
        self._pieces: list[str] = []

    def value(self, status: str) -> Json:
        return {
            "id": self._id, "type": "function_call", "status": status, "call_id": self.call_id,
            "name": self._name, "arguments": "".join(self._pieces),
        }  # fmt: skip

    def add(self, text: str, _logprobs: Sequence[Json] = ()) -> list[Json]:
        if not text:
            return []
        self._pieces.append(text)
        return [self._arguments_event("delta", delta=text)]

    def closing(self) -> list[Json]:
        return [self._arguments_event("done", arguments="".join(self._pieces))]

    def _arguments_event(self, name: str, **facts: Any) -> Json:
        return self.event(f"function_call_arguments.{name}", item_id=self._id, **facts)


class ResponsesWriter(Writer):
    """The writer for one request; it reads what the writer for a chat writes.

    Raises:
        RequestError: if the request holds what a chat does not take.
    """

    last = ()

    def __init__(self, body: ResponsesRequest, origin: Origin) -> None:
        self._chat = ChatAnswer(body.chat, origin)
        self._output = Output()
        self._numbers = count()
        self._facts = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": origin.model,
            **_settings(body),
        }

    def whole(self, results: Sequence[GenerationResult]) -> Json:
        """See `Writer`."""
        chat = self._chat.whole(results)
        [choice] = chat["choices"]
        self._output.add(choice["message"], _logprobs(choice))
        self._output.close(choice["finish_reason"] != _CUT)
        return self._finished(choice["finish_reason"], chat)

    def opening(self) -> list[Json]:
        """See `Writer`."""
        response = self._response("in_progress")
        names = ("response.created", "response.in_progress")
        return self._numbered([{"type": name, "response": response} for name in names])

    def part(self, part: Part) -> list[Json]:
        """See `Writer`; the last event has the statistics of the part."""
        chunks = self._chat.part(part)
        events = self._events(chunks)
        told = [chunk["edgespec"] for chunk in chunks if "edgespec" in chunk]
        if events and told:
            events[-1] |= {"edgespec": told[-1]}
        return self._numbered(events)

    def closing(self, results: Sequence[GenerationResult]) -> list[Json]:
        """See `Writer`."""
        chunks = self._chat.closing(results)
        events = self._events(chunks)
        [reason] = [
            choice["finish_reason"]
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["finish_reason"] is not None
        ]
        events += self._output.close(reason != _CUT)
        facts = {name: value for chunk in chunks for name, value in chunk.items()}
        response = self._finished(reason, facts)
        ended = {"type": f"response.{response['status']}", "response": response}
        return self._numbered([*events, ended])

    def failure(self, refusal: RequestError) -> Json:
        """See `Writer`."""
        error = {"code": "server_error", "message": str(refusal)}
        response = self._response("failed", output=self._output.items, error=error)
        [event] = self._numbered([{"type": "response.failed", "response": response}])
        return event

    def written(self, event: Json | str) -> str:
        """See `Writer`; the name of an event is its type."""
        name = event["type"] if isinstance(event, dict) else event
        return f"event: {name}\n{super().written(event)}"

    def _events(self, chunks: Sequence[Json]) -> list[Json]:
        """Returns the events of what a chat's chunks say."""
        return [
            event
            for chunk in chunks
            for choice in chunk["choices"]
            for event in self._output.add(choice["delta"], _logprobs(choice))
        ]

    def _numbered(self, events: Sequence[Json]) -> list[Json]:
        return [{**event, "sequence_number": next(self._numbers)} for event in events]

    def _finished(self, reason: str, chat: Json) -> Json:
        """Returns the response after the last token.

        Args:
            reason: why the chat's answer ended.
            chat: `usage` and `edgespec` of the chat's answer.
        """
        facts = {
            "output": self._output.items,
            "usage": _usage(chat["usage"]),
            "edgespec": chat["edgespec"],
        }
        if reason != _CUT:
            return self._response("completed", completed_at=int(time.time()), **facts)
        cause = {"reason": "max_output_tokens"}
        return self._response("incomplete", incomplete_details=cause, **facts)

    def _response(self, status: str, **facts: object) -> Json:
        usual: Json = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._facts, "status": status, **usual, **facts}


# What a response repeats of its request, with the defaults.
_REPEATED: Json = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None}, "safety_identifier": None, "temperature": 1.0,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
    "top_p": 1.0, "user": None,
}  # fmt: skip
# What no request changes.
_CONSTANT: Json = {
    "background": False, "conversation": None, "previous_response_id": None,
    "service_tier": "default", "store": False, "truncation": "disabled",
}  # fmt: skip


def _settings(body: ResponsesRequest) -> Json:
    """Returns the settings of a text, whether the request has them or not."""
    given = body.model_dump(by_alias=True, exclude_none=True, include=set(_REPEATED))
    text = _REPEATED["text"] | given.get("text", {})
    return {**_CONSTANT, **_REPEATED, **given, "text": text}


def _logprobs(choice: Json) -> list[Json]:
    found = choice["logprobs"]
    return [] if found is None else [_with_bytes(token) for token in found["content"]]


def _with_bytes(token: Json) -> Json:
    """Returns a token as this API has it, where `bytes` may be empty and in a chat null."""
    found = {**token, "bytes": token["bytes"] or []}
    if "top_logprobs" in token:
        found["top_logprobs"] = [_with_bytes(each) for each in token["top_logprobs"]]
    return found


def _usage(usage: Json) -> Json:
    """Returns a chat's numbers of tokens in the words of this API."""
    made = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": made.get("reasoning_tokens", 0)},
        "total_tokens": usage["total_tokens"],
    }
