"""The answer of `/v1/responses`: a chat's answer in the form of the Responses API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from itertools import count

from edgespec.api.result import GenerationResult
from edgespec.server.answers import Json
from edgespec.server.refusals import RequestError
from edgespec.server.requests import ChatRequest
from edgespec.server.response_output import Output
from edgespec.server.response_requests import ResponsesRequest
from edgespec.server.service import Part
from edgespec.server.writers import Origin, Writer

_CUT = "length"  # a chat's word for an answer that did not end by itself


class ResponsesWriter(Writer):
    """The writer for one request; it reads what the writer for a chat writes.

    Args:
        writers: what makes the writer for a chat.
        body: the request, whose settings are a part of the response.
        origin: see `Origin`.

    Raises:
        RequestError: if the request holds what a chat does not take.
    """

    last = ()

    def __init__(
        self,
        writers: Callable[[ChatRequest, Origin], Writer],
        body: ResponsesRequest,
        origin: Origin,
    ) -> None:
        self._chat = writers(body.chat, origin)
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

    def name(self, event: Json) -> str:
        """See `Writer`."""
        return str(event["type"])

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
