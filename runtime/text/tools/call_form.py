"""How a model writes tool calls: as rules of a grammar, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.runtime.text.lark import Spelling, optional_prefix, quote
from edgespec.runtime.text.tools.bare_calls import BareForm
from edgespec.runtime.text.tools.notations import NOTATIONS
from edgespec.runtime.text.tools.signature import ToolSignature


@dataclass(frozen=True)
class CallForm:
    """How a model writes tool calls.

    Calls are written as `begin`, then for each call `opening`, the name, `middle`, the arguments
    and `closing`, with `separator` between two calls, and at last `end`.

    Attributes:
        name: name of the form.
        template_marks: what a chat template of the form contains; all of it.
        begin: text that begins calls. Answers without calls never contain it. Empty if calls can
            be told from text by `bare` alone.
        opening: text before a name.
        middle: text between name and arguments.
        closing: text after arguments.
        separator: text between two calls; None if an answer has one call at most.
        end: text after the last call.
        first: whether calls begin an answer or do not come at all. Text that begins like `begin`
            is a call then.
        arguments: notation of the arguments, by its name in `NOTATIONS`.
        in_system: whether the template takes tools from the system message, as JSON.
        bare: what calls look like that come without these marks, if an answer may begin with one.
        other_marks: what a chat template of the form does not contain; none of it.
    """

    name: str
    template_marks: tuple[str, ...]
    begin: str
    opening: str
    middle: str
    closing: str
    separator: str | None
    end: str = ""
    first: bool = False
    arguments: str = "json"
    in_system: bool = False
    bare: BareForm | None = None
    other_marks: tuple[str, ...] = ()

    @property
    def marks(self) -> str:
        """All texts in which special tokens may occur."""
        around = [self.begin, self.opening, self.middle, self.closing, self.separator or ""]
        return "\n".join([*around, self.end, NOTATIONS[self.arguments].marks])

    def is_of(self, template: str) -> bool:
        """Whether a chat template is of the form."""
        return all(mark in template for mark in self.template_marks) and not any(
            mark in template for mark in self.other_marks
        )

    def rules(
        self, functions: Sequence[ToolSignature], spelling: Spelling, several: bool, last: str
    ) -> Iterator[str]:
        """Yields Lark rules for calls behind `begin`: the rule `calls`, and what it needs.

        Args:
            functions: functions that may be called.
            spelling: how the grammar writes marks.
            several: whether there may be several calls.
            last: special token that may come behind the last call; empty for none.
        """
        closing = spelling.lines(self.closing)
        more = ""
        if several and self.separator is not None:
            between = [*closing, *spelling.lines(self.separator)]
            more = f" ({' '.join([*between, 'call'])})*"
        # A model may end its turn anywhere behind the arguments. One that wants to, and may not,
        # would go on with further calls for ever.
        ending = optional_prefix([*closing, *spelling.lines(self.end)])
        lines = optional_prefix([quote("\n")] * 2)
        token = f" ({spelling.marks(last)})?" if last else ""
        yield f"calls: call{more}{ending}{lines}{token}"
        yield "call: " + " | ".join([f"call_{n}" for n in range(len(functions))])
        for n, function in enumerate(functions):
            head = spelling.marks(self.opening + function.name + self.middle)
            yield f"call_{n}: {head} arguments_{n}"
            yield from function.rules(f"arguments_{n}", self.arguments, spelling)

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any] | str]]) -> str:
        """Returns how a model writes calls.

        Args:
            calls: names of functions, and their arguments by name, or as they were written.
        """
        codec = NOTATIONS[self.arguments]
        between = f"{self.closing}{self.separator or ''}{self.opening}"
        written = [
            f"{name}{self.middle}{given if isinstance(given, str) else codec.write(given)}"
            for name, given in calls
        ]
        return f"{self.begin}{self.opening}{between.join(written)}{self.closing}{self.end}"
