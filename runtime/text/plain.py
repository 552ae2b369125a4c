"""Text to tokens as it stands: names of special tokens in it are text like any other."""

from __future__ import annotations

import re

from edgespec.runtime.text.tokenizer import Tokenizer

_SPACE = "▁"  # how SentencePiece writes a space
# Put before text that a tokenizer would begin with a space; no token goes on from it.
_BOUNDARY = "\x01"


class PlainEncoder:
    """Encodes the text of files, in which a special token's name must not become that token.

    Args:
        tokenizer: tokenizer to use.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = tokenizer.backend.get_added_tokens_decoder().values()
        special = sorted((each.content for each in names if each.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        alone = tokenizer.backend.encode("x", add_special_tokens=False).tokens
        self._adds_space = bool(alone) and alone[0].startswith(_SPACE)
        self._boundary = tokenizer.encode(_BOUNDARY, add_special=False)

    def encode(self, text: str, inside: bool = False) -> list[int]:
        """Returns the token ids of a text.

        Args:
            text: the text.
            inside: whether it goes on from other text, so that no space is put before it by
                tokenizers that otherwise do.

        Raises:
            InputError: if the text holds lone surrogates.
        """
        first, *others = self._parts(text)
        ids = self._inside(first) if inside else self._tokenizer.encode(first, add_special=False)
        for part in others:
            ids += self._inside(part)
        return ids

    def _parts(self, text: str) -> list[str]:
        """Splits a text within the names of special tokens, behind their first characters."""
        found = self._special.finditer(text) if self._special is not None else ()
        ends = [match.start() + 1 for match in found]
        return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]

    def _inside(self, text: str) -> list[int]:
        if not self._adds_space:
            return self._tokenizer.encode(text, add_special=False)
        ids = self._tokenizer.encode(_BOUNDARY + text, add_special=False)
        return ids[len(self._boundary) :]
