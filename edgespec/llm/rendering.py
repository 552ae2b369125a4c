"""The text of a conversation, as a model's chat template writes it for one answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from edgespec.errors import InputError
from edgespec.llm.messages import for_template
from edgespec.runtime.text.answer_grammar import AnswerGrammar
from edgespec.runtime.text.thinking import ThinkingForm, thinking_form
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.tools.call_form import CallForm
from edgespec.runtime.text.tools.history import with_calls_as_text

Message = Mapping[str, Any]

_SMOL_TOOLS = "xml_tools"  # how SmolLM3's template calls tools
_ID = "call00000"  # of nine letters and digits, as Mistral's templates want it
_HELLO: Message = {"role": "user", "content": "hello"}


class Rendering:
    """Writes messages in a chat template, with the tools and variables of one answer.

    Where something is to be found in a text, a random word stands in its place, which no user can
    have written.

    Args:
        tokenizer: tokenizer of the model.
        calls: how the model writes calls; None if none may come.
        tools: tools that the template shows, in OpenAI's format.
        variables: further variables of the template.

    Raises:
        InputError: if the template does not show the tools, or refuses them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        calls: CallForm | None,
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._calls = calls
        self._tools = tools
        self._variables = dict(variables or {})
        self._in_system = False
        if tools and not self._shows_tools():
            self._in_system = calls is not None and calls.in_system
            if not self._in_system or not self._shows_tools():
                raise no_tools()

    def text(self, messages: Sequence[Message], opened: bool = True) -> str:
        """Returns the text of messages, with the opening of an answer if it is to be `opened`.

        Raises:
            InputError: if the template refuses the messages.
        """
        chat = self._tokenizer.chat
        tools = self._tools
        if not tools:
            return chat(messages, opened, variables=self._variables)
        if self._in_system:
            functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
            return chat(_with_system(messages, functions), opened, variables=self._variables)
        return chat(messages, opened, tools, {_SMOL_TOOLS: tools, **self._variables})

    def begun(
        self, messages: Sequence[Message], goes_on: bool
    ) -> tuple[str, ThinkingForm | None, bool]:
        """Returns a prompt's text, how the answer may reason, and whether it is doing so already.

        Args:
            messages: messages of the conversation.
            goes_on: whether the answer goes on from a last message of the assistant. It is written
                as the template writes it, up to the end of what it says, with all that it holds.
                If it has only reasoned yet, it goes on with that.

        Raises:
            InputError: as `text`.
        """
        # What is no list of messages is left to the template, which tells what is wrong.
        last = messages[-1] if isinstance(messages, Sequence) and messages else {}
        said = isinstance(last, Mapping) and last.get("role") == "assistant"
        if goes_on and said:
            return self._continued(messages[:-1], last)
        text = self.text(messages)
        return text, *self._thinking(messages, text)

    def behind_calls(self, stop_ids: Set[int]) -> dict[str, int]:
        """Returns the special token that the template writes behind a call, and its id, if any.

        It ends an answer as the model's own end tokens do, among which files often lack it.

        Args:
            stop_ids: the end tokens.
        """
        source = self._tokenizer.chat_source
        argument = secrets.token_hex(8)
        name = self._tools[0]["function"]["name"]
        function = {"name": name, "arguments": {argument: argument}}
        call = {"id": _ID, "type": "function", "function": function}
        calling: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            text = self.text(with_calls_as_text(for_template([_HELLO, calling]), source), False)
        except InputError:  # some refuse what ends with a call
            return {}
        behind = text.rpartition(argument)[2] if argument in text else ""
        marks = AnswerGrammar(calls=self._calls).marks
        special = self._tokenizer.special_ids
        places = {
            behind.find(token): {token: id_}
            for token, id_ in self._tokenizer.added_tokens.items()
            if id_ in special and token in behind and token not in marks
        }
        first = places[min(places)] if places else {}
        return {token: id_ for token, id_ in first.items() if id_ not in stop_ids}

    def _shows_tools(self) -> bool:
        """Whether the template shows the tools, in a text of which no question is a part."""
        try:
            text = self.text([_HELLO])
        except InputError:  # the conversation itself may be as the template wants it
            return True
        return all(tool["function"]["name"] in text for tool in self._tools)

    def _thinking(self, messages: Sequence[Message], text: str) -> tuple[ThinkingForm | None, bool]:
        """Returns how an answer behind a text may reason, and whether the template has begun it."""
        form = self._form
        end = text.rstrip()
        if form is None:
            return None, False
        if _said(messages).rstrip().endswith((form.begin, form.end)):
            # What users write at the end of a question begins and ends nothing.
            word = secrets.token_hex(8)
            end = self.text([*messages[:-1], {**messages[-1], "content": word}])
            end = end.rpartition(word)[2].rstrip()
        # Where several parts may come, what ends one begins the next.
        if end.endswith(form.end) and not form.intros:
            return None, False
        return form, end.endswith(form.begin)

    @property
    def _form(self) -> ThinkingForm | None:
        return thinking_form(self._tokenizer.chat_source)

    def _continued(
        self, before: Sequence[Message], last: Message
    ) -> tuple[str, ThinkingForm | None, bool]:
        """Returns what `begun` does, for an answer that goes on from the last message."""
        form = self._form
        if "tool_calls" in last:
            return self._up_to_end(before, last), form, False
        reasoning = last.get("reasoning_content") or ""
        if content := last.get("content") or "":
            text = self._up_to_content(before, last, reasoning) + content
            thinks = form is not None and _is_open(content, form)
            return text, form if thinks else None, thinks
        text = self.text(before)
        form, inside = self._thinking(before, text)
        if form is None or not reasoning:
            return text, form, inside
        return f"{text}{'' if inside else form.begin}{reasoning}", form, True

    def _up_to_content(self, before: Sequence[Message], last: Message, reasoning: str) -> str:
        """Returns the text before what a last message says, with what it has thought."""
        said = secrets.token_hex(8)
        thought = secrets.token_hex(8)
        # gpt-oss's template has another name for it.
        thoughts = {"reasoning_content": thought, "thinking": thought} if reasoning else {}
        found, shown = "", ""
        with suppress(InputError):
            text = self.text([*before, {**last, "content": said, **thoughts}], False)
            shown, found, _ = text.partition(said)
        if found and (not reasoning or thought in shown):
            return shown.replace(thought, reasoning, 1)
        opening = self.text(before)
        form, inside = self._thinking(before, opening)
        if not reasoning or form is None or form.intros:
            return shown if found else opening
        begin = "" if inside else f"{form.begin}\n"
        return f"{opening}{begin}{reasoning}\n{form.end}\n\n"

    def _up_to_end(self, before: Sequence[Message], last: Message) -> str:
        """Returns the text of messages before the end of the turn of a last one with calls."""
        word = secrets.token_hex(8)
        plain = {key: value for key, value in last.items() if key != "tool_calls"}
        with suppress(InputError):
            closed = self.text([*before, {**plain, "content": word}], False).rpartition(word)[2]
            text = self.text([*before, last], False)
            if closed and text.endswith(closed):
                return text.removesuffix(closed)
        return self.text([*before, last])


def no_tools() -> InputError:
    """Returns the error about tools for a model that knows none."""
    return InputError(
        "the model's chat template knows no tools, or writes calls in a form that is not known "
        "here: leave out tools and messages with them, or use a model that was trained to call"
    )


def _is_open(content: str, form: ThinkingForm) -> bool:
    """Whether a text has begun reasoning that it does not end."""
    _, begun, thought = content.rpartition(form.begin)
    return bool(begun) and form.end not in thought


def _said(messages: Sequence[Message]) -> str:
    """Returns what the last message says; empty if it is no text."""
    last = messages[-1] if isinstance(messages, Sequence) and messages else None
    content = last.get("content") if isinstance(last, Mapping) else None
    return content if isinstance(content, str) else ""


def _with_system(messages: Sequence[Message], tools: str) -> list[Message]:
    first, *others = messages
    if first.get("role") == "system":
        return [{**first, "tools": tools}, *others]
    return [{"role": "system", "content": "", "tools": tools}, *messages]
