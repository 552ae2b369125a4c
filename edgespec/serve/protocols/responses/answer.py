"""The answer of `/v1/responses`, as items and their events.

https://platform.openai.com/docs/api-reference/responses-streaming describes the events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import count
from typing import Any

from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.options import in_conversation
from edgespec.llm.result import Result
from edgespec.runtime.text.decoder import CallEvent
from edgespec.serve.parts import Part
from edgespec.serve.protocols.choices import rounds_told
from edgespec.serve.protocols.fields import Json
from edgespec.serve.protocols.protocol import Answer, Origin
from edgespec.serve.protocols.responses.items import CUSTOM_INPUT, within
from edgespec.serve.protocols.responses.request import ResponsesRequest
from edgespec.serve.refusals import RequestError

_GROWING = "in_progress"
_ENDED = ("stop", "tool_calls")  # finish reasons of answers that are whole
_CUSTOM = "custom_tool_call"
_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", _CUSTOM: "ctc_"}
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
_FACTS: dict[str, Json] = {"message": {"role": "assistant"}, "reasoning": {"summary": []}}


class Output:
    """The items of one response, in the order in which they begin; the last one grows.

    Args:
        id_of: see `Origin.id_of`.
        places: the namespace and the name there of functions, by the names that the model knows.
        custom: names of the tools that take a text.

    Attributes:
        items: the finished items.
    """

    def __init__(
        self,
        id_of: Callable[[str, int], str],
        places: Mapping[str, tuple[str, str]] | None = None,
        custom: Set[str] = frozenset(),
    ) -> None:
        self._custom = custom
        self._id_of = id_of
        self._places = places or {}
        self.items: list[Json] = []
        self._last: _Item | None = None

    def add(self, part: Part, logprobs: Sequence[Json] = ()) -> list[Json]:
        """Adds to the items; returns the events of that.

        Args:
            part: part of an answer, or all of it.
            logprobs: log-probabilities of its tokens, as answers tell them.
        """
        events: list[Json] = []
        if part.reasoning:
            events += self._grow("reasoning", part.reasoning)
        # Log-probabilities without a text are of the end of a text, or of what is none.
        said = self._last is not None and self._last.kind == "message"
        if part.text or (logprobs and said):
            events += self._grow("message", part.text, logprobs)
        for call in part.calls:
            kind = _CUSTOM if call.name in self._custom else "function_call"
            if call.id is None and self._last is not None:  # a further piece
                kind = self._last.kind
            events += self._grow(kind, call.arguments, call=call)
        return events

    def close(self, whole: bool) -> list[Json]:
        """Finishes the last item; an answer without any gets an empty text.

        Args:
            whole: whether the answer ended by itself.
        """
        events = [] if self._last else self._begin("message", None)
        return events + self._end("completed" if whole else "incomplete")

    def _grow(
        self, kind: str, text: str, logprobs: Sequence[Json] = (), call: CallEvent | None = None
    ) -> list[Json]:
        last = self._last
        events = list[Json]()
        begins = call is not None and call.id is not None  # only the first piece of a call has one
        if last is None or last.kind != kind or begins:
            events = self._end("completed") + self._begin(kind, call)
        assert self._last is not None, "it was begun"
        return events + self._last.add(text, logprobs)

    def _begin(self, kind: str, call: CallEvent | None) -> list[Json]:
        facts: Json = {}
        if call is not None:
            namespace, name = self._places.get(call.name or "", (None, call.name))
            facts = {"call_id": call.id, "name": name}
            facts |= {"namespace": namespace} if namespace else {}
        place = len(self.items)
        self._last = _Item(place, kind, self._id_of(_PREFIXES[kind], place), facts)
        return self._last.opening()

    def _end(self, status: str) -> list[Json]:
        if self._last is None:
            return []
        item = self._last.value(status)
        self.items.append(item)
        return [*self._last.closing(), self._last.event("output_item.done", item=item)]


class _Item:
    """An item of the output: a text that is said or thought, or a call with facts about it."""

    def __init__(self, place: int, kind: str, id_: str, facts: Json) -> None:
        self.kind = kind
        self._facts = facts
        self._place = place
        self._id = id_
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
        if self.kind == _CUSTOM:
            said = "" if status == _GROWING else self._input()
            return {**facts, **self._facts, "input": said}
        if self.kind not in _PARTS:
            arguments = "".join(self._pieces)
            return {**facts, **self._facts, "arguments": arguments}
        content = [] if status == _GROWING else [self._part()]
        return {**facts, "content": content, **_FACTS[self.kind]}

    def add(self, text: str, logprobs: Sequence[Json]) -> list[Json]:
        if self.kind not in _PARTS and not text:
            return []
        self._pieces.append(text)
        self._logprobs += logprobs
        if self.kind == _CUSTOM:  # which is JSON until it is whole
            return []
        return [self._text_event("delta", logprobs, delta=text)]

    def closing(self) -> list[Json]:
        """Returns the events at the end, without the item's own."""
        text = "".join(self._pieces)
        if self.kind == _CUSTOM:
            said = self._input()
            kind = f"{_CUSTOM}_input"
            return [
                self._own_event(f"{kind}.delta", delta=said),
                self._own_event(f"{kind}.done", input=said),
            ]
        if self.kind not in _PARTS:
            return [self._text_event("done", (), arguments=text)]
        part = self._own_event("content_part.done", part=self._part())
        return [self._text_event("done", self._logprobs, text=text), part]

    def _input(self) -> str:
        """Returns the text for a tool; nothing of one that was cut short."""
        try:
            return str(json.loads("".join(self._pieces))[CUSTOM_INPUT])
        except (ValueError, KeyError, TypeError):
            return ""

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
    """The answer to one request."""

    last = ()

    def __init__(self, body: ResponsesRequest, origin: Origin) -> None:
        self._body = body
        self._origin = origin
        self._texts = origin.texts
        self._told = 0  # tokens whose log-probabilities were in parts
        self._output = Output(
            origin.id_of,
            {
                within(namespace, function.name): (namespace, function.name)
                for namespace, function in body.functions
                if namespace is not None
            },
            body.custom,
        )
        self._numbers = count()
        self._facts = {
            "id": origin.id_of("resp_"),
            "object": "response",
            "created_at": origin.time,
            "model": origin.model,
            **_settings(body, origin.sampling),
        }

    def whole(self, results: Sequence[Result]) -> Json:
        """See `Answer`."""
        [result] = results
        self._add(Part.of(result))
        self._output.close(result.finish_reason in _ENDED)
        return self._finished(result)

    def opening(self) -> list[Json]:
        """See `Answer`."""
        response = self._response("in_progress")
        names = ("response.created", "response.in_progress")
        return self._numbered([{"type": name, "response": response} for name in names])

    def part(self, part: Part) -> list[Json]:
        """See `Answer`; the last event has the statistics of the part."""
        events = self._add(part)
        if events and part.rounds:
            events[-1] |= {"edgespec": rounds_told(part, self._texts)}
        return self._numbered(events)

    def closing(self, results: Sequence[Result]) -> list[Json]:
        """See `Answer`."""
        [result] = results
        events = self._add(Part("", result.logprobs[self._told :], ()))
        events += self._output.close(result.finish_reason in _ENDED)
        response = self._finished(result)
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

    def _add(self, part: Part) -> list[Json]:
        """Adds a part to the items, and returns the events of that."""
        self._told += len(part.logprobs)
        return self._output.add(part, self._texts.told(part.logprobs))

    def _numbered(self, events: Sequence[Json]) -> list[Json]:
        return [{**event, "sequence_number": next(self._numbers)} for event in events]

    def _finished(self, result: Result) -> Json:
        """Returns the response after the last token."""
        self._body.keep(self._facts["id"], self._output.items)
        facts = {
            "output": self._output.items,
            "usage": _usage(result),
            "edgespec": self._origin.statistics(result),
        }
        if result.finish_reason in _ENDED:
            return self._response("completed", completed_at=self._origin.time, **facts)
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


def _settings(body: ResponsesRequest, sampling: SamplingKeywords) -> Json:
    """Returns the settings of a text, whether the request has them or not."""
    given = body.model_dump(by_alias=True, exclude_none=True, include=set(_REPEATED))
    used = in_conversation(sampling, given)
    text = _REPEATED["text"] | given.get("text", {})
    settings = {name: used.get(name, value) for name, value in _REPEATED.items()}
    truncation = body.truncation or "disabled"
    return {
        "background": False,
        "conversation": None,
        "previous_response_id": body.previous_response_id,
        "service_tier": "default",
        "store": body.store is not False,
        "truncation": truncation,
        **settings,
        "text": text,
    }


def _usage(result: Result) -> Json:
    return {
        "input_tokens": result.prompt_tokens,
        "input_tokens_details": {"cached_tokens": result.reused, "cache_write_tokens": 0},
        "output_tokens": result.new_tokens,
        "output_tokens_details": {"reasoning_tokens": result.reasoning_tokens},
        "total_tokens": result.prompt_tokens + result.new_tokens,
    }
