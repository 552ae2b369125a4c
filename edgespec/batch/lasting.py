"""The server's answers, without what depends on when a batch was begun and how often it stopped.

Their ids are hashes, their times the time of the input, and they have no statistics of drafts and
caches, so that the same input always has the same output.
"""

from __future__ import annotations

import hashlib
import string
from dataclasses import dataclass, replace

from edgespec.api.result import GenerationResult
from edgespec.server.bodies import Json

_CALL_ID = 9  # characters, of which templates of Mistral want as many


@dataclass(frozen=True)
class Lasting:
    """What makes the answer to one line lasting.

    Attributes:
        batch: key of the batch.
        line: number of the line.
        created: time of all answers, in seconds since 1970.
    """

    batch: str
    line: int
    created: int

    @property
    def name(self) -> str:
        """The hash that the answer's ids end with."""
        return hashed(self.batch, self.line)

    def result(self, result: GenerationResult) -> GenerationResult:
        """Returns a text whose tool calls have ids that follow from the input."""
        calls = (
            replace(call, id=self._part(place)[:_CALL_ID])
            for place, call in enumerate(result.tool_calls)
        )
        return replace(result, tool_calls=tuple(calls))

    def answer(self, answer: Json, seed: int) -> Json:
        """Returns the lasting form of what a `Writer` wrote.

        Args:
            answer: the whole answer, with the tool calls of `result`.
            seed: seed of the text.
        """
        response = answer["object"] == "response"
        changes = self._of_response(answer) if response else self._of_choices(answer)
        return answer | changes | {"id": _named(answer, self.name), "edgespec": {"seed": seed}}

    def _of_choices(self, answer: Json) -> Json:
        """Returns the changes to a completion or a chat's answer."""
        usage = {
            name: value
            for name, value in answer["usage"].items()
            if name != "prompt_tokens_details"
        }
        return {"created": self.created, "usage": usage}

    def _of_response(self, answer: Json) -> Json:
        """Returns the changes to a response; clients need its numbers of cached tokens, as 0."""
        cached = answer["usage"]["input_tokens_details"]
        usage = answer["usage"] | {"input_tokens_details": dict.fromkeys(cached, 0)}
        items = [
            item | {"id": _named(item, self._part(place))}
            for place, item in enumerate(answer["output"])
        ]
        times: Json = {
            name: self.created for name in ("created_at", "completed_at") if name in answer
        }
        return {"output": items, "usage": usage, **times}

    def _part(self, place: int) -> str:
        """Returns the hash for a part of the answer."""
        return hashed(self.batch, f"{self.line}:{place}")


def hashed(batch: str, name: object) -> str:
    """Returns what stands for a line of a batch, or for something of it, in ids."""
    return hashlib.sha256(f"{batch}:{name}".encode()).hexdigest()[:32]


def _named(named: dict[str, str], name: str) -> str:
    """Returns an id of the same kind, such as `msg_` or `chatcmpl-`, with another name."""
    return named["id"].rstrip(string.hexdigits) + name
