"""`POST /v1/chat/completions`: answers in conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from edgespec.llm.chat import ChatOptions
from edgespec.llm.llm import LLM
from edgespec.llm.request import GenerationRequest
from edgespec.llm.result import Result
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.decoder import CallEvent
from edgespec.serve.parts import Part
from edgespec.serve.protocols.choices import ChoicesAnswer
from edgespec.serve.protocols.fields import (
    MESSAGES,
    Count,
    Empty,
    Int,
    Json,
    Unlimited,
    Unset,
    unset,
)
from edgespec.serve.protocols.messages import Message
from edgespec.serve.protocols.text import TextRequest
from edgespec.serve.protocols.tools import NamedTool, Tools, ToolSubset, choice_of
from edgespec.serve.protocols.unsupported import NoValue
from edgespec.serve.refusals import RequestError


class ChatRequest(TextRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], MESSAGES]
    max_completion_tokens: Count | Unlimited | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    modalities: list[Literal["text"]] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | ToolSubset | None = None
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
    # Leaves out the oldest turns where all have no room, as llama.cpp's option of that name.
    context_shift: bool | None = None
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
        return likeliest_of(self.logprobs, self.top_logprobs)

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102
        goes_on = self.messages[-1].role == "assistant" and self.continue_final_message is not False
        if not goes_on and (self.continue_final_message or self.add_generation_prompt is False):
            raise RequestError(
                400,
                "there is nothing to continue: end messages with one of the assistant, or "
                "leave out continue_final_message and add_generation_prompt",
                "invalid_value",
                "messages",
            )
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        chosen = choice_of(self.tool_choice).options(tools, self.parallel_tool_calls)
        options = {
            **self.options(self.usual(llm)),
            **chosen,
            "template_options": self.template_options,
            "thinking_budget": self.thinking_budget,
            "continue_final_message": goes_on,
            "context_shift": self.context_shift,
        }
        messages = [message.plain for message in self.messages]
        return GenerationRequest(messages, ChatOptions(**options))

    @property
    def template_options(self) -> Json:
        """Variables for the chat template."""
        given = effort_options(self.reasoning_effort)
        if self.enable_thinking is not None:
            given["enable_thinking"] = self.enable_thinking
        return given | (self.chat_template_kwargs or {})


def likeliest_of(told: bool | None, number: int | None) -> int | None:
    """Returns how many likeliest tokens to report per token; None for no log-probabilities.

    Args:
        told: whether log-probabilities are asked for.
        number: how many.

    Raises:
        RequestError: if there is a number alone.
    """
    if told:
        return number or 0
    if number:
        raise RequestError(
            400,
            f"top_logprobs is {number} without logprobs: give logprobs true",
            param="top_logprobs",
        )
    return None


def effort_options(effort: str | None) -> Json:
    """Returns variables for the chat template that say how much the model thinks."""
    if effort is None:
        return {}
    # What hybrid models of 2025 understand instead.
    switch: Json = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **switch}


class ChatAnswer(ChoicesAnswer):
    """A response of `/v1/chat/completions`."""

    _prefix = "chatcmpl"
    _whole = "chat.completion"
    _chunk = "chat.completion.chunk"

    def opening(self) -> list[Json]:
        """Returns chunks with the role."""
        chunks = []
        for index in range(len(self._told)):
            choice = self._part_choice(Part("", (), (), index))
            choice["delta"]["role"] = "assistant"
            chunks.append(self._piece(choice))
        return chunks

    def _whole_choice(self, index: int, result: Result) -> Json:
        message: Json = {"role": "assistant", "content": result.text, "refusal": None}
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        cut = () if result.cut_call is None else (result.cut_call,)  # as a stream shows it
        if calls := (*result.tool_calls, *cut):
            message["content"] = result.text or None
            message["tool_calls"] = [call.message for call in calls]
        return {"index": index, "message": message, "logprobs": self._logprobs(result.logprobs)}

    def _part_choice(self, part: Part) -> Json:
        further = part.reasoning or part.calls
        delta: Json = {"content": part.text} if part.text or not further else {}
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.calls:
            delta["tool_calls"] = _call_deltas(part.calls)
        logprobs = self._logprobs(part.logprobs)
        return {"index": part.choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json | None:
        return {"content": self._texts.told(logprobs), "refusal": None} if logprobs else None


def _call_deltas(pieces: Sequence[CallEvent]) -> list[Json]:
    """Returns one delta for each call: older clients of OpenAI's keep a first list as it is."""
    deltas = dict[int, Json]()
    for piece in pieces:
        if piece.id is not None:
            function = {"name": piece.name, "arguments": piece.arguments}
            named = {"index": piece.index, "id": piece.id, "type": "function"}
            deltas[piece.index] = {**named, "function": function}
        elif piece.index in deltas:
            deltas[piece.index]["function"]["arguments"] += piece.arguments
        else:
            arguments = {"arguments": piece.arguments}
            deltas[piece.index] = {"index": piece.index, "function": arguments}
    return list(deltas.values())
