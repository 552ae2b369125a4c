"""The grammar of an answer: reasoning, then free text or text in a given form, or tool calls.

It is written in llguidance's Lark notation (docs/syntax.md and docs/toolcalls.md there). Tokens
that stand for no text of their own, such as `<tool_call>`, cannot be spelled, and are named by
their ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.runtime.text.answer_forms import CallForm, ThinkingForm
from edgespec.runtime.text.gemma_arguments import QUOTE, GemmaRules
from edgespec.runtime.text.tagged_arguments import tagged_rules

CONTENT = "content"
"""Name of the grammar that an answer's text follows, if it follows one."""

_TEXT = r"/(.|\n)*/"
_GAP = r"/\n{0,2}/"  # what models write between reasoning and what follows it


@dataclass(frozen=True)
class Function:
    """A function that may be called.

    Attributes:
        name: its name, of letters, digits, `_` and `-`.
        parameters: JSON schema of its arguments.
    """

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class AnswerGrammar:
    """What an answer may consist of.

    Attributes:
        thinking: how reasoning is written; None if there is none.
        inside: whether the answer begins inside of reasoning.
        calls: how calls are written; None if none may come.
        functions: functions that may be called.
        required: whether there must be a call.
        several: whether there may be several calls.
        content: name of the grammar that text follows; None for free text.
        special: ids of tokens that the grammar must name, by what they are called.
    """

    thinking: ThinkingForm | None = None
    inside: bool = False
    calls: CallForm | None = None
    functions: Sequence[Function] = ()
    required: bool = False
    several: bool = True
    content: str | None = None
    special: Mapping[str, int] = field(default_factory=dict)

    @property
    def marks(self) -> str:
        """All texts in which special tokens may occur."""
        thinking, calls = self.thinking, self.calls
        marks = [] if thinking is None else [thinking.begin, thinking.end, *thinking.intros]
        if calls is not None:
            marks += [calls.begin, calls.middle, calls.closing, calls.separator or "", calls.end]
            marks += [QUOTE] if calls.arguments == "gemma" else []
        return "\n".join(marks)

    def lark(self) -> str:
        """Returns the grammar, with the rule `start`."""
        return "\n".join([f"start: {self._thought}answer", *self._answer(), *self._reasoning()])

    @property
    def _thought(self) -> str:
        if self.thinking is None:
            return ""
        repeated = "*" if self.thinking.intros else "?"
        return "reasoning " if self.inside else f"(begun reasoning){repeated} "

    def _reasoning(self) -> Iterator[str]:
        if self.thinking is None:
            return
        if not self.inside:
            yield f"begun: {self._marks(self.thinking.begin)}"
        yield from self._ended("reasoning", self.thinking.end)

    def _ended(self, rule: str, mark: str) -> Iterator[str]:
        """Yields rules for free text that ends with the first of a mark, spelled or as a token."""
        first, *others = self._parts(mark)
        rest = "".join(f" {self._part(each)}" for each in others)
        spelled = f"{rule}_spelled"
        yield f"{rule}_text: {_TEXT}"
        yield f"{spelled}[lazy]: {_TEXT[:-1]}{_escaped(first)}/"
        token = f"{rule}_text {self._part(first)} | " if first in self.special else ""
        yield f"{rule}: ({token}{spelled}){rest}"

    def _answer(self) -> Iterator[str]:
        thinking, calls = self.thinking, self.calls
        intro = gap = ""
        if thinking is not None and thinking.intros:
            intro = f"{self._marks(thinking.intros[0])} "
        elif thinking is not None:
            gap = "gap "
            yield f"gap: {_GAP}"
        said = f"{intro}{self._free()}" if self.content is None else f"{gap}{intro}@{self.content}"
        if calls is None:
            yield f"answer: {said}"
            return
        begun = f"{gap}{self._marks(calls.begin)}"
        if self.required:
            yield f"answer: {begun} calls"
        elif calls.first or self.content is not None:
            yield f"answer: {said} | {begun} calls"
        else:
            yield f"answer: {said} | head calls"
            yield from self._ended("head", calls.begin)
        yield from self._calls(calls)

    def _free(self) -> str:
        """Returns a regular expression of text without calls."""
        calls = self.calls
        if calls is None or not calls.first or self._parts(calls.begin)[0] in self.special:
            return _TEXT
        return f"/([^{_escaped(calls.begin[0])}](.|\\n)*)?/"

    def _calls(self, form: CallForm) -> Iterator[str]:
        more = ""
        if self.several and form.separator is not None:
            more = f" ({self._marks(form.separator)} call)*"
        yield f"calls: call{more} {self._marks(form.end)}".rstrip()
        yield "call: " + " | ".join([f"call_{n}" for n in range(len(self.functions))])
        for n, function in enumerate(self.functions):
            head = self._marks(form.opening + function.name + form.middle)
            yield f"call_{n}: {head} arguments_{n} {self._marks(form.closing)}".rstrip()
            yield from self._arguments(f"arguments_{n}", function, form.arguments)

    def _arguments(self, rule: str, function: Function, notation: str) -> list[str]:
        """Returns rules for the arguments of a function; the first has the given name."""
        schema = function.parameters
        try:
            if notation == "gemma":
                return GemmaRules(rule, schema, self._marks(QUOTE)).lines
            if notation == "tagged":
                return tagged_rules(rule, schema)
            return [f"{rule}: %json {_schema(schema, notation == 'json')}"]
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
            raise InputError(
                f"tool {function.name}: its parameters are no valid JSON schema "
                f"({reason(error)}): correct them"
            ) from error

    def _marks(self, text: str) -> str:
        return " ".join([self._part(part) for part in self._parts(text)])

    def _part(self, text: str) -> str:
        if text in self.special:
            return f"<[{self.special[text]}]>"
        return json.dumps(text, ensure_ascii=False)

    def _parts(self, text: str) -> list[str]:
        """Splits a text into special tokens and what is between them."""
        if not self.special:
            return [text] if text else []
        longest_first = sorted(self.special, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        return [part for part in re.split(f"({pattern})", text) if part]


def _schema(parameters: Mapping[str, Any], spaced: bool) -> str:
    """Returns a schema for llguidance, without white space that the form does not have.

    Parameters that are not named would be additional properties. They are left out unless the
    schema allows them by name.
    """
    space = " " if spaced else ""
    options = {
        "whitespace_flexible": False, "item_separator": f",{space}", "key_separator": f":{space}",
    }  # fmt: skip
    closed = {"additionalProperties": False} if "properties" in parameters else {}
    return json.dumps({"type": "object", **closed, **parameters, "x-guidance": options})


def _escaped(text: str) -> str:
    """Returns a text as a regular expression between slashes."""
    return re.sub(r"([^\w\s<>\"':;,=!@%&_-])", r"\\\1", text).replace("\n", r"\n")
