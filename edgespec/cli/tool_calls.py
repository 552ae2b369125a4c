"""Calls of tools in a chat: asked about, made, and shown folded to a line each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Self

from edgespec.cli.waiting import notice, waiting
from edgespec.errors import EdgespecError, printable
from edgespec.llm.rendering import no_tools
from edgespec.mcp.results import ToolResult, most_characters
from edgespec.mcp.toolbox import MOST_CALLS, Toolbox
from edgespec.runtime.text.tools.forms import call_form

if TYPE_CHECKING:
    from edgespec.cli.chat_files import Message
    from edgespec.llm.llm import LLM
    from edgespec.runtime.text.tools.calls import ToolCall

_ANSWERS = "[y]es / [n]o / [a]lways"


class ToolUse:
    """The tools of a chat, and what came of the calls behind the last message.

    Args:
        box: the tools.
        ask: asks the user a question; None if nobody is there.
        sees_images: whether the model reads images.
        context: length of its context in tokens.
    """

    def __init__(
        self,
        box: Toolbox,
        ask: Callable[[str], str] | None,
        sees_images: bool,
        context: int,
    ) -> None:
        self._box = box
        self._ask = ask
        self._sees_images = sees_images
        self._most = most_characters(context)
        self._always = {name for name, tool in box.tools.items() if tool.is_allowed}
        self._made: list[tuple[str, str]] = []
        self._left = MOST_CALLS

    @classmethod
    def of(cls, box: Toolbox, ask: Callable[[str], str] | None, llm: LLM) -> Self:
        """Returns the tools of a chat with a model.

        Raises:
            InputError: if it cannot call any.
        """
        if call_form(llm.tokenizer.chat_source) is None:
            raise no_tools()
        return cls(box, ask, llm.bundle.target.vision is not None, llm.context_length)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the next answer."""
        described = [tool.described for tool in self._box.tools.values()]
        return {"tools": described, "tool_choice": "auto" if self._left else "none"}

    def begin(self) -> None:
        """Begins to count and to keep the calls behind a message."""
        self._made = []
        self._left = MOST_CALLS

    def run(self, calls: Sequence[ToolCall]) -> tuple[list[Message], bool]:
        """Makes the calls of an answer.

        Returns:
            The messages with the results, and whether the model goes on; not if Ctrl-C has come.
        """
        messages: list[Message] = []
        stopped = False
        for call in calls:
            try:
                found = ToolResult("It was not called.") if stopped else self._result(call)
            except KeyboardInterrupt:
                stopped = True
                found = ToolResult("The user has stopped this.")
            self._tell(call, found)
            content = found.content(self._sees_images)
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
            )
        return messages, not stopped

    def listed(self) -> str:
        """Returns a line for each tool."""
        lines = []
        for name, tool in self._box.tools.items():
            about = tool.described["function"]["description"].strip().split("\n")[0]
            asked = "" if name in self._always else " (asks)"
            lines.append(f"{name}{asked}, of {printable(tool.server)}: {about}")
        return "\n".join(lines) or "the servers have no tools"

    def last(self) -> str:
        """Returns the last message's calls with their results."""
        made = (f"{call}\n{result}" for call, result in self._made)
        return "\n\n".join(made) or "nothing was called behind the last message"

    def _result(self, call: ToolCall) -> ToolResult:
        if not self._left:
            return ToolResult(f"It was not called: there were {MOST_CALLS} calls already.")
        self._left -= 1
        if call.name not in self._always and (refusal := self._refusal(call)):
            return ToolResult(refusal)
        try:
            made = self._box.call(call.name, call.arguments, self._most)
            with waiting(f"{call.name} works"):
                try:
                    return made.result()
                finally:
                    made.cancel()
        except EdgespecError as error:
            return ToolResult(f"The call has failed: {error}", failed=True)

    def _refusal(self, call: ToolCall) -> str:
        """Asks whether a tool may be called; returns why not, or an empty text."""
        if self._ask is None:
            notice(
                f"edgespec: {call.name} is not called, since nobody can be asked: name it in "
                "alwaysAllow of its server"
            )
            return "It was not called: the user has not allowed it."
        while True:
            said = self._ask(f"Call {written(call)}? {_ANSWERS} ").strip().lower()
            if said in ("a", "always"):
                self._always.add(call.name)
            if said in ("y", "yes", "a", "always"):
                return ""
            if said in ("n", "no"):
                return "It was not called: the user does not allow it."

    def _tell(self, call: ToolCall, found: ToolResult) -> None:
        """Shows a call and its result in a line."""
        text = found.told(self._sees_images)
        self._made.append((written(call), text))
        columns = get_terminal_size().columns - len(" → ") - 1
        shown = _folded(written(call), columns // 2)
        notice(f"{shown} → {_folded(text, columns - len(shown))}")


def written(call: ToolCall) -> str:
    """Returns a call as it is written in Python, with values as in JSON."""
    given = (
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return printable(f"{call.name}({', '.join(given)})")


def _folded(text: str, most: int) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: max(most - 1, 1)]}…"
