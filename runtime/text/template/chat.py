"""Chat templates, rendered as transformers does it: in sandboxed jinja2 with the same extras."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.runtime.text.template.messages import (
    SYSTEM,
    USER,
    in_turns,
    with_arguments_as_text,
    without_systems,
)
from edgespec.runtime.text.template.program import Program

LEFT_OUT = "it leaves out what the user says"
"""The fault of a template that shows no trace of a plain message."""

_HELLO: Mapping[str, Any] = {"role": "user", "content": "hello"}
_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLING: Mapping[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_PROBE = "probe"


def template_fault(source: str, special_tokens: Mapping[str, str]) -> str | None:
    """Returns what is wrong with a template; None if nothing is.

    The template is tried with one plain message of a user.

    Args:
        source: see `ChatTemplate`.
        special_tokens: see `ChatTemplate`.
    """
    try:
        template = ChatTemplate(source, special_tokens)
        text = template.render([_HELLO])
    except InputError as error:
        return f"it fails on a plain message: {reason(error.__cause__)}"
    if _HELLO["content"] not in text:
        return LEFT_OUT
    if template.unset:
        return f"it writes {', '.join(sorted(template.unset))}, which nothing sets"
    return None


class ChatTemplate:
    """A model's own format for a conversation as one text.

    Some templates read what a role says only as a list of typed parts. They are given such lists,
    and what else they do not take is given in another form (`template.messages`).

    Args:
        source: The jinja2 template.
        special_tokens: Text of `bos_token`, `eos_token` and the like, for use by the template.

    Attributes:
        unset: Names of variables that the template has printed although nothing sets them.

    Raises:
        InputError: If the template is not valid jinja2.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._known: dict[object, bool] = {}  # what was found out of the template
        try:
            self._program = Program(source)
        except MemoryError:
            raise
        except Exception as error:  # deep nesting raises errors that are not jinja2's
            raise InputError(
                f"the model's chat template is not valid ({reason(error)}): repair it, or prompt "
                "without it"
            ) from error
        self.unset = self._program.unset

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the text of a conversation, by default up to where the model's answer begins.

        Args:
            messages: Messages with `role` and `content`, and what else the template reads.
            add_generation_prompt: Whether the text ends with the opening of an answer.
            tools: Functions that the model may call, in OpenAI's format.
            variables: Further variables that the template reads, such as `enable_thinking`.

        Raises:
            InputError: If the template refuses the conversation.
        """
        if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
            self._program.begin()
            return self._render(messages, add_generation_prompt, tools, variables)
        if any(each.get("role") == SYSTEM for each in messages) and not self._takes_systems():
            messages = without_systems(messages)
        given = [self._as_read(message) for message in messages]
        self._program.begin()
        try:
            return self._render(given, add_generation_prompt, tools, variables)
        except InputError:
            joined = in_turns(given)
            if len(joined) == len(given):
                raise
            with suppress(InputError):  # else the first error tells what is wrong
                return self._render(joined, add_generation_prompt, tools, variables)
            raise

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        try:
            return self._program.render(
                {
                    **self._special_tokens,
                    "documents": None,
                    **(variables or {}),
                    "messages": [dict(message) for message in messages],
                    "tools": None if tools is None else [dict(tool) for tool in tools],
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except MemoryError:
            raise
        except Exception as error:  # a template is a program, which may raise anything
            raise InputError(
                f"the model's chat template refuses these messages: {reason(error)}. "
                "Give a list of messages with role and content as the model expects them"
            ) from error

    def _as_read(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message with its content and calls as the template reads them."""
        content = message.get("content")
        if message.get("tool_calls") and self._reads_text_of_calls():
            message = with_arguments_as_text(message)
        if isinstance(content, str) and self._reads_parts(message.get("role")):
            return {**message, "content": _part(content)}
        return dict(message)

    def _reads_parts(self, role: object) -> bool:
        """Whether the template shows what a role says as parts, and not as a text."""
        return self._is(
            ("parts", role),
            lambda: not self._shows(role, _PROBE) and self._shows(role, _part(_PROBE)),
        )

    def _takes_systems(self) -> bool:
        """Whether the template shows what a system says; so does one that shows nothing at all."""
        return self._is(
            SYSTEM,
            lambda: (
                self._shows(SYSTEM, _PROBE)
                or self._shows(SYSTEM, _part(_PROBE))
                or not (self._shows(USER, _PROBE) or self._shows(USER, _part(_PROBE)))
            ),
        )

    def _reads_text_of_calls(self) -> bool:
        """Whether the template joins arguments of calls as text, and does not write them as JSON.

        Of an object it would show what Python prints.
        """

        def shown(arguments: object) -> str:
            call = {**_CALL, "function": {"name": "f", "arguments": arguments}}
            calling = {**_CALLING, "tool_calls": [call]}
            result = {"role": "tool", "content": "", "tool_call_id": _CALL["id"], "name": "f"}
            for messages in ([_HELLO, calling, result], [_HELLO, calling]):
                with suppress(InputError):
                    return self._render(messages, False)
            return ""

        def reads_text() -> bool:
            value = {_PROBE: _PROBE}
            written = shown(value)
            as_object = _PROBE in written and str(value) not in written
            return not as_object and json.dumps(value) in shown(json.dumps(value))

        return self._is("text of calls", reads_text)

    def _is(self, what: object, test: Callable[[], bool]) -> bool:
        """Whether a test of the template succeeds, which is made once."""
        if what not in self._known:
            unset = set(self.unset)
            self._program.begin()  # of all that is tried
            self._known[what] = test()
            self.unset.clear()
            self.unset.update(unset)
        return self._known[what]

    def _shows(self, role: object, content: object) -> bool:
        said = {"role": role, "content": content, "tool_call_id": _CALL["id"], "name": "f"}
        before: list[Mapping[str, Any]] = []
        after = before
        if role != "user":
            user = self._as_read(_HELLO)
            before = [user] if role in ("tool", "assistant") else []
            before += [self._as_read(_CALLING)] if role == "tool" else []
            after = [user]
        # Some templates want a system message, and some a last one of the user.
        systems = [{"role": "system", "content": each} for each in ("hello", _part("hello"))]
        begun = [before, *([system, *before] for system in systems)]
        tried = [[*each, said, *end] for each in begun for end in ([], after)]
        for messages in tried:
            with suppress(InputError):
                if _PROBE in self._render(messages):
                    return True
        return False


def _part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]
