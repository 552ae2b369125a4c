"""The request bodies of OpenAI's API, and their conversion to texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Discriminator, Field, Tag

from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.llm import LLM
from edgespec.llm.options import in_conversation
from edgespec.llm.stream import Stream
from edgespec.runtime.sampling.options import LEAST_TEMPERATURE
from edgespec.serve.bodies import (
    LONG,
    MESSAGES,
    Count,
    Empty,
    Fields,
    Int,
    Json,
    Off,
    One,
    Stop,
    Text,
    Tokens,
    Unlimited,
    Unset,
    option,
    unset,
)
from edgespec.serve.messages import (
    Message,
    PredictedOutput,
    ResponseFormat,
    ToolChoice,
    Tools,
    joined,
    tool_options,
)
from edgespec.serve.refusals import RequestError
from edgespec.serve.unsupported import NoValue, Unsupported
from edgespec.system.waiting import require_waiting

SEEDS = 1 << 64
LAST_TOKENS = 64
"""Default of `repeat_last_n` in llama.cpp and Ollama."""

_COMPLETION_TOKENS = 16  # default of a completion's max_tokens in OpenAI's API
_MAX_CHOICES = 128  # as in OpenAI's API
_GIVEN = (
    "seed", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "repeat_last_n", "regex", "grammar",
)  # fmt: skip


# Where -1 switches something off, as in vLLM.
_From0 = AfterValidator(lambda value: max(value, 0))
_Bias = Annotated[float, Field(ge=-100, le=100)]
# As llama.cpp has it; false is never.
Milliseconds = Annotated[float, Field(le=1e9)]
_Biases = Annotated[list[tuple[int, float | Literal[False]]], LONG]


class StreamOptions(Fields):
    """Options of a streamed response."""

    include_usage: bool | None = None
    include_obfuscation: Any = None  # chunks are never padded


class Speculative(Fields):
    """Draft options of a text, which never change it."""

    draft: str | None = None
    num_draft_tokens: Annotated[Int, option("num_assistant_tokens")] | None = None


class RequestBody(Unsupported, ABC):
    """What all requests for texts have: how they are sampled and drafted."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    seed: Annotated[Int, Field(ge=-1, lt=SEEDS), Unset] | None = None
    temperature: Annotated[float, option("temperature")] | None = None
    top_p: Annotated[float, option("top_p")] | None = None
    top_k: Annotated[Int, Field(ge=-1), _From0] | None = None
    min_p: Annotated[float, option("min_p")] | None = None
    repetition_penalty: Annotated[float, option("repetition_penalty")] | None = None
    speculative: Speculative | None = None
    regex: Annotated[str, option("regex")] | None = None
    grammar: Annotated[str, option("grammar")] | None = None
    stop_loops: bool | None = None
    prompt_cache_key: str | None = None
    # For storage, scheduling and caching on others' servers; whatever they hold has no effect here.
    cache_prompt: Any = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    moderation: Any = None

    @abstractmethod
    def texts(self, llm: LLM) -> list[Stream]:
        """Creates the streams of the texts, one for each choice, without starting them.

        Raises:
            InputError: if the prompt is invalid, an option is out of range, or the draft source was
                not loaded.
            RequestError: if fields contradict each other.
        """


class TextRequest(RequestBody):
    """Fields that completions and chat have in common."""

    # Here and in Ollama's API, and in llama.cpp's.
    max_tokens: Count | Unlimited | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "n_predict")
    )
    n: Annotated[Int, Field(ge=1, le=_MAX_CHOICES)] | None = None
    frequency_penalty: Annotated[float, option("frequency_penalty")] | None = None
    presence_penalty: Annotated[float, option("presence_penalty")] | None = None
    logit_bias: dict[str, _Bias] | _Biases | None = None
    response_format: ResponseFormat | None = None
    prediction: PredictedOutput | None = None
    # llama.cpp's name and window: all penalties then count the last tokens of prompt and text.
    repeat_penalty: Annotated[float, option("repetition_penalty")] | None = None
    repeat_last_n: Annotated[Int, option("repeat_last_n")] | None = None
    json_schema: Json | None = None
    t_max_predict_ms: Milliseconds | None = None
    # What only matters to samplers of llama.cpp's server that are not here.
    dynatemp_exponent: Any = None
    xtc_threshold: Any = None
    dry_base: Any = None
    dry_allowed_length: Any = None
    dry_penalty_last_n: Any = None
    dry_sequence_breakers: Any = None
    mirostat_tau: Any = None
    mirostat_eta: Any = None
    min_keep: Any = None
    # Samplers have a fixed order here, and slots are chosen by what they hold.
    samplers: Any = None
    id_slot: Any = None
    timings_per_token: Any = None
    return_progress: bool | None = None  # of the prompt, in a stream

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return 1

    @property
    def choices(self) -> int:
        """The number of texts, of all prompts together."""
        return self.prompts * (self.n or 1)

    def texts(self, llm: LLM) -> list[Stream]:  # noqa: D102 - of the base class
        drafts = self.speculative or Speculative()
        given = {name: value for name in _GIVEN if (value := getattr(self, name)) is not None}
        if (temperature := self._temperature) is not None:
            given["temperature"] = temperature
        first = self.ask(
            llm,
            stop=self.stop or (),
            max_new_tokens=self.tokens,
            logprobs=self.likeliest,
            draft_source=drafts.draft,
            num_assistant_tokens=drafts.num_draft_tokens,
            prediction=None if self.prediction is None else joined(self.prediction.content),
            **in_conversation(self.usual(llm), given | self._bias_and_window),
            stop_loops=bool(self.stop_loops),
            **self._structure,
            **self.further,
        )
        # Choices of the same seed would be the same text.
        seeds = (
            None if self.seed is None else (self.seed + choice) % SEEDS
            for choice in range(1, self.n or 1)
        )
        return [first, *map(first.again, seeds)]

    @abstractmethod
    def ask(self, llm: LLM, **options: Any) -> Stream:
        """Creates the stream of the text with these options of a text."""

    @property
    def _structure(self) -> Json:
        """The option for the form of the text."""
        asked = {} if self.response_format is None else self.response_format.structure
        if not self.json_schema:
            return asked
        if asked:
            raise RequestError(
                400, "json_schema and response_format are given: drop one", param="json_schema"
            )
        return {"json_schema": self.json_schema}

    @property
    def _bias_and_window(self) -> Json:
        given: Json = {}
        if self.logit_bias:
            bias = self.logit_bias
            pairs = bias.items() if isinstance(bias, dict) else bias
            given["logit_bias"] = [(id_, -inf if by is False else by) for id_, by in pairs]
        if self.repeat_penalty is not None and self.repetition_penalty is None:
            given["repetition_penalty"] = self.repeat_penalty
            if self.repeat_last_n is None:
                given["repeat_last_n"] = LAST_TOKENS
        return given

    @property
    def _temperature(self) -> float | None:
        """The temperature; None for the model's."""
        # Some clients, such as ragas, send 1e-8 for 0.
        tiny = self.temperature is not None and self.temperature < LEAST_TEMPERATURE
        return 0.0 if tiny else self.temperature

    def usual(self, llm: LLM) -> SamplingKeywords:
        """Returns how the text is sampled as far as the request does not say."""
        return llm.sampling

    @property
    @abstractmethod
    def tokens(self) -> int | None:
        """The maximum number of new tokens; None for as many as fit the context."""

    @property
    def likeliest(self) -> int | None:
        """The number of likeliest tokens to report per token; None for no log-probabilities."""
        return None

    @property
    def further(self) -> Json:
        """Further options of the text, perhaps of this route alone."""
        most = self.t_max_predict_ms
        return {"max_time": most / 1000} if most is not None and most > 0 else {}


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
        return len(self.prompt) if _are_several(self.prompt) else 1

    def texts(self, llm: LLM) -> list[Stream]:  # noqa: D102
        if self.choices > _MAX_CHOICES:
            raise RequestError(
                400,
                f"n is {self.n} for {self.prompts} prompts: ask for {_MAX_CHOICES} choices in "
                "all at most",
                "invalid_value",
                "n",
            )
        if self.prompts == 1:
            return super().texts(llm)
        streams = list[Stream]()
        for prompt in self.prompt:
            require_waiting()
            streams += self.model_copy(update={"prompt": prompt}).texts(llm)
        return streams

    def ask(self, llm: LLM, **options: Any) -> Stream:  # noqa: D102
        prompt = cast("str | list[int]", self.prompt)  # one, as `texts` asks for it
        if not self.suffix:
            return llm.stream(prompt, **options)
        if not isinstance(prompt, str):
            raise RequestError(
                400,
                "suffix goes with a prompt of text, not of tokens: give prompt as a string",
                param="suffix",
            )
        made = llm.infill_prompt(prompt, self.suffix, (), self.tokens)
        return llm.stream(made.tokens, stop_token_ids=made.stop_ids, **options)


class ChatRequest(TextRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], MESSAGES]
    max_completion_tokens: Count | Unlimited | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    modalities: list[Literal["text"]] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # For the chat template. `enable_thinking` is also a field of its own, as some clients send it.
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Json | None = None
    # The name in Qwen's API, then those in vLLM and in llama.cpp's server; -1 is no limit.
    thinking_budget: Annotated[Int, Field(ge=-1), Unset] | None = Field(
        None,
        validation_alias=AliasChoices(
            "thinking_budget", "thinking_token_budget", "thinking_budget_tokens"
        ),
    )
    # As in vLLM; without them, a last message of the assistant is continued.
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    # An older way to call tools, other kinds of answers, and what other servers do about thoughts.
    functions: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    audio: NoValue = None
    web_search_options: NoValue = None
    thinking: NoValue = None
    # For models that were trained to follow it; no effect here.
    verbosity: Any = None

    @property
    def tokens(self) -> int | None:  # noqa: D102
        return unset(self.max_completion_tokens or self.max_tokens)

    @property
    def likeliest(self) -> int | None:  # noqa: D102
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise RequestError(
                400,
                f"top_logprobs is {self.top_logprobs} without logprobs: give logprobs true",
                param="top_logprobs",
            )
        return None

    def ask(self, llm: LLM, **options: Any) -> Stream:  # noqa: D102
        goes_on = self.messages[-1].role == "assistant" and self.continue_final_message is not False
        if not goes_on and (self.continue_final_message or self.add_generation_prompt is False):
            raise RequestError(
                400,
                "there is nothing to continue: end messages with one of the assistant, or "
                "leave out continue_final_message and add_generation_prompt",
                "invalid_value",
                "messages",
            )
        tools = tool_options(self.tools, self.tool_choice, self.parallel_tool_calls)
        return llm.chat_stream(
            [message.plain for message in self.messages],
            template_options=self.template_options,
            thinking_budget=self.thinking_budget,
            continue_final_message=goes_on,
            **tools,
            **options,
        )

    @property
    def template_options(self) -> Json:
        """Variables for the chat template."""
        given: Json = {}
        if self.reasoning_effort is not None:
            given["reasoning_effort"] = self.reasoning_effort
            # What hybrid models of 2025 understand instead.
            given |= {"enable_thinking": False} if self.reasoning_effort == "none" else {}
        if self.enable_thinking is not None:
            given["enable_thinking"] = self.enable_thinking
        return given | (self.chat_template_kwargs or {})
