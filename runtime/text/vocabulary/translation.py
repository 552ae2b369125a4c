"""A growing text of the target's in the tokens of a draft that has another tokenizer, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from edgespec.runtime.text.vocabulary.mapping import MISSING, VocabularyMap
from edgespec.runtime.text.vocabulary.vocabulary import Vocabulary, whole_characters

_OPEN = 16  # tokens at the end of a text that may be encoded again as it grows
_LONGEST = 256  # tokens that are, where no word begins among them
_CONTEXT = 6  # tokens of the text that a draft's text is tokenized behind


class SharedText:
    """A text in the draft's tokens, each token of the target's on its own.

    What was translated stays the same, whatever follows. A token that the draft lacks becomes
    several.

    Args:
        vocabularies: the tokens of both.
    """

    def __init__(self, vocabularies: VocabularyMap) -> None:
        self._map = vocabularies
        draft = vocabularies.draft
        self._ids = list(draft.beginning)
        self._count = 0
        self._nothing = _nothing(draft)
        self._known: dict[int, list[int]] = {}

    @property
    def length(self) -> int:
        """Number of the draft's tokens."""
        return len(self._ids)

    def read(self, text: Sequence[int]) -> list[int]:
        """Returns the draft's tokens for a text that begins with the one of the last call."""
        first = self._count or _beginning(self._map.target, text)
        for token in text[first:]:
            if token not in self._known:
                self._known[token] = self._translated(token)
            self._ids += self._known[token]
        self._count = len(text)
        return self._ids

    def _translated(self, token: int) -> list[int]:
        target = self._map.target
        draft = self._map.draft
        own = int(self._map.to_draft[token]) if token < len(target.pieces) else MISSING
        return [own] if own != MISSING else draft.encode(target.bytes_of([token])) or self._nothing


class RecodedText:
    """A text in the tokens that the draft's tokenizer gives for it.

    Only its end is encoded again as the text grows, from the beginning of a word that lies some
    tokens before.

    Args:
        vocabularies: the tokens of both.
    """

    def __init__(self, vocabularies: VocabularyMap) -> None:
        self._target = vocabularies.target
        self._draft = vocabularies.draft
        self._settled = list(self._draft.beginning)
        self._end = b""
        self._ids = list(self._settled)
        self._count = 0

    def read(self, text: Sequence[int]) -> list[int]:
        """Returns the draft's tokens for a text that begins with the one of the last call."""
        first = self._count or _beginning(self._target, text)
        if len(text) > self._count:
            self._count = len(text)
            self._end += self._target.bytes_of(text[first:])
            ids = self._draft.encode(self._end)
            self._ids = [*self._settled, *ids]
            self._settle(ids)
        return self._ids or _nothing(self._draft)

    def _settle(self, ids: list[int]) -> None:
        """Takes the beginning of the end as final once there are many tokens of it."""
        if len(ids) <= 2 * _OPEN:
            return
        pieces = [self._draft.pieces[id_] for id_ in ids]
        words = [
            place
            for place in range(1, len(ids) - _OPEN)
            if pieces[place][:1].isspace() and not pieces[place - 1][-1:].isspace()
        ]
        if words and b"".join(pieces) == self._end:  # else the tokenizer has changed the text
            self._settled += ids[: words[-1]]
            self._end = b"".join(pieces[words[-1] :])
        elif len(ids) > _LONGEST:
            self._settled += ids
            self._end = b""


def continuation(target: Vocabulary, text: Sequence[int], drafted: bytes) -> list[tuple[int, int]]:
    """Returns the target's tokens for bytes that follow a text.

    The tokens of the text stay as they are. What the target's tokenizer would give for text and
    draft together is taken only where it begins with these tokens, else what it gives for the
    draft alone. Bytes after the draft's last whole character are left out.

    Args:
        target: the target's tokens.
        text: token ids.
        drafted: bytes that follow.

    Returns:
        Each token, and the number of drafted bytes up to its end, ascending.
    """
    for before in (_context(target, text), []):
        given = target.bytes_of(before)
        data = given + drafted
        data = data[: whole_characters(data)]
        ids = target.encode(data)
        rest = ids[len(before) :]
        if rest and ids[: len(before)] == before and target.bytes_of(ids) == data:
            ends = accumulate(len(target.pieces[id_]) for id_ in rest)
            return list(zip(rest, ends, strict=True))
    return []


def _context(target: Vocabulary, text: Sequence[int]) -> list[int]:
    """Returns some last tokens of a text, from the beginning of a character on."""
    tokens = list(text[-_CONTEXT:])
    for place in range(len(tokens) - 1, -1, -1):
        if tokens[place] in target.special or tokens[place] >= len(target.pieces):
            tokens = tokens[place + 1 :]
            break
    while tokens and _continues(target.pieces[tokens[0]]):
        tokens = tokens[1:]
    return tokens


def _nothing(draft: Vocabulary) -> list[int]:
    """Returns a token for what a draft cannot say at all, because a model has to read something."""
    return draft.encode(b" ")[:1] or [0]


def _continues(piece: bytes) -> bool:
    """Returns whether a token begins within a character."""
    return bool(piece) and piece[0] & 0xC0 == 0x80


def _beginning(target: Vocabulary, text: Sequence[int]) -> int:
    """Returns how many tokens the target's tokenizer has put before a text."""
    count = len(target.beginning)
    return count if tuple(text[:count]) == target.beginning else 0
