"""The request bodies of OpenAI's API, and their conversion to texts."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from edgespec.api.llm import LLM
from edgespec.api.stream import TextStream
from edgespec.runtime.sampling.sampler import LEAST_TEMPERATURE
from edgespec.server.asked import SEEDS, Asked, Speculative
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
    unset,
)
from edgespec.server.refusals import RequestError, shown

_COMPLETION_TOKENS = 16  # default of a completion's max_tokens in OpenAI's API
_MAX_CHOICES = 128  # as in OpenAI's API
_SAMPLING = ("seed", "top_p", "top_k", "min_p", "repetition_penalty")


class JsonSchema(Fields):
    """A JSON schema in OpenAI's format. It is always enforced, whatever `strict` is."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Fields):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def structure(self) -> dict[str, Any]:
        """The generation option for this format.

        Raises:
            RequestError: if a schema is given with another type than json_schema, or is missing
                with that type.
        """
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise RequestError(
                400, f"response_format.type is {shown(self.type)}: give json_schema with the type "
                "'json_schema' and with no other", param="response_format",
            )  # fmt: skip
        if self.json_schema is not None:
            return {"json_schema": self.json_schema.schema_}
        return {"json_schema": {"type": "object"}} if self.type == "json_object" else {}


class TextRequest(Asked):
    """Fields that completions and chat have in common.

    Options that are not implemented are accepted with the value that has no effect.
    """

    max_tokens: Count | Unlimited | None = None
    n: Annotated[int, Field(ge=1, le=_MAX_CHOICES)] | None = None
    frequency_penalty: Nothing | None = None
    presence_penalty: Nothing | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    response_format: ResponseFormat | None = None

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return 1

    @property
    def choices(self) -> int:
        """The number of texts, of all prompts together."""
        return self.prompts * (self.n or 1)

    def texts(self, llm: LLM) -> list[TextStream]:  # noqa: D102 - of the base class
        count = self.n or 1
        if count == 1 or self.seed is None:
            return [self.begin(llm) for _ in range(count)]
        # Choices of the same seed would be the same text.
        seeds = ((self.seed + choice) % SEEDS for choice in range(count))
        return [self.model_copy(update={"seed": seed}).begin(llm) for seed in seeds]

    def begin(self, llm: LLM) -> TextStream:
        """Creates the stream of the text, without starting it.

        Raises:
            InputError: if the prompt is invalid, an option is out of range, or the draft source was
                not loaded.
            RequestError: if `response_format` or the log-probability options contradict themselves.
        """
        drafts = self.speculative or Speculative()
        given = {
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
            **given,
            **structure,
        )

    @property
    def _temperature(self) -> float:
        if self.temperature is None:
            return 1.0
        # Some clients, such as ragas, send 1e-8 for 0.
        return 0.0 if self.temperature < LEAST_TEMPERATURE else self.temperature

    @property
    @abstractmethod
    def tokens(self) -> int | None:
        """The maximum number of new tokens; None for as many as fit the context."""

    @property
    @abstractmethod
    def likeliest(self) -> int | None:
        """The number of likeliest tokens to report per token; None for no log-probabilities."""

    @abstractmethod
    def prompt_for(self, llm: LLM) -> str | list[int]:
        """Returns the prompt for the model."""


def _are_several(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


def _only(prompt: Any) -> Any:
    """Unpacks a list with one prompt."""
    return prompt[0] if _are_several(prompt) and len(prompt) == 1 else prompt


_ONE, _SEVERAL = "literal[one]", "literal[several]"  # no part of a field's name, see `bodies`
Several = Annotated[list[Text | Tokens], Field(max_length=_MAX_CHOICES, fail_fast=True)]
Prompts = Annotated[
    Annotated[Text | Tokens, Tag(_ONE)] | Annotated[Several, Tag(_SEVERAL)],
    Discriminator(lambda prompt: _SEVERAL if _are_several(prompt) else _ONE),
    BeforeValidator(_only, json_schema_input_type=Text | Tokens | Several),
]


class CompletionRequest(TextRequest):
    """`POST /v1/completions`."""

    prompt: Prompts
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

    @property
    def prompts(self) -> int:  # noqa: D102
        return len(self.prompt) if _are_several(self.prompt) else 1

    def texts(self, llm: LLM) -> list[TextStream]:  # noqa: D102
        if self.choices > _MAX_CHOICES:
            raise RequestError(
                400, f"n is {self.n} for {self.prompts} prompts: ask for {_MAX_CHOICES} choices in "
                "all at most", "invalid_value", "n",
            )  # fmt: skip
        if self.prompts == 1:
            return super().texts(llm)
        alone = [self.model_copy(update={"prompt": prompt}) for prompt in self.prompt]
        return [stream for each in alone for stream in each.texts(llm)]

    def prompt_for(self, llm: LLM) -> str | list[int]:  # noqa: D102
        return cast("str | list[int]", self.prompt)  # one, as `texts` asks for it


class _Part(Fields):
    """Base of messages and their parts, in which unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class TextContent(_Part):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(_Part):
    """A message of a conversation.

    The fields after `content` are not supported. They are accepted empty, since clients send
    answers back with them.
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
        """The message for chat templates; `developer` is OpenAI's newer name for `system`."""
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
    # Tools are not supported, but clients without tools may send these fields.
    tools: Empty | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    # A field for speculation on OpenAI's servers; no effect here.
    prediction: dict[str, Any] | None = None
    # Fields for models that were trained to follow them; no effect here.
    reasoning_effort: str | None = None
    verbosity: str | None = None
    # Fields that some clients send as null.
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
