"""The parser of answers as they come: it tells reasoning, text and tool calls apart."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgespec.runtime.text.decoder import AnswerEvent, CallEvent, ReasoningEvent, TextEvent
from edgespec.runtime.text.endings import overlap
from edgespec.runtime.text.thinking import ThinkingForm
from edgespec.runtime.text.tools.bare_calls import BareCalls, BareForm
from edgespec.runtime.text.tools.call_form import CallForm
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.runtime.text.tools.codec import ArgumentReader
from edgespec.runtime.text.tools.notations import NOTATIONS

_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # what Mistral's templates want of the ids of calls
_NAME = re.compile(r"[a-zA-Z0-9_.-]+")


class AnswerParser:
    """Takes an answer apart while it comes, in pieces of any size.

    The white space around reasoning and before calls is no part of either. Calls are expected to
    follow their form, as the grammar of `answer_grammar` holds them to it.

    Args:
        thinking: how the model writes reasoning; None if it does not.
        calls: how it writes calls; None if none are expected.
        inside: whether the answer begins inside of reasoning, since the prompt has begun it.
        schemas: JSON schemas of arguments by the names of the functions.
        bare: form of calls without marks, with which an answer may begin; None if it may not.
        marks: special tokens that it needs, with their texts.

    Attributes:
        marks: special tokens that it needs, with their texts.
        calls: complete calls so far.
    """

    def __init__(
        self,
        thinking: ThinkingForm | None,
        calls: CallForm | None,
        inside: bool = False,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        bare: BareForm | None = None,
        marks: Mapping[int, str] | None = None,
    ) -> None:
        self.marks = marks or {}
        self._thinking = thinking
        self._form = calls
        self._schemas = schemas or {}
        self._bare = None if bare is None else BareCalls(bare, list(self._schemas))
        self._unread = ""
        self._events: list[AnswerEvent] = []
        self._ended = False
        self._thought = False  # whether there was reasoning, behind which white space is dropped
        self._fresh = True  # at the beginning of a part, where white space is dropped
        self._state: Callable[[], bool] = self._reason if inside else self._begin
        self._opened = ToolCall("", "", "")
        self._arguments: ArgumentReader = NOTATIONS["json"].reader({})
        self._alone = False  # whether calls stand without marks
        self._thoughts = ReasoningTokens()
        self.calls: list[ToolCall] = []

    @property
    def cut(self) -> ToolCall | None:
        """The call whose arguments have begun but not ended; None if there is none."""
        return self._opened if self._state == self._argue else None

    @property
    def unread(self) -> str:
        """The end of the text so far, of which it is not certain what it adds to."""
        return self._unread

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens of reasoning so far, if the text came token by token."""
        return self._thoughts.count

    def push(self, text: str, tokens: int = 0) -> list[AnswerEvent]:
        """Returns what the next piece of the text adds.

        Args:
            text: the piece.
            tokens: number of tokens that it comes from, one at most.
        """
        self._unread += text
        self._events = []
        inside = self._state == self._reason
        while self._state():
            pass
        thought = any(isinstance(each, ReasoningEvent) for each in self._events)
        self._thoughts.read(tokens, inside, thought)
        return self._events

    def finish(self) -> list[AnswerEvent]:
        """Returns what was held back, after the last piece of the text."""
        self._ended = True
        return self.push("")

    # Each of these reads what it can of the unread text, and returns whether the next can go on.

    def _begin(self) -> bool:
        """Where reasoning, text or a call may begin."""
        thinking = self._thinking
        form = self._form
        text = self._unread.lstrip()
        begins = {} if thinking is None else {thinking.begin: self._reason}
        if thinking is not None:
            begins |= dict.fromkeys(thinking.intros, self._say)
        if form is not None and (form.begin or self._bare is None):
            begins[form.begin] = self._open
        for begin, state in begins.items():
            if text.startswith(begin):
                self._unread = text[len(begin) :]
                self._fresh = state == self._reason
                self._state = state
                return True
        bare = None if self._bare is None else self._bare.first(text)
        if bare is not None and bare.name:
            self._alone = True
            self._call(bare.name, bare.rest)
            return True
        undecided = bare is not None and not bare.decided
        if not self._ended and (undecided or any(begin.startswith(text) for begin in begins)):
            return False
        if self._thought:
            self._unread = text
        self._state = self._say
        return True

    def _reason(self) -> bool:
        assert self._thinking is not None
        self._thought = True
        if self._fresh:
            self._unread = self._unread.lstrip()
            self._fresh = not self._unread
        said, found = self._until((self._thinking.end,), trimmed=True)
        if said:
            self._events.append(ReasoningEvent(said))
        if found:
            self._state = self._begin
        return bool(found)

    def _say(self) -> bool:
        form = self._form
        thinking = self._thinking
        ends = [form.begin] if form is not None and not form.first else []
        if thinking is not None and thinking.intros:
            ends.append(thinking.end)
        said, found = self._until(ends, trimmed=form is not None)
        if said:
            self._events.append(TextEvent(said))
        if found:
            self._state = self._open if form is not None and found == form.begin else self._begin
        return bool(found)

    def _open(self) -> bool:
        """The name of a call."""
        form = self._form
        assert form is not None
        name = _NAME.match(self._unread, len(form.opening))
        if name is None or name.end() == len(self._unread):
            return False
        if not self._unread.startswith(form.middle, name.end()):
            return False
        self._call(name[0], self._unread[name.end() + len(form.middle) :])
        return True

    def _call(self, name: str, arguments: str) -> None:
        """Begins a call, of which the arguments are what is unread."""
        form = self._bare.form if self._alone and self._bare is not None else self._form
        assert form is not None
        self._unread = arguments
        self._opened = ToolCall(_new_id(), name, "")
        self._arguments = NOTATIONS[form.arguments].reader(self._schemas.get(name, {}))
        self._events.append(CallEvent(len(self.calls), "", self._opened.id, name))
        self._state = self._argue

    def _argue(self) -> bool:
        """The arguments of a call."""
        piece, self._unread = self._arguments.push(self._unread)
        opened = self._opened
        self._opened = ToolCall(opened.id, opened.name, opened.text + piece)
        if piece:
            self._events.append(CallEvent(len(self.calls), piece))
        if self._arguments.complete:
            self.calls.append(self._opened)
            self._state = self._close_bare if self._alone else self._close
        return self._arguments.complete

    def _close(self) -> bool:
        """Text after a call, until the next one."""
        form = self._form
        assert form is not None
        if form.separator is None:
            self._unread = ""
            return False
        following = form.closing + form.separator
        if not self._unread.startswith(following):
            return False
        self._unread = self._unread[len(following) :]
        self._state = self._open
        return True

    def _close_bare(self) -> bool:
        """Text after a call without marks, until the next one."""
        assert self._bare is not None
        found = self._bare.next(self._unread)
        if found.name:
            self._call(found.name, found.rest)
        return bool(found.name)

    def _until(self, ends: Sequence[str], trimmed: bool) -> tuple[str, str]:
        """Takes the unread text before the first of some texts.

        Args:
            ends: texts to look for.
            trimmed: whether white space before one of them is dropped.

        Returns:
            The text that is certain by now, and which one was found; empty if none was.
        """
        text = self._unread
        places = [(place, end) for end in ends if (place := text.find(end)) >= 0]
        if places:
            place, end = min(places)
            self._unread = text[place + len(end) :]
            return (text[:place].rstrip() if trimmed else text[:place]), end
        kept = 0 if self._ended else overlap(text, ends)
        if trimmed and not self._ended:
            kept = len(text) - len(text[: len(text) - kept].rstrip())
        self._unread = text[len(text) - kept :]
        return text[: len(text) - kept], ""


def _new_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))


class ReasoningTokens:
    """Counts the tokens whose text is reasoning.

    Marks around reasoning do not count, and neither does white space before the mark that ends it.
    Texts come token by token, so that the count does not depend on how many a round gave.

    Attributes:
        count: number of such tokens so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._uncertain = 0  # tokens that are reasoning unless a mark begins with them

    def read(self, tokens: int, inside: bool, certain: bool) -> None:
        """Counts what was read.

        Args:
            tokens: number of tokens that were read, one at most.
            inside: whether they came inside of reasoning.
            certain: whether more reasoning is certain since then.
        """
        self._uncertain = self._uncertain + tokens if inside else 0
        if certain:
            # A token may hold both the mark that begins reasoning and its first characters.
            self.count += max(self._uncertain, tokens)
            self._uncertain = 0
