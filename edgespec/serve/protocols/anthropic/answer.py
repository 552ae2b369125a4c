"""The answer of `/v1/messages`, as content blocks and their events.

https://platform.claude.com/docs/en/build-with-claude/streaming describes the events.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from edgespec.llm.result import PromptProgress, Result
from edgespec.serve.parts import Part
from edgespec.serve.protocols.anthropic.request import MessagesRequest
from edgespec.serve.protocols.choices import rounds_told
from edgespec.serve.protocols.fields import Json, one_line
from edgespec.serve.protocols.protocol import Answer, Origin
from edgespec.serve.refusals import RequestError

_PING = {"type": "ping"}

_ENDS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "loop": "max_tokens",
    "context": "model_context_window_exceeded",
    "cancelled": "end_turn",
}

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(refusal: RequestError) -> Json:
    """Returns an error in Anthropic's format."""
    usual = "api_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _ERRORS.get(refusal.status, usual)
    return {"type": "error", "error": {"type": kind, "message": str(refusal)}}


class MessagesAnswer(Answer):
    """The answer to one request."""

    last = ()
    waiting = f"event: ping\ndata: {one_line(_PING)}\n\n"

    def __init__(self, _body: MessagesRequest, origin: Origin) -> None:
        self._origin = origin
        self._open: str | None = None  # type of the last block, while it grows
        self._blocks = 0
        self._facts: Json = {
            "id": origin.id_of("msg_"),
            "type": "message",
            "role": "assistant",
            "model": origin.model,
        }

    def whole(self, results: Sequence[Result]) -> Json:
        """See `Answer`."""
        [result] = results
        content = list[Json]()
        if result.reasoning:
            content.append({"type": "thinking", "thinking": result.reasoning, "signature": ""})
        cut = () if result.cut_call is None else (result.cut_call,)
        calls = (*result.tool_calls, *cut)
        if result.text or not (content or calls):
            content.append({"type": "text", "text": result.text})
        content += (
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.text)}
            for call in calls
        )
        return {
            **self._facts,
            "content": content,
            **_end(result),
            "usage": _usage(result),
            "edgespec": self._origin.statistics(result),
        }

    def opening(self) -> list[Json]:
        """See `Answer`; how long the prompt is comes with the end."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        ended = {"stop_reason": None, "stop_sequence": None}
        message = {**self._facts, "content": [], **ended, "usage": usage}
        return [{"type": "message_start", "message": message}]

    def part(self, part: Part) -> list[Json]:
        """See `Answer`; the last event has the statistics of the part."""
        events = list[Json]()
        if part.reasoning:
            events += self._grow("thinking", {"thinking": ""}, part.reasoning)
        if part.text:
            events += self._grow("text", {"text": ""}, part.text)
        for call in part.calls:
            if call.id is not None:  # its first piece
                events += self._begin("tool_use", {"id": call.id, "name": call.name, "input": {}})
            if call.arguments:
                events.append(self._delta(call.arguments))
        if events and part.rounds:
            events[-1] |= {"edgespec": rounds_told(part, self._origin.texts)}
        return events

    def reading(self, choice: int, progress: PromptProgress) -> str:
        """See `Answer`; the comment comes with an event, since some clients count those alone."""
        return self.waiting + super().reading(choice, progress)

    def closing(self, results: Sequence[Result]) -> list[Json]:
        """See `Answer`."""
        [result] = results
        events = [] if self._blocks else self._begin("text", {"text": ""})
        told = {"usage": _usage(result), "edgespec": self._origin.statistics(result)}
        last = {"type": "message_delta", "delta": _end(result), **told}
        return [*events, *self._close(), last, {"type": "message_stop"}]

    def failure(self, refusal: RequestError) -> Json:
        """See `Answer`."""
        return error_body(refusal)

    def written(self, event: Json | str) -> str:
        """See `Answer`; the name of an event is its type."""
        name = event["type"] if isinstance(event, dict) else event
        return f"event: {name}\n{super().written(event)}"

    def _grow(self, kind: str, empty: Json, text: str) -> list[Json]:
        begun = [] if self._open == kind else self._begin(kind, empty)
        return [*begun, self._delta(text)]

    def _begin(self, kind: str, facts: Json) -> list[Json]:
        events = self._close()
        self._open = kind
        self._blocks += 1
        signed = {"signature": ""} if kind == "thinking" else {}
        block = {"type": kind, **facts, **signed}
        return [*events, self._event("content_block_start", content_block=block)]

    def _delta(self, text: str) -> Json:
        kind, name = _DELTAS[self._open or "text"]
        return self._event("content_block_delta", delta={"type": kind, name: text})

    def _close(self) -> list[Json]:
        """Ends the block that grows."""
        if self._open is None:
            return []
        signed = list[Json]()
        if self._open == "thinking":  # without one, some clients drop the block
            delta = {"type": "signature_delta", "signature": ""}
            signed.append(self._event("content_block_delta", delta=delta))
        self._open = None
        return [*signed, self._event("content_block_stop")]

    def _event(self, name: str, **facts: Json) -> Json:
        return {"type": name, "index": self._blocks - 1, **facts}


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def _input(arguments: str) -> Json:
    """Returns the arguments of a call; nothing of one that was cut short."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _end(result: Result) -> Json:
    """Returns why the answer ended."""
    reason = _ENDS[result.finish_reason]
    if reason == "end_turn" and result.stop is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": result.stop}


def _usage(result: Result) -> Json:
    """Returns the counts of tokens, of which those that were cached count by themselves."""
    return {
        "input_tokens": result.prompt_tokens - result.reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": result.reused,
        "output_tokens": result.new_tokens,
    }
