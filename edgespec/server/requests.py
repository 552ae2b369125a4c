"""What clients may send: the fields of a body, what they may hold, and what is made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from edgespec.api.llm import LLM
from edgespec.api.stream import TextStream
from edgespec.runtime.deployment.options import MAX_DRAFT_TOKENS
from edgespec.runtime.sampling.sampler import LEAST_TEMPERATURE
from edgespec.server.fields import (
    LONG,
    SOME,
    Count,
    Empty,
    Fields,
    Nothing,
    Off,
    One,
    Text,
    Tokens,
    Unlimited,
    Unset,
    unset,
)
from edgespec.server.refusals import RequestError, shown

# What a completion has where nothing is said, in OpenAI's API.
_COMPLETION_TOKENS = 16
_SAMPLING = ("seed", "top_p", "top_k", "min_p", "repetition_penalty")


class StreamOptions(Fields):
    """Of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # chunks are never padded


class JsonSchema(Fields):
    """A schema, as OpenAI wraps it. It always holds, so that `strict` changes nothing."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Fields):
    """What the answer is written in."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def structure(self) -> dict[str, Any]:
        """As an option of a text.

        Raises:
            RequestError: if there is a schema where none is asked for, or the other way round.
        """
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise RequestError(
                400, f"response_format.type is {shown(self.type)}: give json_schema with "
                "'json_schema' and with nothing else", param="response_format",
            )  # fmt: skip
        if self.json_schema is not None:
            return {"json_schema": self.json_schema.schema_}
        return {"json_schema": {"type": "object"}} if self.type == "json_object" else {}


class Speculative(Fields):
    """How this text is drafted, which never changes it."""

    draft: str | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)] | None = None


class TextRequest(Fields, ABC):
    """What both kinds of texts have.

    What would change the text and is not implemented may have the value that changes nothing.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-1, lt=1 << 64), Unset] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1), Unset] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    max_tokens: Count | Unlimited | None = None
    speculative: Speculative | None = None
    user: str | None = None
    cache_prompt: bool | None = None
    n: One | None = None
    frequency_penalty: Nothing | None = None
    presence_penalty: Nothing | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    grammar: str | None = None

    def begin(self, llm: LLM) -> TextStream:
        """The text, not begun.

        Raises:
            InputError: if the model cannot take the prompt, an option is out of its range, or a
                draft is wanted that was not loaded.
            RequestError: if a schema is given where none is asked for, or the other way round; if
                likely tokens are asked for without log-probabilities.
        """
        drafts = self.speculative or Speculative()
        said = {
            name: value
            for name in (*_SAMPLING, "regex", "grammar")
            if (value := getattr(self, name)) is not None
        }
        structure = {} if self.response_format is None else self.response_format.structure
        most = self.tokens
        return llm.stream(
            self.prompt_for(llm),
            temperature=self._temperature,
            stop=() if self.stop is None else self.stop,
            max_new_tokens=llm.context_length if most is None else most,
            logprobs=self.likeliest,
            draft_source=drafts.draft,
            num_assistant_tokens=drafts.num_draft_tokens,
            **said,
            **structure,
        )

    @property
    def _temperature(self) -> float:
        if self.temperature is None:
            return 1.0
        # Some clients, ragas among them, write 1e-8 where they mean 0.
        return 0.0 if self.temperature < LEAST_TEMPERATURE else self.temperature

    @property
    @abstractmethod
    def tokens(self) -> int | None:
        """To make at most; None: as many as the context holds."""

    @property
    @abstractmethod
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens to report with each; None: no log-probability."""

    @abstractmethod
    def prompt_for(self, llm: LLM) -> str | list[int]:
        """What the model goes on from."""


def _only(prompt: Any) -> Any:
    """The prompt in a list of prompts, as clients send it that could send several."""
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], str | list):
        return prompt
    if len(prompt) > 1:
        raise PydanticCustomError("several", "Send one prompt at a time")
    return prompt[0]


Alone = Annotated[list[Text | Tokens], Field(min_length=1, max_length=1)]
Prompt = Annotated[
    Text | Tokens, BeforeValidator(_only, json_schema_input_type=Text | Tokens | Alone)
]


class CompletionRequest(TextRequest):
    """`POST /v1/completions`."""

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: One | None = None
    echo: Off | None = None
    suffix: Literal[""] | None = None

    @property
    def tokens(self) -> int | None:  # noqa: D102 - of the base class
        return _COMPLETION_TOKENS if self.max_tokens is None else unset(self.max_tokens)

    @property
    def likeliest(self) -> int | None:  # noqa: D102
        return self.logprobs

    def prompt_for(self, llm: LLM) -> str | list[int]:  # noqa: D102
        return self.prompt


class _Part(Fields):
    """What clients also note in messages, and in their parts, asks for nothing."""

    model_config = ConfigDict(extra="ignore")


class TextContent(_Part):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(_Part):
    """One of a conversation.

    The last fields would change the text, or hold some of it. Answers have them with nothing in
    them, and so they come back.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str | Annotated[list[TextContent], LONG] | None, Field(validate_default=True)
    ] = None
    refusal: None = None
    audio: None = None
    images: Empty | None = None
    function_call: None = None
    tool_calls: Empty | None = None
    prefix: Off | None = None

    @field_validator("content")
    @classmethod
    def _said(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and info.data.get("role") != "assistant":
            raise PydanticCustomError("silent", "Only an answer's content may be null")
        return content

    @property
    def plain(self) -> dict[str, str]:
        """As chat templates have it; `developer` is OpenAI's newer word for `system`."""
        text = self.content or ""
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(TextRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], SOME]
    max_completion_tokens: Count | Unlimited | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    modalities: list[Literal["text"]] | None = None
    # There are no tools, but clients without any may say so, and what to do with them.
    tools: Empty | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    # What OpenAI's servers keep, queue and guess by; no text depends on it.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    # How models answer that have learned to be told.
    reasoning_effort: str | None = None
    verbosity: str | None = None
    # What some clients say that they do not want.
    audio: None = None
    moderation: None = None
    web_search_options: None = None

    @property
    def tokens(self) -> int | None:  # noqa: D102
        return unset(self.max_completion_tokens or self.max_tokens)

    @property
    def likeliest(self) -> int | None:  # noqa: D102
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise RequestError(
                400, f"top_logprobs is {self.top_logprobs} without logprobs: give logprobs true",
                param="top_logprobs",
            )  # fmt: skip
        return None

    def prompt_for(self, llm: LLM) -> list[int]:  # noqa: D102
        return llm.chat_tokens([message.plain for message in self.messages])
