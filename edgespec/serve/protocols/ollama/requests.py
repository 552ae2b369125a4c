"""The request bodies of Ollama's API.

Fields and defaults are those of https://docs.ollama.com/api. As with Ollama, unknown fields and
options are passed over, and so are those about loading a model, which the server decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, PrivateAttr, field_validator

from edgespec.llm.chat import ChatOptions
from edgespec.llm.embedding import Embedder, Inputs
from edgespec.llm.llm import LLM
from edgespec.llm.options import GenerationOptions, in_conversation
from edgespec.llm.request import GenerationRequest
from edgespec.llm.shortening import room_for_prompts
from edgespec.llm.stream import Stream
from edgespec.serve.protocols.chat import effort_options, likeliest_of
from edgespec.serve.protocols.completions import continuation_request
from edgespec.serve.protocols.embeddings import EmbeddingResult, VectorBody
from edgespec.serve.protocols.fields import (
    LONG,
    Fields,
    Int,
    Json,
    Text,
    Whole,
)
from edgespec.serve.protocols.ollama.messages import OllamaMessage, OllamaTool, plain
from edgespec.serve.protocols.protocol import TextBody
from edgespec.serve.protocols.sampling import PenalizedSampling
from edgespec.serve.protocols.tools import ToolChoice
from edgespec.serve.refusals import RequestError


class OllamaOptions(PenalizedSampling):
    """The `options` of a text; what is not given is as the model's authors ask."""

    num_predict: Int | None = None

    @property
    def limit(self) -> int | None:
        """The maximum number of new tokens; None for as many as fit the context."""
        most = self.num_predict
        return most if most is not None and most > 0 else None

    @property
    def _are_of_last_tokens(self) -> bool:
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return any(each is not None for each in penalties)


class OllamaTextRequest(TextBody):
    """Fields that `/api/chat` and `/api/generate` have in common."""

    model: Text
    stream: bool | None = True
    format: Literal["", "json"] | Json | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    truncate: bool | None = None
    shift: Any = None  # a text ends where its context does

    _prompt: list[int] | None = PrivateAttr(None)

    @property
    def only_unloads(self) -> bool:  # noqa: D102 - of the base class
        return self.only_loads and self.keep_alive == 0

    @field_validator("stream")
    @classmethod
    def _streamed_by_default(cls, stream: bool | None) -> bool:
        return stream is not False

    @property
    def prompt_tokens(self) -> list[int] | None:
        """The tokens of the prompt, once it was made; with `raw` they are not told."""
        return self._prompt

    def texts(self, llm: LLM) -> list[Stream]:
        """See `TextBody`."""
        [stream] = super().texts(llm)
        self._prompt = list(stream.prompt) if self._tells_prompt else None
        return [stream]

    @property
    def _tells_prompt(self) -> bool:
        """Whether the tokens of the prompt are told."""
        return True

    def _options(self, llm: LLM, likeliest: int | None) -> Json:
        """Returns the options of the text."""
        options = self.options or OllamaOptions()
        found = in_conversation(llm.sampling, options.sampling)
        found |= {"max_new_tokens": options.limit, "logprobs": likeliest}
        if self.format:
            found["json_schema"] = {"type": "object"} if self.format == "json" else self.format
        return found

    def _answer(self, messages: Sequence[OllamaMessage], options: Json) -> GenerationRequest:
        """Returns the request for the answer in a conversation."""
        think = self.think
        # The templates of hybrid models take a switch, others an effort.
        variables = {"enable_thinking": think} if isinstance(think, bool) else effort_options(think)
        shifts = self.truncate is not False
        asked = {**options, "template_options": variables, "context_shift": shifts}
        return GenerationRequest(plain(messages), ChatOptions(**asked))


class OllamaChatRequest(OllamaTextRequest):
    """`POST /api/chat`."""

    messages: Annotated[list[OllamaMessage], Field(max_length=10_000, fail_fast=True)] | None = None
    tools: Annotated[list[OllamaTool], LONG] | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None

    @property
    def only_loads(self) -> bool:  # noqa: D102 - of the base class
        return not self.messages

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102
        options = self._options(llm, likeliest_of(self.logprobs, self.top_logprobs))
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return self._answer(self.messages or (), options | ToolChoice().options(tools))


class OllamaGenerateRequest(OllamaTextRequest):
    """`POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: Annotated[list[int], LONG, Whole] | None = None
    images: Annotated[list[str], LONG] | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=5)] | None = None

    @property
    def only_loads(self) -> bool:  # noqa: D102
        return not (self.prompt or self.suffix or self.images)

    @property
    def _tells_prompt(self) -> bool:
        # Tokens alone would not be all of a prompt with images.
        return not (self.raw or self.suffix or self.images)

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102
        self._require_sense()
        options = self._options(llm, (self.top_logprobs or 0) if self.logprobs else None)
        if self.raw or self.suffix:
            return continuation_request(llm, self.prompt or "", self.suffix, options)
        if self.images or (not self.context and llm.tokenizer.has_chat_template):
            asked = OllamaMessage(role="user", content=self.prompt, images=self.images)
            before = [OllamaMessage(role="system", content=self.system)] if self.system else []
            return self._answer([*before, asked], options)
        return GenerationRequest(self._tokens(llm), GenerationOptions(**options))

    def _require_sense(self) -> None:
        """Checks that no field contradicts another.

        Raises:
            RequestError: if one does.
        """
        if self.template:
            raise RequestError(
                400,
                "template is not supported: the model's own one is used, or none with raw",
                "unsupported",
                "template",
            )
        for name in ("system", "context", "images"):
            if self.raw and getattr(self, name):
                raise RequestError(
                    400,
                    f"{name} and raw are given: drop one, since a raw prompt is whole",
                    "invalid_value",
                    name,
                )
        for name in ("suffix", "context"):
            if self.images and getattr(self, name):
                raise RequestError(
                    400,
                    f"{name} and images are given: drop one, and use /api/chat for "
                    "conversations with images",
                    "invalid_value",
                    name,
                )

    def _tokens(self, llm: LLM) -> list[int]:
        """Returns the prompt as the model's chat template writes it, after the `context`."""
        system = self.system or ""
        prompt = self.prompt or ""
        before = self.context or []
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
        if self.truncate is not False and len(before) + len(tokens) >= llm.context_length:
            before = before[len(before) + len(tokens) - room_for_prompts(llm.context_length) :]
        return [*before, *tokens]


class OllamaShowRequest(Fields):
    """`POST /api/show`; `name` is an older name of `model`."""

    model: Text = Field(validation_alias=AliasChoices("model", "name"))


class OllamaEmbedRequest(VectorBody):
    """`POST /api/embed`."""

    model: Text
    options: Any = None  # those of loading a model
    input: str | Annotated[list[str], LONG] | None = None
    truncate: bool | None = None

    @property
    def inputs(self) -> Inputs:
        """The texts; with none, the request only loads the model with Ollama."""
        return self.input if isinstance(self.input, list) else [self.input] if self.input else []

    def tokens(self, embedder: Embedder) -> list[list[int]]:
        """See `VectorBody`; the end of a text that is too long is left out."""
        return embedder.tokens(self.inputs, cuts=self.truncate is not False)

    def answer(self, found: EmbeddingResult, _model: str, nanoseconds: int) -> Json:
        """See `VectorBody`."""
        return {
            "model": self.model,
            "embeddings": found.vectors.tolist(),
            "total_duration": nanoseconds,
            "load_duration": 0,
            "prompt_eval_count": found.tokens,
        }


class OllamaEmbeddingsRequest(VectorBody):
    """`POST /api/embeddings`, which came before `/api/embed`."""

    model: Text
    options: Any = None
    prompt: str | None = None

    @property
    def inputs(self) -> Inputs:
        """See `OllamaEmbedRequest`."""
        return [self.prompt] if self.prompt else []

    def answer(self, found: EmbeddingResult, _model: str, _nanoseconds: int) -> Json:
        """See `VectorBody`."""
        return {"embedding": found.vectors[0].tolist() if len(found.vectors) else []}
