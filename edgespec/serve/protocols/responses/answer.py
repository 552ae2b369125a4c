"""The answer of `/v1/responses`: a chat's answer as items and their events.

https://platform.openai.com/docs/api-reference/responses-streaming describes the events.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.options import in_conversation
from edgespec.llm.result import Result
from edgespec.serve.parts import Part
from edgespec.serve.protocols.chat import ChatAnswer
from edgespec.serve.protocols.fields import Json
from edgespec.serve.protocols.protocol import Answer, Origin
from edgespec.serve.protocols.responses.request import ResponsesRequest, within
from edgespec.serve.refusals import RequestError

_GROWING = "in_progress"
_CUT = "length"  # a chat's word for an answer that did not end by itself
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
_FACTS: dict[str, Json] = {"message": {"role": "assistant"}, "reasoning": {"summary": []}}


class Output:
    """The items of one response, in the order in which they begin; the last one grows.

    Args:
        places: the namespace and the name there of functions, by the names that the model knows.

    Attributes:
        items: the finished items.
    """

    def __init__(self, places: Mapping[str, tuple[str, str]] | None = None) -> None:
        self._places = places or {}
        self.items: list[Json] = []
        self._last: _Item | None = None

    def add(self, delta: Json, logprobs: Sequence[Json] = ()) -> list[Json]:
        """Adds to the items; returns the events of that.

        Args:
            delta: delta of a chat's answer, or its whole message.
            logprobs: log-probabilities of the tokens of the delta, as in a chat.
        """
        events: list[Json] = []
        if thought := delta.get("reasoning_content"):
            events += self._grow("reasoning", thought)
        text = delta.get("content") or ""
        # Log-probabilities without a text are of the end of a text, or of what is none.
        said = self._last is not None and self._last.kind == "message"
        if text or (logprobs and said):
            events += self._grow("message", text, logprobs)
        for call in delta.get("tool_calls") or ():
            arguments = call["function"].get("arguments") or ""
            events += self._grow("function_call", arguments, call=call)
        return events

    def close(self, whole: bool) -> list[Json]:
        """Finishes the last item; an answer without any gets an empty text.

        Args:
            whole: whether the answer ended by itself.
        """
        events = [] if self._last else self._begin("message", None)
        return events + self._end("completed" if whole else "incomplete")

    def _grow(
        self, kind: str, text: str, logprobs: Sequence[Json] = (), call: Json | None = None
    ) -> list[Json]:
        last = self._last
        events = list[Json]()
        # A call goes on without an id, or with the same one.
        if last is None or last.kind != kind or (call and call.get("id") not in (None, last.call)):
            events = self._end("completed") + self._begin(kind, call)
        assert self._last is not None, "it was begun"
        return events + self._last.add(text, logprobs)

    def _begin(self, kind: str, call: Json | None) -> list[Json]:
        named: Json = {}
        if call is not None:
            namespace, name = self._places.get(call["function"]["name"], (None, None))
            named = {"name": name or call["function"]["name"]}
            named |= {"namespace": namespace} if namespace else {}
        self._last = _Item(len(self.items), kind, call, named)
        return self._last.opening()

    def _end(self, status: str) -> list[Json]:
        if self._last is None:
            return []
        item = self._last.value(status)
        self.items.append(item)
        return [*self._last.closing(), self._last.event("output_item.done", item=item)]


class _Item:
    """An item of the output: a text that is said or thought, or a call with its first delta."""

    def __init__(self, place: int, kind: str, call: Json | None, named: Json) -> None:
        self.kind = kind
        self.call = None if call is None else call["id"]
        self._place = place
        self._id = f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"
        self._named = named
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []

    def event(self, name: str, **facts: Any) -> Json:
        return {"type": f"response.{name}", "output_index": self._place, **facts}

    def opening(self) -> list[Json]:
        events = [self.event("output_item.added", item=self.value(_GROWING))]
        if self.kind in _PARTS:
            events.append(self._own_event("content_part.added", part=self._part()))
        return events

    def value(self, status: str) -> Json:
        """Returns the item as it is by now."""
        facts = {"id": self._id, "type": self.kind, "status": status}
        if self.kind not in _PARTS:
            arguments = "".join(self._pieces)
            return {**facts, "call_id": self.call, **self._named, "arguments": arguments}
        content = [] if status == _GROWING else [self._part()]
        return {**facts, "content": content, **_FACTS[self.kind]}

    def add(self, text: str, logprobs: Sequence[Json]) -> list[Json]:
        if self.kind not in _PARTS and not text:
            return []
        self._pieces.append(text)
        self._logprobs += logprobs
        return [self._text_event("delta", logprobs, delta=text)]

    def closing(self) -> list[Json]:
        """Returns the events at the end, without the item's own."""
        text = "".join(self._pieces)
        if self.kind not in _PARTS:
            return [self._text_event("done", (), arguments=text)]
        part = self._own_event("content_part.done", part=self._part())
        return [self._text_event("done", self._logprobs, text=text), part]

    def _part(self) -> Json:
        part: Json = {"type": _PARTS[self.kind], "text": "".join(self._pieces)}
        if self.kind == "message":
            part |= {"annotations": [], "logprobs": list(self._logprobs)}
        return part

    def _own_event(self, name: str, **facts: Any) -> Json:
        within = {"content_index": 0} if self.kind in _PARTS else {}
        return self.event(name, item_id=self._id, **within, **facts)

    def _text_event(self, name: str, logprobs: Sequence[Json], **facts: Any) -> Json:
        told = {"logprobs": list(logprobs)} if self.kind == "message" else {}
        kind = _PARTS.get(self.kind, "function_call_arguments")
        return self._own_event(f"{kind}.{name}", **facts, **told)


class ResponsesAnswer(Answer):
    """The writer for one request; it reads what the writer for a chat writes.

    Raises:
        RequestError: if the request holds what a chat does not take.
    """

    last = ()

    def __init__(self, body: ResponsesRequest, origin: Origin) -> None:
        self._chat = ChatAnswer(body.chat, origin)
        self._output = Output(
            {
                within(namespace, function.name): (namespace, function.name)
                for namespace, function in body.functions
                if namespace is not None
            }
        )
        self._numbers = count()
        self._facts = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": origin.model,
            **_settings(body, origin.sampling),
        }

    def whole(self, results: Sequence[Result]) -> Json:
        """See `Answer`."""
        chat = self._chat.whole(results)
        [choice] = chat["choices"]
        self._output.add(choice["message"], _logprobs(choice))
        self._output.close(choice["finish_reason"] != _CUT)
        return self._finished(choice["finish_reason"], chat)

    def opening(self) -> list[Json]:
        """See `Answer`."""
        response = self._response("in_progress")
        names = ("response.created", "response.in_progress")
        return self._numbered([{"type": name, "response": response} for name in names])

    def part(self, part: Part) -> list[Json]:
        """See `Answer`; the last event has the statistics of the part."""
        chunks = self._chat.part(part)
        events = self._events(chunks)
        told = [chunk["edgespec"] for chunk in chunks if "edgespec" in chunk]
        if events and told:
            events[-1] |= {"edgespec": told[-1]}
        return self._numbered(events)

    def closing(self, results: Sequence[Result]) -> list[Json]:
        """See `Answer`."""
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
        """See `Answer`."""
        error = {"code": "server_error", "message": str(refusal)}
        response = self._response("failed", output=self._output.items, error=error)
        [event] = self._numbered([{"type": "response.failed", "response": response}])
        return event

    def written(self, event: Json | str) -> str:
        """See `Answer`; the name of an event is its type."""
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
        """Returns the response after the last token of a chat, which ended for a reason."""
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
    "service_tier": "default", "store": False,
}  # fmt: skip


def _settings(body: ResponsesRequest, sampling: SamplingKeywords) -> Json:
    """Returns the settings of a text, whether the request has them or not."""
    given = body.model_dump(by_alias=True, exclude_none=True, include=set(_REPEATED))
    used = in_conversation(sampling, given)
    text = _REPEATED["text"] | given.get("text", {})
    settings = {name: used.get(name, value) for name, value in _REPEATED.items()}
    truncation = body.truncation or "disabled"
    return {**_CONSTANT, "truncation": truncation, **settings, "text": text}


def _logprobs(choice: Json) -> list[Json]:
    found = choice["logprobs"]
    return [] if found is None else list(found["content"])


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
