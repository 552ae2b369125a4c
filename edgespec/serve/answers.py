"""Answers of OpenAI's API, whole or as chunks of a stream."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from edgespec.bundle import Bundle
from edgespec.errors import BundleError
from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.options import conversational
from edgespec.llm.result import PromptProgress, Result
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.decoder import CallEvent
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.vocabulary import kind_of, spelled
from edgespec.serve.bodies import Json, one_line
from edgespec.serve.parts import Part
from edgespec.serve.refusals import RequestError
from edgespec.serve.requests import TextRequest

_REPLACEMENT = "\ufffd"
_FINISH_REASONS = {"context": "length", "loop": "length"}  # the other names are the same
_TOLD = ("seed", "draft", "rounds", "drafted", "accepted", "ttft_ms", "tokens_per_second")


class TokenTexts:
    r"""Text of single tokens of a tokenizer, as it appears inside a longer text.

    Bytes of a part of a character are written as `\xf0\x9f`, as OpenAI does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Some decoders drop a space at the beginning of a text, so another token comes first.
        self._before = tokenizer.encode("a", add_special=False)[-1:]
        self._skipped = len(tokenizer.decode(self._before))
        self._kind: str | None = None
        with suppress(BundleError):
            self._kind = kind_of(tokenizer)

    def __getitem__(self, token: int) -> str:
        return self._bytes(token).decode(errors="backslashreplace")

    def key(self, token: int) -> str:
        """Returns the text of a token as completions name it."""
        return _key(self._bytes(token))

    def data(self, token: int) -> bytes:
        """Returns the bytes that a token adds to a text; special tokens add none."""
        return b"" if token in self._tokenizer.special_ids else self._bytes(token)

    def told(self, logprobs: Sequence[TokenLogprobs]) -> list[Json]:
        """Returns log-probabilities as chats tell them."""

        def one(token: int, logprob: float) -> Json:
            return {"token": self[token], "logprob": logprob, "bytes": list(self.data(token))}

        return [
            {
                "token": name.decode(errors="backslashreplace"),
                "logprob": each.logprob,
                "bytes": list(data),
                "top_logprobs": [one(token, value) for token, value in each.top],
            }
            for each, (data, name) in zip(logprobs, self.parts(logprobs), strict=True)
        ]

    def parts(self, logprobs: Sequence[TokenLogprobs]) -> list[tuple[bytes, bytes]]:
        """Returns the bytes that each token adds to a text, up to its end, and those of its name.

        These are all of the token's, unless the text ends within it.
        """
        found = [self.data(each.token) for each in logprobs]
        beyond = logprobs[-1].beyond if logprobs else 0
        for place in reversed(range(len(found))):  # a character may have begun in an earlier token
            while beyond and found[place]:
                beyond -= found[place][-1] & 0xC0 != 0x80  # the first byte of a character
                found[place] = found[place][:-1]
        return [
            (data, self._bytes(each.token) if data == self.data(each.token) else data)
            for each, data in zip(logprobs, found, strict=True)
        ]

    def shown(self, token: int) -> str:
        """Returns the text of a token as readers see it; special tokens are empty."""
        return self._tokenizer.decode([*self._before, token])[self._skipped :]

    def _bytes(self, token: int) -> bytes:
        whole = self._tokenizer.decode([*self._before, token], skip_special=False)
        text = whole[self._skipped :]
        if _REPLACEMENT in text and self._kind is not None:
            spelling = self._tokenizer.backend.id_to_token(token)
            if spelling is not None and spelling not in self._tokenizer.added_tokens:
                return spelled(spelling, self._kind)
        return text.encode()


def _key(data: bytes) -> str:
    text = data.decode(errors="backslashreplace")
    return text if text.encode() == data else f"bytes:{text}"


@dataclass(frozen=True)
class Origin:
    """Where the answers of a server come from.

    Attributes:
        model: name of the model for clients.
        fingerprint: fingerprint of the bundle.
        texts: text of single tokens.
        sampling: see `LLM`.
    """

    model: str
    fingerprint: str
    texts: TokenTexts
    sampling: SamplingKeywords = field(default_factory=SamplingKeywords)

    @classmethod
    def of(cls, model: str, bundle: Bundle, tokenizer: Tokenizer) -> Origin:
        """Returns the origin of the answers of a model with this name."""
        sampling = conversational(bundle.manifest.sampling)
        return cls(model, f"fp_{bundle.digest[:12]}", TokenTexts(tokenizer), sampling)


class Writer(ABC):
    """The answer to one request, whole or as events of a stream."""

    # Event streams are always UTF-8, but some clients assume Latin-1 without a charset.
    media_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    last: ClassVar[tuple[str, ...]] = ("[DONE]",)
    """What follows the events of a stream that did not fail."""
    waiting: ClassVar[str] = ": waiting\n\n"
    """What tells that a stream still waits; readers of events pass over it."""

    @abstractmethod
    def whole(self, results: Sequence[Result]) -> Json:
        """Returns the answer in one piece."""

    def opening(self) -> list[Json]:
        """Returns the events before the first part."""
        return []

    @abstractmethod
    def part(self, part: Part) -> list[Json]:
        """Returns the events of a part."""

    @property
    def tells_all_progress(self) -> bool:
        """Whether each step of the reading of a prompt is told, and not only one a second."""
        return False

    def reading(self, choice: int, progress: PromptProgress) -> str:
        """Returns what tells how much of a prompt was read; readers of events pass over it."""
        return f": reading {progress.read} of {progress.total} tokens\n\n"

    @abstractmethod
    def closing(self, results: Sequence[Result]) -> list[Json]:
        """Returns the events after the last part."""

    def failure(self, refusal: RequestError) -> Json:
        """Returns the event that ends a stream that failed on the way."""
        return refusal.body

    def written(self, event: Json | str) -> str:
        """Returns an event as it is sent."""
        data = event if isinstance(event, str) else one_line(event)
        return f"data: {data}\n\n"


class ChoicesWriter(Writer):
    """The choices of a completion or chat, each with an index and statistics of its own."""

    _prefix = _whole = _chunk = ""

    def __init__(self, body: TextRequest, origin: Origin) -> None:
        options = body.stream_options
        self._tells_progress = bool(body.return_progress)
        self._tells_usage = options is not None and bool(options.include_usage)
        self._repeats = body.choices // body.prompts  # choices of one prompt
        self._told = [0] * body.choices  # tokens whose log-probabilities were in parts
        self._texts = origin.texts
        self._facts: Json = {
            "id": f"{self._prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": origin.model,
            "system_fingerprint": origin.fingerprint,
        }

    def whole(self, results: Sequence[Result]) -> Json:
        """See `Writer`."""
        choices = [
            self._whole_choice(index, result) | _finish(result)
            for index, result in enumerate(results)
        ]
        answer = self._object(self._whole, *choices, usage=self._usage(results))
        for told, result in zip([answer] if len(choices) == 1 else choices, results, strict=True):
            told["edgespec"] = speculation(result)
        return answer

    def part(self, part: Part) -> list[Json]:
        """See `Writer`."""
        self._told[part.choice] += len(part.logprobs)
        rounds = {"edgespec": self._rounds(part)} if part.rounds else {}
        return [self._piece(self._part_choice(part), **rounds)]

    @property
    def tells_all_progress(self) -> bool:
        """See `Writer`; llama.cpp's clients ask for it."""
        return self._tells_progress

    def reading(self, choice: int, progress: PromptProgress) -> str:
        """See `Writer`."""
        if not self._tells_progress:
            return super().reading(choice, progress)
        said = self._part_choice(Part("", (), (), choice))
        return self.written(self._piece(said, prompt_progress=prompt_progress(progress)))

    def closing(self, results: Sequence[Result]) -> list[Json]:
        """See `Writer`."""
        chunks = []
        for index, (result, told) in enumerate(zip(results, self._told, strict=True)):
            rest = self._part_choice(Part("", result.logprobs[told:], (), index))
            told_last = speculation(result)
            chunks.append(self._piece(rest | _finish(result), edgespec=told_last))
        if self._tells_usage:
            chunks.append(self._piece(usage=self._usage(results)))
        return chunks

    def _rounds(self, part: Part) -> Json:
        """Returns statistics of a part; `drafted` is the number of drafted first characters."""
        drafted = 0
        last = part.rounds[-1]
        if any(each.accepted for each in part.rounds):
            # The last token of a round is the target's own, unless the text ended inside the draft.
            own = "" if last.accepted == len(last.tokens) else self._texts.shown(last.tokens[-1])
            drafted = max(len(part.text) - len(own), 0)
        tokens = sum(len(each.tokens) for each in part.rounds)
        return {"rounds": len(part.rounds), "tokens": tokens, "drafted": drafted}

    def _usage(self, results: Sequence[Result]) -> Json:
        """Returns the tokens of all choices; a prompt that they have in common counts once."""
        prompts = results[:: self._repeats]
        read = sum(each.prompt_tokens for each in prompts)
        made = sum(each.new_tokens for each in results)
        accepted = sum(each.accepted_prediction_tokens or 0 for each in results)
        rejected = sum(each.rejected_prediction_tokens or 0 for each in results)
        return {
            "prompt_tokens": read,
            "completion_tokens": made,
            "total_tokens": read + made,
            "prompt_tokens_details": {"cached_tokens": sum(each.reused for each in prompts)},
            "completion_tokens_details": {
                "reasoning_tokens": sum(each.reasoning_tokens for each in results),
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            },
        }

    def _piece(self, *choices: Json, **further: Json) -> Json:
        """Returns a chunk of a stream; where the last one tells the usage, all have the field."""
        usage: Json = {"usage": None} if self._tells_usage else {}
        return self._object(self._chunk, *choices, **{**usage, **further})

    def _object(self, kind: str, *choices: Json, **further: Json) -> Json:
        return {**self._facts, "object": kind, "choices": list(choices), **further}

    @abstractmethod
    def _whole_choice(self, index: int, result: Result) -> Json: ...

    @abstractmethod
    def _part_choice(self, part: Part) -> Json: ...


class CompletionAnswer(ChoicesWriter):
    """A response of `/v1/completions`."""

    _prefix = "cmpl"
    _whole = _chunk = "text_completion"

    def __init__(self, body: TextRequest, origin: Origin) -> None:
        super().__init__(body, origin)
        self._offsets = [_Offset() for _ in range(body.choices)]

    def _whole_choice(self, index: int, result: Result) -> Json:
        return self._part_choice(Part(result.text, result.logprobs, (), index))

    def _part_choice(self, part: Part) -> Json:
        shown = self._logprobs(part.choice, part.logprobs) if part.logprobs else None
        return {"index": part.choice, "text": part.text, "logprobs": shown, "finish_reason": None}

    def _logprobs(self, choice: int, logprobs: Sequence[TokenLogprobs]) -> Json:
        add = self._offsets[choice].add
        parts = self._texts.parts(logprobs)
        names = [_key(name) for _, name in parts]
        return {
            "tokens": names,
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": list(map(self._likeliest, logprobs, names)),
            "text_offset": [add(data) for data, _ in parts],
        }

    def _likeliest(self, told: TokenLogprobs, chosen: str) -> Json:
        """Returns the log-probabilities of the likeliest tokens and of the chosen one."""
        found: Json = {chosen: told.logprob}
        for token, value in told.top:
            if token == told.token:
                continue
            name = self._texts.key(token)
            if name in found:  # as of a byte and the character that it is
                name = f"token_id:{token}"
            found[name] = value
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))


class _Offset:
    """Where in a text each token begins; a part of a character, where its character does."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def add(self, data: bytes) -> int:
        """Adds the bytes of the next token and returns its place."""
        place = self._characters
        begun = self._decoder.getstate()[0]
        try:
            getincrementaldecoder("utf-8")().decode(begun + data[:1])
        except UnicodeDecodeError:  # what was begun is a broken character of its own
            place += bool(begun)
        self._characters += len(self._decoder.decode(data))
        return place


class ChatAnswer(ChoicesWriter):
    """A response of `/v1/chat/completions`."""

    _prefix = "chatcmpl"
    _whole = "chat.completion"
    _chunk = "chat.completion.chunk"

    def opening(self) -> list[Json]:
        """Returns chunks with the role."""
        chunks = []
        for index in range(len(self._told)):
            choice = self._part_choice(Part("", (), (), index))
            choice["delta"]["role"] = "assistant"
            chunks.append(self._piece(choice))
        return chunks

    def _whole_choice(self, index: int, result: Result) -> Json:
        message: Json = {"role": "assistant", "content": result.text, "refusal": None}
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        cut = () if result.cut_call is None else (result.cut_call,)  # as a stream shows it
        if calls := (*result.tool_calls, *cut):
            message["content"] = result.text or None
            message["tool_calls"] = [call.message for call in calls]
        return {"index": index, "message": message, "logprobs": self._logprobs(result.logprobs)}

    def _part_choice(self, part: Part) -> Json:
        further = part.reasoning or part.calls
        delta: Json = {"content": part.text} if part.text or not further else {}
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.calls:
            delta["tool_calls"] = list(map(_call_delta, part.calls))
        logprobs = self._logprobs(part.logprobs)
        return {"index": part.choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json | None:
        return {"content": self._texts.told(logprobs), "refusal": None} if logprobs else None


def _call_delta(piece: CallEvent) -> Json:
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def _finish(result: Result) -> Json:
    return {"finish_reason": _FINISH_REASONS.get(result.finish_reason, result.finish_reason)}


def prompt_progress(progress: PromptProgress) -> Json:
    """Returns how much of a prompt was read as llama.cpp's server tells it."""
    return {
        "total": progress.total,
        "cache": progress.reused,
        "processed": progress.read,
        "time_ms": round(progress.seconds * 1e3),
    }


def speculation(result: Result) -> Json:
    """Returns statistics that other APIs do not have."""
    faults = {"call_faults": list(result.call_faults)} if result.call_faults else {}
    looped = {"looped": True} if result.finish_reason == "loop" else {}
    return {name: getattr(result, name) for name in _TOLD} | faults | looped
