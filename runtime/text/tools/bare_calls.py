"""Calls without the marks of their form, told from text by what they begin with.

Qwen2.5-Coder, asked for `<tool_call>{"name": ...}</tool_call>`, often writes the object alone, in a
fence of Markdown, or between `<tools>` tags; GLM-4 was trained to write name and arguments alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from edgespec.runtime.text.lark import TEXT, Spelling, escape
from edgespec.runtime.text.tools.signature import ToolSignature

_SPACE = " \t\r\n"
_ANY_SPACE = r"[ \t\r\n]*"
_SOME_SPACE = r"[ \t\r\n]{0,64}"  # bounded, since some models write white space for ever
_NAME = "%s"


BARE = "BARE"
"""Name of the terminal of all texts that begin with a call."""


@dataclass(frozen=True)
class BareForm:
    """What calls look like that stand alone at the beginning of an answer.

    Attributes:
        parts: what comes before the arguments, which begin with `{`; `%s` stands for the name.
        arguments: notation of the arguments.
        closing: what comes behind the arguments.
        fences: texts that may stand before and behind all calls.
        spaced: whether there may be white space around each part; else only before the first.
        several: whether there may be several calls.
    """

    parts: tuple[str, ...]
    arguments: str
    closing: str = ""
    fences: tuple[tuple[str, str], ...] = ()
    spaced: bool = True
    several: bool = True

    def rules(
        self, functions: Sequence[ToolSignature], spelling: Spelling, several: bool
    ) -> Iterator[str]:
        """Yields Lark rules for calls: the rule `bare`, the terminal `BARE`, and what they need.

        All that comes before the arguments is one terminal for each function and kind of fence:
        behind a shorter one the lexer would go on with free text, since that matches more.

        Args:
            functions: functions that may be called.
            spelling: how the grammar writes marks.
            several: whether there may be several calls.
        """
        arguments = {each.name: f"bare_{n}" for n, each in enumerate(functions)}
        space = _SOME_SPACE if self.spaced else ""
        closing = f" /{space}{escape(self.closing)}/" if self.closing else ""
        several = several and self.several
        heads = []
        ways = []
        fences = groupby([("", ""), *self.fences], key=lambda fence: fence[1])
        for kind, (end, alike) in enumerate(fences):
            begin = "|".join(escape(fence[0]) for fence in alike)
            calls = []
            for number, (name, rule) in enumerate(arguments.items()):
                head = f"BARE_{kind}_{number}"
                opening = f"{_ANY_SPACE}({begin}){_ANY_SPACE}"
                yield f"{head}: /{opening}{self._head(name, _ANY_SPACE)}/"
                heads.append(head)
                calls.append(f"{head} {rule}")
            more = " bare_more*" if several else ""
            behind = f" /{space}{escape(end)}{space}/" if self.spaced else r" /\n{0,2}/"
            ways.append(f"({' | '.join(calls)}){closing}{more}{behind}")
        if several:
            calls = [
                f"/{space}{self._head(name, space)}/ {rule}" for name, rule in arguments.items()
            ]
            yield f"bare_more: ({' | '.join(calls)}){closing}"
        yield f"bare: {' | '.join(ways)}"
        yield f"{BARE}: ({' | '.join(heads)}) /\\{{{TEXT}/"
        for function in functions:
            yield from function.rules(arguments[function.name], self.arguments, spelling)

    def _head(self, name: str, space: str) -> str:
        """Returns a regular expression of what comes before arguments, for one function."""
        parts = [escape(part.replace(_NAME, name)) for part in self.parts]
        return "".join([part + (space if self.spaced else "") for part in parts])


OBJECT = BareForm(
    parts=("{", '"name"', ":", f'"{_NAME}"', ",", '"arguments"', ":"),
    arguments="loose",
    closing="}",
    # Qwen2.5-Coder's template shows the model a call with two braces.
    fences=(("```json", "```"), ("```", "```"), ("<tools>", "</tools>"), ("{", "}")),
)
"""An object with name and arguments."""

LINE = BareForm(parts=(_NAME, "\n"), arguments="json", spaced=False, several=False)
"""The name in a line of its own, and the arguments."""


@dataclass(frozen=True)
class CallBeginning:
    """What a text begins with.

    Attributes:
        decided: whether further text can change nothing.
        name: name of the function; empty if no call begins.
        rest: the text from the arguments on.
    """

    decided: bool
    name: str = ""
    rest: str = ""


class BareCalls:
    """Finds where calls of a form begin.

    Args:
        form: the form.
        names: names of the functions.
    """

    def __init__(self, form: BareForm, names: Sequence[str]) -> None:
        self.form = form
        self._names = names

    def first(self, text: str) -> CallBeginning:
        """Tells whether an answer begins with a call, as far as it has come."""
        text = text.lstrip(_SPACE)
        readings = [
            self._begun(text.removeprefix(fence), self.form.parts)
            if text.startswith(fence)
            else CallBeginning(decided=not fence.startswith(text))
            for fence, _ in (("", ""), *self.form.fences)
        ]
        called = next((each for each in readings if each.name), None)
        return called or CallBeginning(decided=all(each.decided for each in readings))

    def next(self, text: str) -> CallBeginning:
        """Tells whether another call follows behind the arguments of one."""
        return self._begun(text, (self.form.closing, *self.form.parts))

    def _begun(self, text: str, parts: Sequence[str]) -> CallBeginning:
        """Tells whether a text begins with some parts and an object."""
        rest = text.lstrip(_SPACE)
        called = ""
        for part in parts:
            if self.form.spaced:
                rest = rest.lstrip(_SPACE)
            texts = {part.replace(_NAME, name): name for name in self._names}
            if any(each.startswith(rest) and each != rest for each in texts):
                return CallBeginning(decided=False)
            # Of names that begin alike, the longest.
            found = max((each for each in texts if rest.startswith(each)), key=len, default=None)
            if found is None:
                return CallBeginning(decided=True)
            called = texts[found] if _NAME in part else called
            rest = rest[len(found) :]
        rest = rest.lstrip(_SPACE) if self.form.spaced else rest
        if not rest.startswith("{"):
            return CallBeginning(decided=bool(rest))
        return CallBeginning(True, called, rest)
