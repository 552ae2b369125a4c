"""The result of a text: the text itself, its statistics and its times."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

from edgespec.errors import InputError
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.tools.calls import ToolCall


@dataclass(frozen=True)
class PromptProgress:
    """How much of a prompt the model has read.

    Attributes:
        read: number of its first tokens that were read, those of earlier texts among them.
        total: number of tokens in the prompt.
        reused: number of tokens that were read before this text.
        seconds: time since the text began, up to the last pass that read of the prompt.
    """

    read: int
    total: int
    reused: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """A finished text and its statistics.

    Attributes:
        text: new text, without the prompt.
        tokens: ids of the new tokens, including the one that ended the text.
        prompt_tokens: number of tokens in the prompt.
        new_tokens: number of new tokens.
        finish_reason: stop, tool_calls, loop, length, context or cancelled.
        seed: seed in use; the same seed gives the same text again.
        ttft_ms: time to the first token in ms.
        tpot_ms: time per further token in ms; 0 if there was none.
        tokens_per_second: speed after the first token; 0 if there was no further token.
        rounds: number of passes of the target after the prompt's.
        drafted: number of drafted tokens.
        accepted: number of drafted tokens that became text.
        mean_accepted_length: mean number of tokens per round; 0 if there was no round.
        begun: number of rounds whose draft was begun during the round before.
        draft: draft source.
        sources: number of rounds by the source that drafted them; planned drafts mix sources.
        draft_memory: what recycling started from: cold (nothing) or hot (earlier texts, or a
            file); None if recycling was not used.
        engine: engine that ran the target.
        exact: whether a row's result did not depend on the other rows of its call
            (docs/graph.md). Then the text equals plain decoding's token for token;
            otherwise it may differ at a near-tie.
        draft_engine: engine of the draft model; None if there was none.
        peak_rss_mb: peak resident memory of the process in MiB, file-backed pages included.
        reused: number of prompt tokens that were in the caches already, or in the prompt cache.
        logprobs: log-probabilities of the tokens up to the end of the text, so that they join to it
            and those of a stop string are left out; empty if they were not requested.
        accepted_prediction_tokens: number of tokens of the prediction that the text has where they
            were expected, whether or not they were drafted; None if no prediction was used.
        rejected_prediction_tokens: number of the prediction's other tokens.
        reasoning: reasoning of an answer in a conversation, which is not part of its text.
        reasoning_tokens: number of tokens of reasoning, without the marks around it.
        tool_calls: tool calls of an answer, complete ones only; nobody has executed them.
        cut_call: a last call whose arguments, `text`, were cut short; None if there is none.
        call_faults: what does not fit the schema of its tool, for each such call; there are none
            but with tools whose schemas a text cannot be held to.
        stop: the stop string that ended the text; None if none did.
        messages_left_out: number of the conversation's oldest messages that had no room, see
            `ChatOptions.context_shift`.
        json_class: see `parsed`; it is no field.
    """

    text: str
    tokens: list[int]
    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    seed: int
    ttft_ms: float
    tpot_ms: float
    tokens_per_second: float
    rounds: int
    drafted: int
    accepted: int
    mean_accepted_length: float
    begun: int
    draft: str
    sources: dict[str, int]
    draft_memory: str | None
    engine: str
    exact: bool
    draft_engine: str | None
    peak_rss_mb: float
    reused: int
    logprobs: tuple[TokenLogprobs, ...]
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    reasoning: str = ""
    reasoning_tokens: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    cut_call: ToolCall | None = None
    call_faults: tuple[str, ...] = ()
    stop: str | None = None
    messages_left_out: int = 0
    json_class: InitVar[Any] = None

    def __post_init__(self, json_class: Any) -> None:
        object.__setattr__(self, "_json_class", json_class)

    @property
    def parsed(self) -> Any:
        """The instance of the class that was given as `json_schema`; None if none was given.

        It is None, too, where an answer has tool calls instead.

        Raises:
            InputError: if the text was cut short.
            ValueError: pydantic's, if a validator of the class refuses what the text says.
        """
        kind = vars(self)["_json_class"]
        if kind is None or (self.tool_calls and not self.text):
            return None
        try:
            return kind.model_validate_json(self.text)
        except ValueError as error:
            if self.finish_reason == "stop":
                raise
            raise InputError(
                f"the text is only the beginning of a {kind.__name__} (finish_reason "
                f"{self.finish_reason!r}): raise max_new_tokens"
            ) from error

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, for the conversation that goes on behind it."""
        calls = [call.message for call in self.tool_calls]
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        more = {"tool_calls": calls} if calls else {}
        return {"role": "assistant", "content": self.text, **reasoning, **more}
