"""The request bodies of Ollama's API, and their translation to those of OpenAI's.

Fields and defaults are those of https://docs.ollama.com/api. As with Ollama, unknown fields and
options are ignored, and so are those about loading a model, which is loaded already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from edgespec.api.llm import LLM
from edgespec.server.bodies import refusal
from edgespec.server.fields import LONG, Empty, Noted, Nothing, Text
from edgespec.server.ollama.messages import Json, OllamaMessage, OllamaTool, translated
from edgespec.server.refusals import RequestError
from edgespec.server.requests import ChatRequest, CompletionRequest, TextRequest

_UNLIMITED = -1
_TEMPERATURE, _TOP_K, _TOP_P = 0.8, 40, 0.9  # Ollama's defaults


class OllamaOptions(Noted):
    """The `options` of a text.

    `repeat_penalty` is 1 by default and covers the whole text, not only its last tokens.
    """

    num_predict: int | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: int | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-1, lt=1 << 64)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repeat_last_n: int | None = None
    presence_penalty: Nothing | None = None
    frequency_penalty: Nothing | None = None

    def as_openai(self) -> Json:
        """Returns the fields of OpenAI's API, with Ollama's defaults."""
        most, top_k = self.num_predict, _TOP_K if self.top_k is None else self.top_k
        penalized = self.repeat_last_n != 0
        return {
            "max_tokens": most if most is not None and most > 0 else _UNLIMITED,
            "temperature": _TEMPERATURE if self.temperature is None else self.temperature,
            "top_k": max(top_k, 0),
            "top_p": _TOP_P if self.top_p is None else self.top_p,
            "min_p": self.min_p,
            "seed": self.seed,
            "stop": self.stop,
            "repetition_penalty": self.repeat_penalty if penalized else None,
        }


class OllamaTextRequest(Noted, ABC):
    """Fields that `/api/chat` and `/api/generate` have in common."""

    model: Text
    stream: bool | None = None
    format: Literal["", "json"] | Json | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None

    @property
    def streamed(self) -> bool:
        """Whether the answer comes as a stream, which it does by default."""
        return self.stream is not False

    @property
    @abstractmethod
    def silent(self) -> bool:
        """Whether there is no prompt: with Ollama, the request then only loads the model."""

    def request(self, llm: LLM) -> TextRequest:
        """Translates the body.

        Raises:
            InputError: if the model's chat template refuses the messages.
            RequestError: if the text is not possible here.
        """
        fields = (self.options or OllamaOptions()).as_openai()
        try:
            return self._translated(llm, {**fields, "response_format": self._response_format})
        except ValidationError as error:
            raise refusal(error) from error

    @property
    def _response_format(self) -> Json | None:
        if self.format == "json":
            return {"type": "json_object"}
        if isinstance(self.format, dict):
            return {"type": "json_schema", "json_schema": {"schema": self.format}}
        return None

    @abstractmethod
    def _translated(self, llm: LLM, common: Json) -> TextRequest: ...


class OllamaChatRequest(OllamaTextRequest):
    """`POST /api/chat`."""

    messages: Annotated[list[OllamaMessage], LONG] | None = None
    tools: Annotated[list[OllamaTool], LONG] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def silent(self) -> bool:  # noqa: D102 - of the base class
        return not self.messages

    def _translated(self, llm: LLM, common: Json) -> ChatRequest:
        # The templates of hybrid models take a switch, others an effort.
        switch = "enable_thinking" if isinstance(self.think, bool) else "reasoning_effort"
        return ChatRequest.model_validate(
            {
                **common,
                switch: self.think,
                "messages": translated(self.messages or ()),
                "tools": [tool.model_dump(exclude_none=True) for tool in self.tools or ()],
                "logprobs": self.logprobs,
                "top_logprobs": self.top_logprobs,
            }
        )


class OllamaGenerateRequest(OllamaTextRequest):
    """`POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: Annotated[list[int], LONG] | None = None
    images: Empty | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    def silent(self) -> bool:  # noqa: D102
        return not (self.prompt or self.suffix)

    def _translated(self, llm: LLM, common: Json) -> CompletionRequest:
        if self.template:
            raise RequestError(
                400, "template is not supported: the model's own one is used, or none with raw",
                "unsupported", "template",
            )  # fmt: skip
        for name in ("system", "context"):
            if self.raw and getattr(self, name):
                raise RequestError(
                    400, f"{name} and raw are given: drop one, since a raw prompt is whole",
                    "invalid_value", name,
                )  # fmt: skip
        likeliest = (self.top_logprobs or 0) if self.logprobs else None
        plain = self.raw or self.suffix
        return CompletionRequest.model_validate(
            {
                **common,
                "prompt": (self.prompt or "") if plain else self._tokens(llm),
                "suffix": self.suffix or None,
                "logprobs": likeliest,
            }
        )

    def _tokens(self, llm: LLM) -> list[int]:
        """Returns the prompt as the model's chat template writes it, after the `context`."""
        system, prompt, before = self.system or "", self.prompt or "", self.context or []
        tokenizer = llm.tokenizer
        if tokenizer.has_chat_template:
            said = [{"role": "user", "content": prompt}]
            if system:
                said.insert(0, {"role": "system", "content": system})
            tokens = llm.chat_tokens(said)
        else:
            tokens = tokenizer.encode("\n\n".join(filter(None, (system, prompt))))
        if before and tokens[:1] == [tokenizer.bos_id]:  # a text begins only once
            tokens = tokens[1:]
        return [*before, *tokens]


class OllamaShowRequest(Noted):
    """`POST /api/show`; `name` is an older name of `model`."""

    model: str | None = None
    name: str | None = None
