"""The request bodies of OpenAI's API, and their conversion to texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from edgespec.api.llm import LLM
from edgespec.api.stream import TextStream
from edgespec.runtime.deployment.options import MAX_DRAFT_TOKENS
from edgespec.runtime.sampling.sampler import LEAST_TEMPERATURE
from edgespec.server.fields import (
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
from edgespec.server.messages import Message
from edgespec.server.refusals import RequestError, shown
from edgespec.server.tools import ToolChoice, Tools, tool_options

_COMPLETION_TOKENS = 16  # default of a completion's max_tokens in OpenAI's API
_SAMPLING = ("seed", "top_p", "top_k", "min_p", "repetition_penalty")


class StreamOptions(Fields):
    """Options of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # chunks are never padded


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


class Speculative(Fields):
    """Draft options of a text, which never change it."""

    draft: str | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_TOKENS)] | None = None


class TextRequest(Fields, ABC):
    """Fields that completions and chat have in common.

    Options that are not implemented are accepted with the value that has no effect.
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
        return self.ask(
            llm,
            temperature=self._temperature,
            stop=() if self.stop is None else self.stop,
            max_new_tokens=llm.context_length if most is None else most,
            logprobs=self.likeliest,
            draft_source=drafts.draft,
            num_assistant_tokens=drafts.num_draft_tokens,
            **given,
            **structure,
        )

    def ask(self, llm: LLM, **options: Any) -> TextStream:
        """Creates the stream of the text with these options of a text."""
        return llm.stream(self.prompt_for(llm), **options)

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


def _only(prompt: Any) -> Any:
    """Unpacks a list with one prompt, which clients send that support several prompts."""
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


class ChatRequest(TextRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], SOME]
    max_completion_tokens: Count | Unlimited | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    modalities: list[Literal["text"]] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # For the chat template. `enable_thinking` is also a field of its own, as some clients send it.
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # The name in Qwen's API, then those in vLLM and in llama.cpp's server; -1 is no limit.
    thinking_budget: Annotated[int, Field(ge=-1), Unset] | None = Field(
        None,
        validation_alias=AliasChoices(
            "thinking_budget", "thinking_token_budget", "thinking_budget_tokens"
        ),
    )
    # An older way to call tools, which is not supported.
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    # Fields for storage, scheduling, caching and speculation on OpenAI's servers; no effect here.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    # For models that were trained to follow it; no effect here.
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

    def ask(self, llm: LLM, **options: Any) -> TextStream:  # noqa: D102
        tools = tool_options(self.tools, self.tool_choice, self.parallel_tool_calls)
        return llm.chat_stream(
            [message.plain for message in self.messages],
            template_options=self.template_options,
            thinking_budget=self.thinking_budget,
            **tools,
            **options,
        )

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables for the chat template."""
        given: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            given["reasoning_effort"] = self.reasoning_effort
            # What hybrid models of 2025 understand instead.
            given |= {"enable_thinking": False} if self.reasoning_effort == "none" else {}
        if self.enable_thinking is not None:
            given["enable_thinking"] = self.enable_thinking
        return given | (self.chat_template_kwargs or {})
