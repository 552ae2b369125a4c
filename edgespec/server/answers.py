"""Conversion of texts to responses of OpenAI's API, whole or as chunks of a stream."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from edgespec.api.result import GenerationResult
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.server.predictions import prediction_details
from edgespec.server.service import Part
from edgespec.server.tools import answered, call_delta

Json = dict[str, Any]

_REPLACEMENT = "\ufffd"
_FINISH_REASONS = {"context": "length"}  # the other names are the same


class TokenTexts:
    """Text of single tokens, as it appears inside a longer text.

    Args:
        tokenizer: tokenizer of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Some decoders drop a space at the beginning of a text, so another token comes first.
        self._before = tokenizer.encode("a", add_special=False)[-1:]
        self._skipped = len(tokenizer.decode(self._before))

    def __getitem__(self, token: int) -> str:
        whole = self._tokenizer.decode([*self._before, token], skip_special=False)
        return whole[self._skipped :]

    def shown(self, token: int) -> str:
        """Returns the text of a token as readers see it; special tokens are empty."""
        return self._tokenizer.decode([*self._before, token])[self._skipped :]


class Answer(ABC):
    """The response to one request in OpenAI's API.

    Args:
        model: name of the model for clients.
        fingerprint: fingerprint of the bundle.
        texts: text of single tokens.

    Attributes:
        facts: fields of the response and of all its chunks.
    """

    _prefix = ""
    _whole = _chunk = ""

    def __init__(self, model: str, fingerprint: str, texts: TokenTexts) -> None:
        self._texts = texts
        self.facts: Json = {
            "id": f"{self._prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def whole(self, result: GenerationResult) -> Json:
        """Returns the response in one piece."""
        return self._object(
            self._whole,
            self._whole_choice(result),
            usage=_usage(result),
            edgespec=speculation(result),
        )

    def opening(self) -> list[Json]:
        """Returns the chunks before the first part."""
        return []

    def part(self, part: Part) -> Json:
        """Returns the chunk of a part."""
        choice = self._choice_of(part)
        if not part.rounds:
            return self._object(self._chunk, choice)
        return self._object(self._chunk, choice, edgespec=self._rounds(part))

    def closing(self, result: GenerationResult, reported: int, usage: bool) -> list[Json]:
        """Returns the chunks after the last part.

        Args:
            result: finished text.
            reported: number of tokens whose log-probabilities were in parts.
            usage: whether the client asked for the numbers of tokens.
        """
        choice = self._part_choice("", result.logprobs[reported:]) | _finish(result)
        chunks = [self._object(self._chunk, choice, edgespec=speculation(result))]
        if usage:
            chunks.append({**self._object(self._chunk), "usage": _usage(result)})
        return chunks

    def _rounds(self, part: Part) -> Json:
        """Returns statistics of a part; `drafted` is the number of drafted first characters."""
        drafted, last = 0, part.rounds[-1]
        if any(each.accepted for each in part.rounds):
            # The last token of a round is the target's own, unless the text ended inside the draft.
            own = "" if last.accepted == len(last.tokens) else self._texts.shown(last.tokens[-1])
            drafted = max(len(part.text) - len(own), 0)
        tokens = sum(len(each.tokens) for each in part.rounds)
        return {"rounds": len(part.rounds), "tokens": tokens, "drafted": drafted}

    def _object(self, kind: str, *choices: Json, **further: Json) -> Json:
        return {**self.facts, "object": kind, "choices": list(choices), **further}

    def _choice_of(self, part: Part) -> Json:
        return self._part_choice(part.text, part.logprobs)

    @abstractmethod
    def _whole_choice(self, result: GenerationResult) -> Json: ...

    @abstractmethod
    def _part_choice(self, text: str, logprobs: Sequence[TokenLogprobs]) -> Json: ...


class CompletionAnswer(Answer):
    """A response of `/v1/completions`."""

    _prefix = "cmpl"
    _whole = _chunk = "text_completion"

    def __init__(self, model: str, fingerprint: str, texts: TokenTexts) -> None:
        super().__init__(model, fingerprint, texts)
        self._offset = 0

    def _whole_choice(self, result: GenerationResult) -> Json:
        return self._part_choice(result.text, result.logprobs) | _finish(result)

    def _part_choice(self, text: str, logprobs: Sequence[TokenLogprobs]) -> Json:
        shown = self._logprobs(logprobs) if logprobs else None
        return {"index": 0, "text": text, "logprobs": shown, "finish_reason": None}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json:
        tokens = [self._texts[each.token] for each in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": [
                {self._texts[token]: value for token, value in each.top}
                | {self._texts[each.token]: each.logprob}
                for each in logprobs
            ],
            "text_offset": offsets,
        }


class ChatAnswer(Answer):
    """A response of `/v1/chat/completions`."""

    _prefix = "chatcmpl"
    _whole = "chat.completion"
    _chunk = "chat.completion.chunk"

    def opening(self) -> list[Json]:
        """Returns a chunk with the role."""
        choice = self._part_choice("", ())
        choice["delta"]["role"] = "assistant"
        return [self._object(self._chunk, choice)]

    def _whole_choice(self, result: GenerationResult) -> Json:
        message = {"role": "assistant", **answered(result)}
        shown = self._logprobs(result.logprobs)
        return {"index": 0, "message": message, "logprobs": shown} | _finish(result)

    def _choice_of(self, part: Part) -> Json:
        choice = super()._choice_of(part)
        if part.reasoning or part.calls:
            delta: Json = {"content": part.text} if part.text else {}
            delta |= {"reasoning_content": part.reasoning} if part.reasoning else {}
            delta |= {"tool_calls": list(map(call_delta, part.calls))} if part.calls else {}
            choice["delta"] = delta
        return choice

    def _part_choice(self, text: str, logprobs: Sequence[TokenLogprobs]) -> Json:
        shown = self._logprobs(logprobs)
        return {"index": 0, "delta": {"content": text}, "logprobs": shown, "finish_reason": None}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json | None:
        if not logprobs:
            return None
        content = [
            self._token(each.token, each.logprob)
            | {"top_logprobs": [self._token(token, value) for token, value in each.top]}
            for each in logprobs
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Json:
        text = self._texts[token]
        # The bytes of an incomplete character cannot be found from the text.
        data = None if _REPLACEMENT in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": data}


def _finish(result: GenerationResult) -> Json:
    return {"finish_reason": _FINISH_REASONS.get(result.finish_reason, result.finish_reason)}


def _usage(result: GenerationResult) -> Json:
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.new_tokens,
        "total_tokens": result.prompt_tokens + result.new_tokens,
        "prompt_tokens_details": {"cached_tokens": result.reused},
        "completion_tokens_details": {
            "reasoning_tokens": result.reasoning_tokens,
            **prediction_details(result),
        },
    }


def speculation(result: GenerationResult) -> Json:
    """Returns statistics that other APIs do not have."""
    names = ("seed", "draft", "rounds", "drafted", "accepted", "ttft_ms", "tokens_per_second")
    return {name: getattr(result, name) for name in names}
