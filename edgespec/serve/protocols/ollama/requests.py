"""The request bodies of Ollama's API, and their translation to those of OpenAI's.

Fields and defaults are those of https://docs.ollama.com/api. As with Ollama, unknown fields and
options are passed over, and so are those about loading a model, which the server decides, and those
of samplers that are not here.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, PrivateAttr, ValidationError, field_validator

from edgespec.llm.embedding import Inputs
from edgespec.llm.llm import LLM
from edgespec.llm.stream import Stream
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.serve.protocols.chat import ChatRequest
from edgespec.serve.protocols.completions import CompletionRequest
from edgespec.serve.protocols.embeddings import EmbeddingResult
from edgespec.serve.protocols.fields import (
    LONG,
    Count,
    Fields,
    Int,
    Json,
    Stop,
    Text,
    Whole,
    option,
    refusal,
)
from edgespec.serve.protocols.protocol import TextBody
from edgespec.serve.protocols.shortening import ShortenedChatRequest, room_for_prompts
from edgespec.serve.protocols.text import LAST_TOKENS, TextRequest
from edgespec.serve.refusals import RequestError

_UNLIMITED = -1


class OllamaFunction(Fields):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Json | None = None


class OllamaTool(Fields):
    """A tool."""

    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaFunctionCall(Fields):
    """The function of a call, with its arguments as an object."""

    name: str
    arguments: Json | None = None


class OllamaCall(Fields):
    """A call in a message of the assistant."""

    id: str | None = None
    function: OllamaFunctionCall


class OllamaMessage(Fields):
    """A message of a conversation; images are files in base64."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], LONG] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Annotated[list[str], LONG] | None = None


def translated(messages: Sequence[OllamaMessage]) -> list[Json]:
    """Returns messages in OpenAI's API.

    There a result names the id of its call, which a client of Ollama's may leave out: then it is
    the result of the first call without one, of the same function if the message names one.
    """
    unanswered: list[Json] = []
    made = []
    for number, message in enumerate(messages):
        said: Json = {"role": message.role, "content": message.content or ""}
        if message.images:  # the kind of file is found in it
            urls = [f"data:image/png;base64,{each}" for each in message.images]
            shown: list[Json] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            said["content"] = [*shown, {"type": "text", "text": said["content"]}]
        if message.role == "assistant":
            calls = [
                _call(call, number, index) for index, call in enumerate(message.tool_calls or ())
            ]
            unanswered += calls
            said |= {"reasoning_content": message.thinking, "tool_calls": calls}
        elif message.role == "tool":
            answered = next((call for call in unanswered if _is_result(message, call)), None)
            if answered is not None:
                unanswered.remove(answered)
            id_ = message.tool_call_id if answered is None else answered["id"]
            said |= {"name": message.tool_name, "tool_call_id": id_}
        made.append(said)
    return made


def _call(call: OllamaCall, message: int, number: int) -> Json:
    # Some templates want ids of nine letters or digits.
    id_ = call.id or f"{message % 10**6:06}{number % 1000:03}"
    arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
    return ToolCall(id_, call.function.name, arguments).message


def _is_result(message: OllamaMessage, call: Json) -> bool:
    if message.tool_call_id is not None:
        return bool(message.tool_call_id == call["id"])
    return message.tool_name in (None, call["function"]["name"])


class OllamaOptions(Fields):
    """The `options` of a text; what is not given is as the model's authors ask."""

    num_predict: Int | None = None
    temperature: Annotated[float, option("temperature")] | None = None
    top_k: Int | None = None
    top_p: Annotated[float, option("top_p")] | None = None
    min_p: Annotated[float, option("min_p")] | None = None
    seed: Annotated[Int, Field(ge=-1, lt=1 << 64)] | None = None
    stop: Stop | None = None
    repeat_penalty: Annotated[float, option("repetition_penalty")] | None = None
    repeat_last_n: Annotated[Int, option("repeat_last_n")] | None = None
    presence_penalty: Annotated[float, option("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, option("frequency_penalty")] | None = None

    def as_openai(self) -> Json:
        """Returns the fields of OpenAI's API."""
        most = self.num_predict
        last = self.repeat_last_n
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        if last is None and any(each is not None for each in penalties):
            last = LAST_TOKENS
        limit = most if most is not None and most > 0 else _UNLIMITED
        alike = self.model_dump(exclude={"num_predict"})
        return {**alike, "max_tokens": limit, "repeat_last_n": last}


class OllamaTextRequest(TextBody):
    """Fields that `/api/chat` and `/api/generate` have in common."""

    model: Text
    stream: bool | None = True
    format: Literal["", "json"] | Json | None = None
    options: OllamaOptions | None = None
    think: bool | str | None = None
    keep_alive: Any = None
    logprobs: bool | None = None
    truncate: bool | None = None
    shift: Any = None  # a text ends where its context does

    _prompt: list[int] | None = PrivateAttr(None)

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
        request = self.request(llm)
        streams = request.texts(llm)
        plain = isinstance(getattr(request, "prompt", None), str)
        # Tokens alone would not be all of a prompt with images.
        self._prompt = None if plain or getattr(self, "images", None) else list(streams[0].prompt)
        return streams

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

    def _chat(self, common: Json, messages: Sequence[OllamaMessage], **further: Any) -> ChatRequest:
        # The templates of hybrid models take a switch, others an effort.
        switch = "enable_thinking" if isinstance(self.think, bool) else "reasoning_effort"
        asked = {switch: self.think, "messages": translated(messages), "logprobs": self.logprobs}
        kind = ChatRequest if self.truncate is False else ShortenedChatRequest
        return kind.model_validate({**common, **asked, **further})


class OllamaChatRequest(OllamaTextRequest):
    """`POST /api/chat`."""

    messages: Annotated[list[OllamaMessage], Field(max_length=10_000, fail_fast=True)] | None = None
    tools: Annotated[list[OllamaTool], LONG] | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None

    @property
    def only_loads(self) -> bool:  # noqa: D102 - of the base class
        return not self.messages

    def _translated(self, llm: LLM, common: Json) -> ChatRequest:
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        further = {"tools": tools, "top_logprobs": self.top_logprobs}
        return self._chat(common, self.messages or (), **further)


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

    def _translated(self, llm: LLM, common: Json) -> CompletionRequest | ChatRequest:
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
        plain = self.raw or self.suffix
        if self.images or (not (plain or self.context) and llm.tokenizer.has_chat_template):
            return self._conversation(common)
        likeliest = (self.top_logprobs or 0) if self.logprobs else None
        return CompletionRequest.model_validate(
            {
                **common,
                "prompt": (self.prompt or "") if plain else self._tokens(llm),
                "suffix": self.suffix or None,
                "logprobs": likeliest,
            }
        )

    def _conversation(self, common: Json) -> ChatRequest:
        """Returns the conversation of a prompt, whose answer may have images to go by or reason."""
        for name in ("suffix", "context"):
            if self.images and getattr(self, name):
                raise RequestError(
                    400,
                    f"{name} and images are given: drop one, and use /api/chat for "
                    "conversations with images",
                    "invalid_value",
                    name,
                )
        asked = OllamaMessage(role="user", content=self.prompt, images=self.images)
        before = [OllamaMessage(role="system", content=self.system)] if self.system else []
        likeliest = self.top_logprobs if self.logprobs else None
        return self._chat(common, [*before, asked], top_logprobs=likeliest)

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


class OllamaEmbedRequest(Fields):
    """`POST /api/embed`."""

    model: Text
    keep_alive: Any = None
    options: Any = None  # those of loading a model
    dimensions: Count | None = None
    input: str | Annotated[list[str], LONG] | None = None
    truncate: bool | None = None

    @property
    def cuts(self) -> bool:
        """Whether the end of a text that is too long is left out."""
        return self.truncate is not False

    @property
    def inputs(self) -> Inputs:
        """The texts; with none, the request only loads the model with Ollama."""
        return self.input if isinstance(self.input, list) else [self.input] if self.input else []

    def answer(self, found: EmbeddingResult, _model: str, nanoseconds: int) -> Json:
        """See `EmbeddingsRequest`."""
        return {
            "model": self.model,
            "embeddings": found.vectors.tolist(),
            "total_duration": nanoseconds,
            "load_duration": 0,
            "prompt_eval_count": found.tokens,
        }


class OllamaEmbeddingsRequest(Fields):
    """`POST /api/embeddings`, which came before `/api/embed`."""

    model: Text
    keep_alive: Any = None
    options: Any = None
    dimensions: Count | None = None
    prompt: str | None = None

    @property
    def inputs(self) -> Inputs:
        """See `OllamaEmbedRequest`."""
        return [self.prompt] if self.prompt else []

    def answer(self, found: EmbeddingResult, _model: str, _nanoseconds: int) -> Json:
        """See `EmbeddingsRequest`."""
        return {"embedding": found.vectors[0].tolist() if len(found.vectors) else []}
