"""Answers of Ollama's API, whole or as lines of a stream."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from edgespec.llm.result import PromptProgress, Result
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.serve.parts import Part
from edgespec.serve.protocols.choices import prompt_progress
from edgespec.serve.protocols.fields import Json, one_line
from edgespec.serve.protocols.ollama.requests import OllamaTextRequest
from edgespec.serve.protocols.protocol import Answer, Origin
from edgespec.serve.refusals import RequestError

_NS_PER_MS = 1_000_000
_ENDED = ("stop", "tool_calls")  # finish reasons of texts that are whole


class OllamaAnswer(Answer):
    """The response to one request, with the model's name as the client wrote it."""

    media_type = "application/x-ndjson"
    last = ()
    waiting = ""

    def __init__(self, body: OllamaTextRequest, origin: Origin) -> None:
        self._body = body
        self._texts = origin.texts
        self._began = time.perf_counter_ns()
        self._told = 0  # tokens whose log-probabilities were in parts

    def part(self, part: Part) -> list[Json]:
        """Returns the lines of a part; those of calls come with the end, since they are whole."""
        self._told += len(part.logprobs)
        if not (part.text or part.reasoning or part.logprobs):
            return []
        return [self._object(self._said(part.text, part.reasoning), part.logprobs)]

    def reading(self, choice: int, progress: PromptProgress) -> str:
        """See `Answer`; clients of Ollama's take it for an empty piece."""
        told = prompt_progress(progress)
        return self.written(self._object(self._said(""), prompt_progress=told))

    def whole(self, results: Sequence[Result]) -> Json:
        """See `Answer`."""
        if not results:
            reason = "unload" if self._body.only_unloads else "load"
            return self._object(self._said(""), done=True, done_reason=reason)
        [result] = results
        said = self._said(result.text, result.reasoning, result.tool_calls)
        return self._last(said, result, result.logprobs)

    def closing(self, results: Sequence[Result]) -> list[Json]:
        """See `Answer`."""
        [result] = results
        calls = [self._object(self._said("", calls=result.tool_calls))] * bool(result.tool_calls)
        return [*calls, self._last(self._said(""), result, result.logprobs[self._told :])]

    def failure(self, refusal: RequestError) -> Json:
        """See `Answer`."""
        return {"error": str(refusal)}

    def written(self, event: Json | str) -> str:
        """See `Answer`."""
        return f"{one_line(event)}\n"

    def _last(self, said: Json, result: Result, logprobs: Sequence[TokenLogprobs]) -> Json:
        further = max(result.new_tokens - 1, 0)
        return self._object(
            said,
            logprobs,
            done=True,
            done_reason="stop" if result.finish_reason in _ENDED else "length",
            **self._memory(result),
            total_duration=time.perf_counter_ns() - self._began,
            load_duration=0,
            prompt_eval_count=result.prompt_tokens,
            prompt_eval_duration=_nanoseconds(result.ttft_ms),
            eval_count=result.new_tokens,
            eval_duration=_nanoseconds(result.tpot_ms * further),
        )

    def _object(
        self, said: Json, logprobs: Sequence[TokenLogprobs] = (), done: bool = False, **further: Any
    ) -> Json:
        now = utc_time(datetime.now(UTC))
        facts = {"model": self._body.model, "created_at": now, **said, "done": done}
        told = {"logprobs": self._texts.told(logprobs)} if logprobs else {}
        return {**facts, **further, **told}

    def _memory(self, result: Result) -> Json:
        """Returns what a client may send back to go on from here."""
        return {}

    @abstractmethod
    def _said(self, text: str, reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Json: ...


class OllamaChatAnswer(OllamaAnswer):
    """A response of `/api/chat`."""

    def _said(self, text: str, reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Json:
        message: Json = {"role": "assistant", "content": text}
        if reasoning:
            message["thinking"] = reasoning
        if calls:
            message["tool_calls"] = [_call(number, call) for number, call in enumerate(calls)]
        return {"message": message}


class OllamaGenerateAnswer(OllamaAnswer):
    """A response of `/api/generate`."""

    def _said(self, text: str, reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Json:
        return {"response": text, **({"thinking": reasoning} if reasoning else {})}

    def _memory(self, result: Result) -> Json:
        prompt = self._body.prompt_tokens
        return {} if prompt is None else {"context": [*prompt, *result.tokens]}


def _call(number: int, call: ToolCall) -> Json:
    function = {"index": number, "name": call.name, "arguments": call.arguments}
    return {"id": call.id, "function": function}


def utc_time(moment: datetime) -> str:
    """Returns a moment in UTC as Ollama writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def _nanoseconds(milliseconds: float) -> int:
    return max(round(milliseconds * _NS_PER_MS), 1)  # clients divide by it
