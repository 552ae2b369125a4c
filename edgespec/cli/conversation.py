"""A conversation in a terminal: its messages, how they are answered, and the answers."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

from edgespec.cli.answering import answer_events, say, show
from edgespec.cli.arguments import reader
from edgespec.cli.echo import echo_off
from edgespec.cli.interrupts import cancelled_by_sigint
from edgespec.cli.spellings import SETTINGS_INSTEAD, SETTINGS_OF_OLLAMA
from edgespec.errors import EdgespecError, InputError
from edgespec.llm.options import GenerationOptions, in_conversation
from edgespec.system.options import Option, kinds_of, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.cli.chat_files import Message
    from edgespec.cli.tool_calls import ToolUse
    from edgespec.llm.llm import LLM
    from edgespec.llm.result import Result
    from edgespec.llm.stream import Stream

_THOUGHTS = "thoughts"  # what is set besides options of an answer
_OTHERS = ("stop", "json_schema")  # options that are set though they are no plain values
_SWITCHES = {bool, NoneType}  # types of options that are not set


class AnswerSettings:
    """Options of the answers, as they were given and then set.

    Args:
        llm: the model.
        given: options of `GenerationOptions` by name.

    Attributes:
        thoughts: whether all reasoning is shown, in place of a line.
    """

    def __init__(self, llm: LLM, given: Mapping[str, Any]) -> None:
        from edgespec.llm.chat import ChatOptions

        self.thoughts = False
        self._usual = llm.sampling
        self._given = dict(given)
        self._kind = ChatOptions if llm.tokenizer.has_chat_template else GenerationOptions

    @property
    def options(self) -> dict[str, Any]:
        """Options of the next answer."""
        return in_conversation(self._usual, self._given)

    def vary(self) -> None:
        """Lets an answer that is made again be made of other random choices."""
        if self._given.get("seed") is not None:
            self._given["seed"] += 1

    def told(self) -> str:
        """Returns all that is set, in a line."""
        thoughts = "on" if self.thoughts else "off"
        given = {name: value for name, value in self.options.items() if value not in (None, [], "")}
        told = (f"{name} {value}" for name, value in given.items())
        return "; ".join([*told, f"{_THOUGHTS} {thoughts}"])

    def change(self, name: str, value: str) -> str:
        """Sets an option as it was typed; returns what it is now.

        Raises:
            InputError: if there is none of that name, or the value is out of range.
        """
        name = SETTINGS_OF_OLLAMA.get(name, name)
        if name == _THOUGHTS:
            Option("", choices=("on", "off")).check(name, value, (str,))
            self.thoughts = value == "on"
            return f"{name} {value}"
        plain = (each for each, kinds in kinds_of(self._kind).items() if {*kinds} - _SWITCHES)
        known = [*plain, *_OTHERS]
        if name not in known and (how := SETTINGS_INSTEAD.get(name.removeprefix("no"))):
            raise InputError(f"there is no option {name}: {how}")
        if name not in known:
            raise InputError(unknown(name, [_THOUGHTS, *known]))
        try:
            found = {name: reader(self._kind, name)(value)}
        except OSError as error:
            raise InputError(f"{name} is {value!r}: {error.strerror}") from error
        self._kind.of(self._given | found)
        self._given |= found
        return f"{name} {value}"


class Conversation:
    """The messages so far, and the session with the model's caches for them.

    Args:
        llm: the model.
        messages: those that it begins with.
        settings: how messages are answered.
        tools: what the model may call; None: nothing.

    Attributes:
        messages: those so far.
        last: the last answer; None before the first.
    """

    def __init__(
        self, llm: LLM, messages: list[Message], settings: AnswerSettings, tools: ToolUse | None
    ) -> None:
        self.messages = messages
        self.last: Result | None = None
        self._beginning = [each for each in messages[:1] if each["role"] == "system"]
        self._settings = settings
        self._tools = tools
        self._session = llm.session()
        self._chats = llm.tokenizer.has_chat_template

    @property
    def system(self) -> str | None:
        """The system message; None if there is none."""
        return self._beginning[0]["content"] if self._beginning else None

    @system.setter
    def system(self, text: str) -> None:
        others = self.messages[len(self._beginning) :]
        self._beginning = [{"role": "system", "content": text}]
        self.messages = [*self._beginning, *others]

    @property
    def is_begun(self) -> bool:
        """Whether there is more than the system message."""
        return len(self.messages) > len(self._beginning)

    def clear(self) -> None:
        """Begins anew, with the same system message."""
        self.messages = list(self._beginning)
        self.last = None

    def last_answer(self) -> Message:
        """Returns the answer that the conversation ends with.

        Raises:
            InputError: if it ends with none.
        """
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise InputError("there is no answer yet: write a message first")
        return self.messages[-1]

    def answer(self, asked: list[Message]) -> None:
        """Answers messages, or goes on with the answer that they end with.

        Where an answer calls tools, their results are given, and the model goes on.
        """
        if self._tools is None:
            self._answer_once(asked)
            return
        before = self.messages
        self._tools.begin()
        goes_on = True
        try:
            result = self._answer_once(asked)
            while result.finish_reason == "tool_calls" and goes_on:
                results, goes_on = self._tools.run(result.tool_calls)
                self.messages = [*self.messages, *results]
                if goes_on:
                    result = self._answer_once(self.messages)
        except EdgespecError:
            self.messages = before  # what a tool gave would fail all later answers, too
            raise

    def _answer_once(self, asked: list[Message]) -> Result:
        begun = asked[-1] if asked[-1]["role"] == "assistant" else {}
        stream = self._stream(asked)
        with cancelled_by_sigint(stream), echo_off():
            show(answer_events(stream), self._settings.thoughts)
        self.last = result = stream.result
        answer = {**result.message, "content": begun.get("content", "") + result.text}
        answer.pop("reasoning_content", None)
        if result.finish_reason != "tool_calls":
            answer.pop("tool_calls", None)
        if result.reasoning and not answer["content"]:  # where /continue goes on
            answer["reasoning_content"] = begun.get("reasoning_content", "") + result.reasoning
        self.messages = [*(asked[:-1] if begun else asked), answer]
        if gone := result.messages_left_out:
            say(f"the {gone} oldest messages had no room in the context, and were not read")
        if result.finish_reason == "length":
            say(
                f"stopped after {result.new_tokens} tokens: /continue goes on, /set max_new_tokens "
                "allows longer answers"
            )
        elif result.finish_reason == "loop":
            say("stopped: it repeats itself (/continue goes on)")
        elif result.finish_reason == "context":
            say("the context is full: start a new conversation with /clear")
        return result

    def _stream(self, messages: list[Message]) -> Stream:
        options = {"stop_loops": True, **self._settings.options}
        if self._chats:
            tools = {} if self._tools is None else self._tools.options
            return self._session.chat_stream(messages, **options, **tools)
        return self._session.stream("".join(each["content"] for each in messages), **options)
