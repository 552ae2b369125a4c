"""Turns the tokens of a text into what its reader gets."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.api.chat import Conversation
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.pieces import Piece, ToolCall
from edgespec.runtime.text.streaming import StreamDecoder
from edgespec.runtime.text.tokenizer import Tokenizer


class AnswerText:
    """Turns tokens into text: whole characters only, cut where it ends, without an end token.

    Args:
        asked: the prompt, and how the text is taken apart.
        tokenizer: tokenizer of the target.
        end: what ends the text besides its tokens.
        stop_ids: tokens that end it.

    Attributes:
        tokens: the tokens so far, with the one that ended it.
        pieces: what they consist of.
        stopped: whether the text has ended.
    """

    def __init__(
        self, asked: Conversation, tokenizer: Tokenizer, end: TextEnd, stop_ids: frozenset[int]
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, asked.prompt, asked.shown)
        self._end, self._reader = end, asked.reader
        # An end token may be a mark that the reader needs, such as one behind a call.
        self._left_out = stop_ids - asked.shown.keys()
        self.tokens: list[int] = []
        self.pieces: list[Piece] = []
        self.stopped = False

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The complete tool calls so far."""
        return () if self._reader is None else tuple(self._reader.calls)

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens of reasoning so far."""
        return 0 if self._reader is None else self._reader.reasoning_tokens

    def push(self, tokens: Sequence[int]) -> Piece:
        """Adds tokens and returns what is now final; drops tokens after the end."""
        piece = Piece()
        for token in tokens:
            self.tokens.append(token)
            if token not in self._left_out:
                piece += self._taken_apart(self._show(self._decoder.push(token)), 1)
            if self.stopped:
                break
        self.pieces.append(piece)
        return piece

    def flush(self) -> Piece:
        """Returns the rest of the text after the last token."""
        rest = self._show(self._decoder.flush())
        piece = self._taken_apart(rest + self._end.flush(), 0)
        if self._reader is not None:
            piece += self._reader.finish()
        self.pieces.append(piece)
        return piece

    def _show(self, text: str) -> str:
        piece, self.stopped = self._end.push(text)
        return piece

    def _taken_apart(self, text: str, tokens: int) -> Piece:
        return Piece(text) if self._reader is None else self._reader.push(text, tokens)
