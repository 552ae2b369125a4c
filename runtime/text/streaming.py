"""Decoding of tokens as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgespec.runtime.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class StreamDecoder:
    """Decodes tokens as they come, without ever returning part of a character.

    A decoder may treat the first token of a text differently (a leading space), and the bytes of
    one character may lie in several tokens. So each new piece is the difference of two decodings of
    a short window: the tokens of the previous piece, without and with the new ones.

    Args:
        tokenizer: Tokenizer of the tokens to come.
        context: Tokens before them, whose text is not returned. Needed if the text may go on with a
            space.
        shown: Special tokens that are shown, with their texts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int] = (),
        shown: Mapping[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._special = shown or {}
        self._window = list(context)
        self._settled = len(self._window)  # number of tokens in the window whose text was returned
        self._shown = tokenizer.decode(self._window)

    def push(self, *tokens: int) -> str:
        """Returns the text that `tokens` complete; an incomplete character waits for its rest."""
        # One by one, so that the text does not depend on how tokens are grouped: some decoders show
        # nothing of bytes that end inside a character, not even the characters before it.
        return "".join([self._push(token) for token in tokens])

    def flush(self) -> str:
        """Returns the held back text after the last token; an incomplete character is U+FFFD."""
        return self._settle(self._piece())

    def _push(self, token: int) -> str:
        special = self._special.get(token)
        if special is not None:
            before = self.flush()
            self._window.append(token)
            return before + self._settle("") + special
        self._window.append(token)
        piece = self._piece()
        return "" if not piece or piece.endswith(_REPLACEMENT) else self._settle(piece)

    def _piece(self) -> str:
        """Returns the part of the window's text that was not returned yet."""
        text = self._tokenizer.decode(self._window)
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        whole = self._shown.rstrip(_REPLACEMENT)
        if text.startswith(whole):  # the context ended inside a character, which continues here
            self._settled, self._shown = 0, whole
            return text[len(whole) :]
        # A broken character has changed the text before it, which has already been returned.
        return self._tokenizer.decode(self._window[self._settled :])

    def _settle(self, piece: str) -> str:
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        self._shown = self._tokenizer.decode(self._window)
        return piece
