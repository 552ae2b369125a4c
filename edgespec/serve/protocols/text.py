"""The request bodies of OpenAI's API, and their conversion to texts."""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, Field

from edgespec.llm.keywords import SamplingKeywords
from edgespec.llm.llm import LLM
from edgespec.llm.options import in_conversation
from edgespec.llm.stream import Stream
from edgespec.runtime.sampling.options import LEAST_TEMPERATURE
from edgespec.serve.protocols.fields import (
    LONG,
    Count,
    Fields,
    Int,
    Json,
    Stop,
    Unlimited,
    Unset,
    option,
)
from edgespec.serve.protocols.messages import (
    PredictedOutput,
    ResponseFormat,
    joined,
)
from edgespec.serve.protocols.protocol import TextBody
from edgespec.serve.protocols.unsupported import Unsupported
from edgespec.serve.refusals import RequestError

SEEDS = 1 << 64
LAST_TOKENS = 64
"""Default of `repeat_last_n` in llama.cpp and Ollama."""

MAX_CHOICES = 128  # as in OpenAI's API
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


class RequestBody(Unsupported, TextBody):
    """What all requests for texts have: how they are sampled and drafted."""

    model: str | None = None
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

    @property
    def cache_key(self) -> str | None:
        """See `TextBody`."""
        return self.prompt_cache_key or None


class TextRequest(RequestBody):
    """Fields that completions and chat have in common."""

    # Here and in Ollama's API, and in llama.cpp's.
    max_tokens: Count | Unlimited | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "n_predict")
    )
    n: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = None
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
