"""The bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`.

https://platform.claude.com/docs/en/api/messages describes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, Tag

from edgespec.llm.chat import ChatOptions
from edgespec.llm.llm import LLM
from edgespec.llm.options import in_conversation
from edgespec.llm.request import GenerationRequest
from edgespec.serve.protocols.anthropic.blocks import BlockMessage, System, messages_of_blocks
from edgespec.serve.protocols.chat import effort_options
from edgespec.serve.protocols.fields import (
    LONG,
    MESSAGES,
    Count,
    Fields,
    Json,
    Stop,
    Text,
    member,
)
from edgespec.serve.protocols.messages import kinds
from edgespec.serve.protocols.protocol import TextBody
from edgespec.serve.protocols.sampling import Sampling
from edgespec.serve.protocols.text import Speculative
from edgespec.serve.protocols.tools import Name, OwnTool, ToolChoice, own_kinds_left_out
from edgespec.serve.served_model import ServedModel


class CustomTool(Fields):
    """A tool that the model may call."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: Json

    @property
    def described(self) -> Json:
        """The tool as `LLM.chat` takes it."""
        told = {"description": self.description} if self.description else {}
        function = {"name": self.name, **told, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class OpenChoice(Fields):
    """Whether the model may, must or must not call a tool."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None

    @property
    def choice(self) -> ToolChoice:
        """What is chosen."""
        return ToolChoice("required" if self.type == "any" else self.type)


class NamedChoice(Fields):
    """The tool that the model must call."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None

    @property
    def choice(self) -> ToolChoice:
        """What is chosen."""
        return ToolChoice(self.name, [self.name])


AnyChoice = Annotated[
    Annotated[OpenChoice, Tag(member("auto"))]
    | Annotated[OpenChoice, Tag(member("any"))]
    | Annotated[OpenChoice, Tag(member("none"))]
    | Annotated[NamedChoice, Tag(member("tool"))],
    kinds("auto", "any", "none", "tool", what="a choice"),
]
"""What the model chooses of its tools, by its `type`."""


class Thinking(Fields):
    """Whether the model thinks before it answers, and how much."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Count | None = None


class OutputFormat(Fields):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: Annotated[Json, Field(alias="schema")]


class OutputConfig(Fields):
    """How much the model does, and the form of its answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class ConversationBody(Fields):
    """What is asked, as both routes have it."""

    model: Text
    messages: Annotated[list[BlockMessage], MESSAGES]
    system: System | None = None
    tools: (
        Annotated[list[CustomTool], LONG, own_kinds_left_out(list[CustomTool | OwnTool], "custom")]
        | None
    ) = None
    tool_choice: AnyChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    # Its name before; the newer one wins.
    output_format: OutputFormat | None = None
    # What matters on Anthropic's servers alone.
    metadata: Any = None
    service_tier: Any = None
    container: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    inference_geo: Any = None

    @property
    def conversation(self) -> list[Json]:
        """The messages, as `LLM.chat` takes them."""
        return messages_of_blocks(self.system, self.messages)

    @property
    def answering(self) -> Json:
        """The options of the answer that change its prompt."""
        config = self.output_config or OutputConfig()
        form = config.format or self.output_format
        chosen = self.tool_choice
        parallel = None if chosen is None else not chosen.disable_parallel_tool_use
        choice = ToolChoice() if chosen is None else chosen.choice
        structure: Json = {} if form is None else {"json_schema": form.schema_}
        return {
            "template_options": effort_options(config.effort) | self._thinks,
            **structure,
            **choice.options([tool.described for tool in self.tools or ()], parallel),
        }

    @property
    def _thinks(self) -> Json:
        """The variable of chat templates for whether the model thinks; none as it does usually."""
        return (
            {} if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        )


class MessagesRequest(ConversationBody, Sampling, TextBody):
    """`POST /v1/messages`."""

    max_tokens: Count
    stop: Stop | None = Field(None, validation_alias=AliasChoices("stop_sequences", "stop"))
    speculative: Speculative | None = None

    def request(self, llm: LLM) -> GenerationRequest:  # noqa: D102 - of the base class
        drafts = self.speculative or Speculative()
        options = {
            **in_conversation(llm.sampling, self.sampling),
            "max_new_tokens": self.max_tokens,
            "draft_source": drafts.draft,
            "num_assistant_tokens": drafts.num_draft_tokens,
            "thinking_budget": None if self.thinking is None else self.thinking.budget_tokens,
            **self.answering,
        }
        return GenerationRequest(self.conversation, ChatOptions(**options))


class CountRequest(ConversationBody):
    """`POST /v1/messages/count_tokens`."""


def count_tokens(body: CountRequest, model: ServedModel) -> Json:
    """Returns the number of tokens of a conversation, with its tools and images.

    Raises:
        InputError: as `LLM.chat`; a conversation may be some times as long as the context.
    """
    prompt = model.counting.prepare(body.conversation, ChatOptions(**body.answering))
    return {"input_tokens": len(prompt.tokens)}
