"""`POST /v1/completions`: texts that go on from prompts."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Discriminator, Field, Tag

from edgespec.llm.at_once import are_prompts
from edgespec.llm.llm import LLM
from edgespec.llm.options import GenerationOptions
from edgespec.llm.request import GenerationRequest
from edgespec.llm.result import Result
from edgespec.llm.stream import Stream
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.serve.parts import Part
from edgespec.serve.protocols.choices import ChoicesAnswer
from edgespec.serve.protocols.fields import Int, Json, Off, One, Text, Tokens, member, unset
from edgespec.serve.protocols.protocol import Origin
from edgespec.serve.protocols.text import MAX_CHOICES, TextRequest
from edgespec.serve.protocols.token_texts import key_of
from edgespec.serve.refusals import RequestError
from edgespec.system.jobs import require_waiter

_COMPLETION_TOKENS = 16  # default of a completion's max_tokens in OpenAI's API


def _only(prompt: Any) -> Any:
    """Unpacks a list with one prompt."""
    return prompt[0] if are_prompts(prompt) and len(prompt) == 1 else prompt


_ONE = member("one prompt")
_SEVERAL = member("several prompts")
Several = Annotated[list[Text | Tokens], Field(max_length=MAX_CHOICES, fail_fast=True)]
Prompts = Annotated[
    Annotated[Text | Tokens, Tag(_ONE)] | Annotated[Several, Tag(_SEVERAL)],
    Discriminator(lambda prompt: _SEVERAL if are_prompts(prompt) else _ONE),
    BeforeValidator(_only, json_schema_input_type=Text | Tokens | Several),
]


class CompletionRequest(TextRequest):
    """`POST /v1/completions`."""

    prompt: Prompts
    logprobs: Annotated[Int, Field(ge=0, le=5)] | None = None
    best_of: One | None = None
    echo: Off | None = None
    suffix: str | None = None  # what follows the text; an empty one is none

    @property
    def tokens(self) -> int | None:  # noqa: D102 - of the base class
        return _COMPLETION_TOKENS if self.max_tokens is None else unset(self.max_tokens)

    @property
    def likeliest(self) -> int | None:  # noqa: D102
        return self.logprobs

    @property
    def prompts(self) -> int:  # noqa: D102
        return len(self.prompt) if are_prompts(self.prompt) else 1

    def texts(self, llm: LLM) -> list[Stream]:  # noqa: D102
        if self.choices > MAX_CHOICES:
            raise RequestError(
                400,
                f"n is {self.n} for {self.prompts} prompts: ask for {MAX_CHOICES} choices in "
                "all at most",
                "invalid_value",
                "n",
            )
        if self.prompts == 1:
            return super().texts(llm)
        streams = list[Stream]()
        for prompt in self.prompt:
            require_waiter()
            streams += self.model_copy(update={"prompt": prompt}).texts(llm)
        return streams

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102
        prompt = cast("str | list[int]", self.prompt)  # one, as `texts` asks for it
        return continuation_request(llm, prompt, self.suffix, self.options(self.usual(llm)))


def continuation_request(
    llm: LLM, prompt: str | list[int], suffix: str | None, options: Json
) -> GenerationRequest:
    """Returns the request for the text that goes on from a prompt.

    Args:
        llm: model to use.
        prompt: text or tokens.
        suffix: what follows the text, behind a prompt of text; an empty one is none.
        options: see `GenerationOptions`.

    Raises:
        InputError: if an option is out of range, or the model cannot fill in.
        RequestError: if a suffix follows tokens.
    """
    if not suffix:
        return GenerationRequest(prompt, GenerationOptions(**options))
    if not isinstance(prompt, str):
        raise RequestError(
            400,
            "suffix goes with a prompt of text, not of tokens: give prompt as a string",
            param="suffix",
        )
    made = llm.infill_prompt(prompt, suffix, (), options["max_new_tokens"])
    ended = options | {"stop_token_ids": made.stop_ids}
    return GenerationRequest(made.tokens, GenerationOptions(**ended))


class CompletionAnswer(ChoicesAnswer):
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
        names = [key_of(name) for _, name in parts]
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
