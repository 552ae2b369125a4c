"""Texts in the shapes of OpenAI's API, whole or as chunks of a stream."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from edgespec.api.result import GenerationResult
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.server.service import Part

Json = dict[str, Any]

_REPLACEMENT = "\ufffd"
_FINISH_REASONS = {"context": "length"}  # others are called as ours


class TokenTexts:
    """The text of single tokens, as it is within a text.

    Args:
        tokenizer: of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Some decoders drop a space at the beginning, so that a token needs one before it.
        self._before = tokenizer.encode("a", add_special=False)[-1:]
        self._skipped = len(tokenizer.decode(self._before))

    def __getitem__(self, token: int) -> str:
        whole = self._tokenizer.decode([*self._before, token], skip_special=False)
        return whole[self._skipped :]

    def shown(self, token: int) -> str:
        """What a reader sees of it: of special tokens nothing."""
        return self._tokenizer.decode([*self._before, token])[self._skipped :]


class Answer(ABC):
    """One text of one request.

    Args:
        model: as clients call it.
        fingerprint: of the bundle.
        texts: of its tokens.
    """

    _prefix = ""
    _whole = _chunk = ""

    def __init__(self, model: str, fingerprint: str, texts: TokenTexts) -> None:
        self._texts = texts
        self._facts = {
            "id": f"{self._prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }

    def whole(self, result: GenerationResult) -> Json:
        """The answer in one piece."""
        return self._object(
            self._whole,
            self._whole_choice(result),
            usage=_usage(result),
            edgespec=_speculation(result),
        )

    def opening(self) -> list[Json]:
        """Chunks before the first part."""
        return []

    def part(self, part: Part) -> Json:
        """The chunk of a part."""
        choice = self._part_choice(part.text, part.logprobs)
        if not part.rounds:
            return self._object(self._chunk, choice)
        return self._object(self._chunk, choice, edgespec=self._rounds(part))

    def closing(self, result: GenerationResult, told: int, usage: bool) -> list[Json]:
        """Chunks after the last part.

        Args:
            result: the text.
            told: tokens whose log-probabilities were in parts.
            usage: whether the client wants to know what the text took.
        """
        choice = self._part_choice("", result.logprobs[told:]) | _finish(result)
        chunks = [self._object(self._chunk, choice, edgespec=_speculation(result))]
        if usage:
            chunks.append({**self._object(self._chunk), "usage": _usage(result)})
        return chunks

    def _rounds(self, part: Part) -> Json:
        """How the part came about; `drafted` is how many of its first characters were."""
        drafted, last = 0, part.rounds[-1]
        if any(each.accepted for each in part.rounds):
            # The target's own token ends a round, but one that ended in the midst of its draft.
            own = "" if last.accepted == len(last.tokens) else self._texts.shown(last.tokens[-1])
            drafted = max(len(part.text) - len(own), 0)
        tokens = sum(len(each.tokens) for each in part.rounds)
        return {"rounds": len(part.rounds), "tokens": tokens, "drafted": drafted}

    def _object(self, kind: str, *choices: Json, **further: Json) -> Json:
        return {**self._facts, "object": kind, "choices": list(choices), **further}

    @abstractmethod
    def _whole_choice(self, result: GenerationResult) -> Json: ...

    @abstractmethod
    def _part_choice(self, text: str, logprobs: Sequence[TokenLogprobs]) -> Json: ...


class CompletionAnswer(Answer):
    """`/v1/completions`."""

    _prefix = "cmpl"
    _whole = _chunk = "text_completion"

    def __init__(self, model: str, fingerprint: str, texts: TokenTexts) -> None:
        super().__init__(model, fingerprint, texts)
        self._offset = 0

    def _whole_choice(self, result: GenerationResult) -> Json:
        return self._part_choice(result.text, result.logprobs) | _finish(result)

    def _part_choice(self, text: str, logprobs: Sequence[TokenLogprobs]) -> Json:
        told = self._logprobs(logprobs) if logprobs else None
        return {"index": 0, "text": text, "logprobs": told, "finish_reason": None}

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
    """`/v1/chat/completions`."""

    _prefix = "chatcmpl"
    _whole = "chat.completion"
    _chunk = "chat.completion.chunk"

    def opening(self) -> list[Json]:
        """The role comes first."""
        choice = self._part_choice("", ())
        choice["delta"]["role"] = "assistant"
        return [self._object(self._chunk, choice)]

    def _whole_choice(self, result: GenerationResult) -> Json:
        message = {"role": "assistant", "content": result.text, "refusal": None}
        told = self._logprobs(result.logprobs)
        return {"index": 0, "message": message, "logprobs": told} | _finish(result)

    def _part_choice(self, text: str, logprobs: Sequence[TokenLogprobs]) -> Json:
        told = self._logprobs(logprobs)
        return {"index": 0, "delta": {"content": text}, "logprobs": told, "finish_reason": None}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json | None:
        if not logprobs:
            return None
        told = [
            self._token(each.token, each.logprob)
            | {"top_logprobs": [self._token(token, value) for token, value in each.top]}
            for each in logprobs
        ]
        return {"content": told, "refusal": None}

    def _token(self, token: int, logprob: float) -> Json:
        text = self._texts[token]
        # Which bytes a part of a character has, the text does not tell.
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
    }


def _speculation(result: GenerationResult) -> Json:
    """What OpenAI's API has no name for."""
    names = ("seed", "draft", "rounds", "drafted", "accepted", "ttft_ms", "tokens_per_second")
    return {name: getattr(result, name) for name in names}
