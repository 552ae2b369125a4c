"""`POST /infill`: the text at a cursor, asked for as llama.vscode and llama.vim ask llama-server.

Fields and answers are those of llama-server's documentation (llama.cpp, tools/server/README.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.llm import LLM
from edgespec.llm.options import GenerationOptions
from edgespec.llm.request import GenerationRequest
from edgespec.llm.result import Result
from edgespec.serve.parts import Part
from edgespec.serve.protocols.fields import LONG, Count, Fields, Int, Json, Unlimited
from edgespec.serve.protocols.protocol import Answer, Origin
from edgespec.serve.protocols.text import TextRequest
from edgespec.serve.protocols.unsupported import NeutralOne, NeutralZero


class ExtraFile(Fields):
    """A part of another file."""

    text: str
    filename: str = "file"


class InfillRequest(TextRequest):
    """`POST /infill`. Without a temperature it is greedy."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], LONG] | None = None
    prompt: str | None = None
    max_tokens: Count | Unlimited | None = None
    n_predict: Annotated[Int, Field(ge=-1)] | None = None
    n_indent: Annotated[Int, Field(ge=0)] | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], LONG] | None = None
    t_max_prompt_ms: Any = None  # without effect: prompts are read to their ends
    n: NeutralOne = None
    n_probs: NeutralZero = None

    # Known once the prompt was made.
    _left_out: int = PrivateAttr(0)
    _ends: frozenset[int] = PrivateAttr(frozenset())

    @property
    def tokens(self) -> int | None:  # noqa: D102 - of the base class
        asked = self.max_tokens if self.n_predict is None else self.n_predict
        if asked is None or asked == -1:
            return None
        return max(asked, 1)  # even a text without tokens reads the prompt

    def options(self, usual: SamplingKeywords) -> Json:  # noqa: D102
        return super().options(usual) | {"min_indent": self.n_indent or 0}

    @property
    def silent(self) -> bool:
        """Whether only the prompt is to be read."""
        return self.n_predict == 0

    @property
    def left_out(self) -> int:
        """The number of tokens that had no room in the prompt."""
        return self._left_out

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end the text."""
        return self._ends

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102
        made = llm.infill_prompt(
            self.input_prefix + (self.prompt or ""),
            self.input_suffix,
            [(each.filename, each.text) for each in self.input_extra or ()],
            self.tokens,
        )
        self._left_out = made.left_out
        self._ends = frozenset((*made.stop_ids, *llm.bundle.target.eos_ids))
        options = self.options(self.usual(llm)) | {"stop_token_ids": made.stop_ids}
        return GenerationRequest(made.tokens, GenerationOptions(**options))

    def usual(self, llm: LLM) -> SamplingKeywords:  # noqa: D102
        return {}


class InfillAnswer(Answer):
    """An answer of `/infill`."""

    last = ()

    def __init__(self, body: InfillRequest, origin: Origin) -> None:
        self._body = body
        self._origin = origin
        self._facts = {
            "index": 0,
            "model": origin.model,
            "system_fingerprint": origin.fingerprint,
        }

    def whole(self, results: Sequence[Result]) -> Json:
        """See `Answer`."""
        [result] = results
        return self._final(result, "" if self._body.silent else result.text)

    def part(self, part: Part) -> list[Json]:
        """See `Answer`."""
        content = "" if self._body.silent else part.text
        return [{"index": 0, "content": content, "stop": False}]

    def closing(self, results: Sequence[Result]) -> list[Json]:
        """See `Answer`."""
        [result] = results
        return [self._final(result, "")]

    def _final(self, result: Result, content: str) -> Json:
        made = 0 if self._body.silent else result.new_tokens
        answer = {
            **self._facts,
            "content": content,
            "tokens": result.tokens[:made] if self._body.return_tokens else [],
            "stop": True,
            "stop_type": self._stop_type(result),
            "has_new_line": "\n" in result.text and not self._body.silent,
            "truncated": result.finish_reason == "context",
            "tokens_predicted": made,
            "tokens_evaluated": result.prompt_tokens,
            "tokens_cached": result.reused,
            "timings": _timings(result, made),
            "edgespec": {**self._origin.statistics(result), "left_out": self._body.left_out},
        }
        fields = self._body.response_fields
        return _selected(answer, fields) if fields else answer

    def _stop_type(self, result: Result) -> str:
        if result.finish_reason != "stop" or self._body.silent:
            return "limit"
        if result.tokens[-1:] and result.tokens[-1] in self._body.ends:
            return "eos"
        return "word" if self._body.stop else "limit"


def _timings(result: Result, made: int) -> Json:
    read = result.prompt_tokens - result.reused
    timings = {
        "cache_n": result.reused,
        "prompt_n": read,
        "prompt_ms": result.ttft_ms,
        "prompt_per_token_ms": result.ttft_ms / read,
        "prompt_per_second": 1000 * read / result.ttft_ms if result.ttft_ms else 0.0,
        "predicted_n": made,
        "predicted_ms": result.tpot_ms * max(made - 1, 0),
        "predicted_per_token_ms": result.tpot_ms,
        "predicted_per_second": result.tokens_per_second,
    }
    if result.drafted:
        timings |= {"draft_n": result.drafted, "draft_n_accepted": result.accepted}
    return timings


def _selected(answer: Json, fields: list[str]) -> Json:
    """Returns the fields that exist of those that were asked for, by the names in the request.

    A name as `timings/prompt_n` is that of a field in an object.
    """
    found: Json = {}
    for field in fields:
        value: Any = answer
        for name in field.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[field] = value
    return found
