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
        return Choices(answers, body.prompts, usage) if len(answers) > 1 else One(answers[0], usage)

    return writer


class One(Writer):
    """A single answer.

    Args:
        answer: the answer.
        usage: whether a stream ends with the numbers of tokens.
    """

    def __init__(self, answer: Answer, usage: bool) -> None:
        self._answer = answer
        self._usage = usage
        self._reported = 0  # tokens whose log-probabilities were sent

    def whole(self, results: Sequence[GenerationResult]) -> Json:
        """See `Writer`."""
        [result] = results
        return self._answer.whole(result)

    def opening(self) -> list[Json]:
        """See `Writer`."""
        return self._answer.opening()

    def part(self, part: Part) -> list[Json]:
        """See `Writer`."""
        self._reported += len(part.logprobs)
        return [self._answer.part(part)]

    def closing(self, results: Sequence[GenerationResult]) -> list[Json]:
        """See `Writer`."""
        [result] = results
        return self._answer.closing(result, self._reported, self._usage)


class Choices(Writer):
    """Several answers as one.

    Args:
        answers: an answer for each choice; those of one prompt follow each other.
        prompts: the number of prompts.
        usage: whether a stream ends with the numbers of tokens.
    """

    def __init__(self, answers: Sequence[Answer], prompts: int, usage: bool) -> None:
        self._ones = [One(answer, usage) for answer in answers]
        self._repeats = len(answers) // prompts  # choices of one prompt
        for answer in answers:
            answer.facts = answers[0].facts

    def whole(self, results: Sequence[GenerationResult]) -> Json:
        """See `Writer`; each choice has statistics of its own."""
        bodies = [one.whole([result]) for one, result in zip(self._ones, results, strict=True)]
        told = [
            {**choice, "edgespec": body["edgespec"]}
            for index, body in enumerate(bodies)
            for choice in _numbered(body, index)["choices"]
        ]
        rest = {name: value for name, value in bodies[0].items() if name != "edgespec"}
        return {**rest, "choices": told, "usage": self._total(bodies)}

    def opening(self) -> list[Json]:
        """See `Writer`."""
        return [
            _numbered(event, index)
            for index, one in enumerate(self._ones)
            for event in one.opening()
        ]

    def part(self, part: Part) -> list[Json]:
        """See `Writer`."""
        return [_numbered(event, part.choice) for event in self._ones[part.choice].part(part)]

    def closing(self, results: Sequence[GenerationResult]) -> list[Json]:
        """See `Writer`."""
        events = [
            _numbered(event, index)
            for index, (one, result) in enumerate(zip(self._ones, results, strict=True))
            for event in one.closing([result])
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
