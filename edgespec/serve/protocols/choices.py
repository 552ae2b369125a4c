"""Answers of OpenAI's API in choices, whole or as chunks of a stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from edgespec.llm.result import PromptProgress, Result
from edgespec.serve.parts import Part
from edgespec.serve.protocols.fields import Json
from edgespec.serve.protocols.protocol import Answer, Origin
from edgespec.serve.protocols.text import TextRequest
from edgespec.serve.protocols.token_texts import TokenTexts

_FINISH_REASONS = {"context": "length", "loop": "length"}  # the other names are the same


class ChoicesAnswer(Answer):
    """The choices of a completion or chat, each with an index and statistics of its own."""

    _prefix = _whole = _chunk = ""

    def __init__(self, body: TextRequest, origin: Origin) -> None:
        options = body.stream_options
        self._tells_progress = bool(body.return_progress)
        self._tells_usage = options is not None and bool(options.include_usage)
        self._repeats = body.choices // body.prompts  # choices of one prompt
        self._told = [0] * body.choices  # tokens whose log-probabilities were in parts
        self._origin = origin
        self._texts = origin.texts
        self._facts: Json = {
            "id": origin.id_of(f"{self._prefix}-"),
            "created": origin.time,
            "model": origin.model,
            "system_fingerprint": origin.fingerprint,
        }

    def whole(self, results: Sequence[Result]) -> Json:
        """See `Answer`."""
        choices = [
            self._whole_choice(index, result) | _finish(result)
            for index, result in enumerate(results)
        ]
        answer = self._object(self._whole, *choices, usage=self._usage(results))
        for told, result in zip([answer] if len(choices) == 1 else choices, results, strict=True):
            told["edgespec"] = self._origin.statistics(result)
        return answer

    def part(self, part: Part) -> list[Json]:
        """See `Answer`."""
        self._told[part.choice] += len(part.logprobs)
        rounds = {"edgespec": rounds_told(part, self._texts)} if part.rounds else {}
        return [self._piece(self._part_choice(part), **rounds)]

    @property
    def tells_all_progress(self) -> bool:
        """See `Answer`; llama.cpp's clients ask for it."""
        return self._tells_progress

    def reading(self, choice: int, progress: PromptProgress) -> str:
        """See `Answer`."""
        if not self._tells_progress:
            return super().reading(choice, progress)
        said = self._part_choice(Part("", (), (), choice))
        return self.written(self._piece(said, prompt_progress=prompt_progress(progress)))

    def closing(self, results: Sequence[Result]) -> list[Json]:
        """See `Answer`."""
        chunks = []
        for index, (result, told) in enumerate(zip(results, self._told, strict=True)):
            rest = self._part_choice(Part("", result.logprobs[told:], (), index))
            told_last = self._origin.statistics(result)
            chunks.append(self._piece(rest | _finish(result), edgespec=told_last))
        if self._tells_usage:
            chunks.append(self._piece(usage=self._usage(results)))
        return chunks

    def _usage(self, results: Sequence[Result]) -> Json:
        """Returns the tokens of all choices; a prompt that they have in common counts once."""
        prompts = results[:: self._repeats]
        read = sum(each.prompt_tokens for each in prompts)
        cached = {"cached_tokens": sum(each.reused for each in prompts)}
        made = sum(each.new_tokens for each in results)
        accepted = sum(each.accepted_prediction_tokens or 0 for each in results)
        rejected = sum(each.rejected_prediction_tokens or 0 for each in results)
        return {
            "prompt_tokens": read,
            "completion_tokens": made,
            "total_tokens": read + made,
            **({"prompt_tokens_details": cached} if self._origin.tells_work else {}),
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


def rounds_told(part: Part, texts: TokenTexts) -> Json:
    """Returns statistics of a part; `drafted` is the number of drafted first characters."""
    drafted = 0
    last = part.rounds[-1]
    if any(each.accepted for each in part.rounds):
        # The last token of a round is the target's own, unless the text ended inside the draft.
        own = "" if last.accepted == len(last.tokens) else texts.shown(last.tokens[-1])
        drafted = max(len(part.text) - len(own), 0)
    tokens = sum(len(each.tokens) for each in part.rounds)
    return {"rounds": len(part.rounds), "tokens": tokens, "drafted": drafted}
