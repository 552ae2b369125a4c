"""The grammar of an answer: reasoning, then free text or text in a given form, or tool calls.

It is written in llguidance's Lark notation (docs/syntax.md and docs/toolcalls.md there). Tokens
that stand for no text of their own, such as `<tool_call>`, cannot be spelled, and are named by
their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from edgespec.runtime.text.lark import TEXT, Spelling, escape
from edgespec.runtime.text.thinking import ThinkingForm
from edgespec.runtime.text.tools.bare_calls import BARE, BareForm
from edgespec.runtime.text.tools.call_form import CallForm
from edgespec.runtime.text.tools.signature import ToolSignature

CONTENT = "content"
"""Name of the grammar that an answer's text follows, if it follows one."""

_TEXT = f"/{TEXT}/"
_GAP = r"/\n{0,2}/"  # what models write between reasoning and what follows it


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
        last: special token that the chat template writes behind the last call; empty for none.
        content: name of the grammar that text follows; None for free text.
        special: ids of tokens that the grammar must name, by what they are called.
    """

    thinking: ThinkingForm | None = None
    inside: bool = False
    calls: CallForm | None = None
    functions: Sequence[ToolSignature] = ()
    required: bool = False
    several: bool = True
    last: str = ""
    content: str | None = None
    special: Mapping[str, int] = field(default_factory=dict)

    @property
    def marks(self) -> str:
        """All texts in which special tokens may occur."""
        thinking = self.thinking
        calls = self.calls
        marks = [] if thinking is None else [thinking.begin, thinking.end, *thinking.intros]
        if calls is not None:
            marks += [calls.marks, self.last]
        return "\n".join(marks)

    @property
    def bare(self) -> BareForm | None:
        """The form of calls without marks; None if they may not come."""
        return None if self.required or self.content or not self.calls else self.calls.bare

    def lark(self) -> str:
        """Returns the grammar, with the rule `start`."""
        return "\n".join([f"start: {self._thought}answer", *self._answer(), *self._reasoning()])

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.special)

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
            yield f"begun: {self._spelling.marks(self.thinking.begin)}"
        yield from self._spelling.ended("reasoning", self.thinking.end)

    def _answer(self) -> Iterator[str]:
        thinking = self.thinking
        calls = self.calls
        intro = gap = ""
        if thinking is not None and thinking.intros:
            intro = f"{self._spelling.marks(thinking.intros[0])} "
        elif thinking is not None:
            gap = "gap "
            yield f"gap: {_GAP}"
        said = f"{intro}{self._free()}" if self.content is None else f"{gap}{intro}@{self.content}"
        if calls is None:
            yield f"answer: {said}"
            return
        begun = f"{gap}{self._spelling.marks(calls.begin)} calls"
        ways = [] if self.required else [said]
        if self.required or self.content is not None or (calls.first and not self.bare):
            ways.append(begun)
        elif calls.begin:
            ways.append("head calls")
            yield from self._spelling.ended("head", calls.begin, but=BARE if self.bare else "")
        yield from calls.rules(self.functions, self._spelling, self.several, self.last)
        if self.bare is not None:
            # First, since of terminals that end at one place the lexer may take the first.
            ways.insert(0, "bare")
            yield f"PLAIN: {_TEXT} & ~{BARE}"
            yield from self.bare.rules(self.functions, self._spelling, self.several)
        yield f"answer: {' | '.join(ways)}"

    def _free(self) -> str:
        """Returns what stands in a rule for text without calls."""
        calls = self.calls
        if self.bare is not None:
            return "PLAIN"
        if calls is None or not (calls.first and calls.begin):
            return _TEXT
        if self._spelling.begins_with_token(calls.begin):
            return _TEXT
        return f"/([^{escape(calls.begin[0])}]{TEXT})?/"
