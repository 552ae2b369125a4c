"""The choices of one request (`n`), each with an answer of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgespec.api.result import GenerationResult
from edgespec.server.answers import Answer, Json
from edgespec.server.requests import TextRequest
from edgespec.server.service import Part
from edgespec.server.writers import Origin, Writer


def choices(kind: type[Answer]) -> Callable[[TextRequest, Origin], Writer]:
    """Returns what makes the writer for a request, with an answer of a kind for each choice."""

    def writer(body: TextRequest, origin: Origin) -> Writer:
        answers = [
            kind(origin.model, origin.fingerprint, origin.texts) for _ in range(body.choices)
        ]
        options = body.stream_options
        usage = options is not None and bool(options.include_usage)
        return Choices(answers, body.prompts, usage)

    return writer


class Choices(Writer):
    """The answers to one request as one.

    Args:
        answers: an answer for each choice; those of one prompt follow each other.
        prompts: the number of prompts.
        usage: whether a stream ends with the numbers of tokens.
    """

    def __init__(self, answers: Sequence[Answer], prompts: int, usage: bool) -> None:
        self._answers = answers
        self._repeats = len(answers) // prompts  # choices of one prompt
        self._usage = usage
        self._reported = [0] * len(answers)  # tokens whose log-probabilities were sent
        for answer in answers:
            answer.facts = answers[0].facts

    def whole(self, results: Sequence[GenerationResult]) -> Json:
        """See `Writer`; of several choices each has statistics of its own."""
        bodies = [
            answer.whole(result) for answer, result in zip(self._answers, results, strict=True)
        ]
        first = bodies[0]
        if len(bodies) == 1:
            return first
        told = [
            {**choice, "index": index, "edgespec": body["edgespec"]}
            for index, body in enumerate(bodies)
            for choice in body["choices"]
        ]
        rest = {name: value for name, value in first.items() if name != "edgespec"}
        return {**rest, "choices": told, "usage": self._total(bodies)}

    def opening(self) -> list[Json]:
        """See `Writer`."""
        return [
            _numbered(event, index)
            for index, answer in enumerate(self._answers)
            for event in answer.opening()
        ]

    def part(self, part: Part) -> list[Json]:
        """See `Writer`."""
        self._reported[part.choice] += len(part.logprobs)
        return [_numbered(self._answers[part.choice].part(part), part.choice)]

    def closing(self, results: Sequence[GenerationResult]) -> list[Json]:
        """See `Writer`."""
        events = [
            _numbered(event, index)
            for index, (answer, result) in enumerate(zip(self._answers, results, strict=True))
            for event in answer.closing(result, self._reported[index], self._usage)
        ]
        usages = [event for event in events if not event["choices"]]
        told = [event for event in events if event["choices"]]
        if usages:
            told.append({**usages[0], "usage": self._total(usages)})
        return told

    def _total(self, told: Sequence[Json]) -> Json:
        """Returns the tokens of all choices; a prompt that they have in common counts once."""
        usages: list[Json] = [each["usage"] for each in told]
        total = _sum(usages) | {
            name: value
            for name, value in _sum(usages[:: self._repeats]).items()
            if name.startswith("prompt_")
        }
        return total | {"total_tokens": total["prompt_tokens"] + total["completion_tokens"]}


def _sum(usages: Sequence[Json]) -> Json:
    """Returns the sums of numbers of the same name, also of those inside of fields."""
    return {
        name: _sum([usage[name] for usage in usages])
        if isinstance(value, dict)
        else sum(usage[name] for usage in usages)
        for name, value in usages[0].items()
    }


def _numbered(event: Json, index: int) -> Json:
    return {**event, "choices": [{**choice, "index": index} for choice in event["choices"]]}
