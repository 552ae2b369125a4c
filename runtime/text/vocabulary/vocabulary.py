"""The tokens of a tokenizer as the bytes that they stand for, and bytes as tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from edgespec.errors import BundleError
from edgespec.runtime.text.tokenizer import Tokenizer

BYTE_LEVEL, SENTENCE_PIECE = "byte-level", "SentencePiece"
# Put before text that a tokenizer would begin with a space; no token goes on from it.
_BOUNDARY = "\x01"
_SPELLED_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPACE = "▁"  # how SentencePiece writes a space


class Vocabulary:
    """The tokens of a tokenizer as bytes, which any two tokenizers have in common.

    Byte-level tokenizers write each byte as a letter, SentencePiece writes spaces as `▁` and rare
    bytes as `<0x0A>`. Special tokens have the bytes of their names.

    Args:
        tokenizer: tokenizer of one of these two kinds.
        name: how an error calls it.

    Attributes:
        kind: `BYTE_LEVEL` or `SENTENCE_PIECE`.
        pieces: bytes of each token by id; empty where there is no token.
        special: ids of special tokens.
        words: by bytes, the token that the tokenizer uses for them, without special tokens.
        names: special tokens by their bytes.
        beginning: tokens that the tokenizer puts before a text.

    Raises:
        BundleError: if the tokenizer is of another kind.
    """

    def __init__(self, tokenizer: Tokenizer, name: str = "the tokenizer") -> None:
        self._backend = tokenizer.backend
        self.kind = kind_of(tokenizer, name)
        self.special = tokenizer.special_ids
        self.beginning = tuple(tokenizer.encode(""))
        self.pieces = [b""] * tokenizer.vocab_size
        self.words: dict[bytes, int] = {}
        self.names: dict[bytes, int] = {}
        added = self._backend.get_added_tokens_decoder()
        rare: dict[bytes, int] = {}  # as <0x0A>: used where no other token fits
        for spelling, id_ in self._backend.get_vocab().items():
            if id_ in added:
                piece = added[id_].content.encode(errors="replace")
            else:
                piece = spelled(spelling, self.kind)
            self.pieces[id_] = piece
            if id_ in self.special:
                self.names[piece] = id_
            elif self.kind == SENTENCE_PIECE and _SPELLED_BYTE.fullmatch(spelling):
                rare[piece] = id_
            else:
                self.words[piece] = id_
        self.words = rare | self.words
        alone = self._backend.encode("a", add_special_tokens=False).ids
        self._adds_space = self.bytes_of(alone) != b"a"
        self._boundary = self._backend.encode(_BOUNDARY, add_special_tokens=False).ids

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """Returns the bytes of tokens; ids beyond the tokenizer's are padding, without any."""
        pieces = self.pieces
        return b"".join([pieces[id_] for id_ in ids if id_ < len(pieces)])

    def encode(self, data: bytes) -> list[int]:
        """Returns tokens for bytes, as they would be in the middle of a text.

        Bytes that are not UTF-8, such as a part of a character, become tokens of one byte each.
        Those that the vocabulary lacks are left out.
        """
        ids: list[int] = []
        while data:
            whole, broken, data = _split(data)
            ids += self._encode(whole) if whole else []
            tokens = [self.words.get(bytes([byte])) for byte in broken]
            ids += [token for token in tokens if token is not None]
        return ids

    def _encode(self, text: str) -> list[int]:
        if not self._adds_space:
            return self._backend.encode(text, add_special_tokens=False).ids
        ids = self._backend.encode(_BOUNDARY + text, add_special_tokens=False).ids
        return ids[len(self._boundary) :]


def kind_of(tokenizer: Tokenizer, name: str = "the tokenizer") -> str:
    """Returns how a tokenizer writes bytes: `BYTE_LEVEL` or `SENTENCE_PIECE`.

    Raises:
        BundleError: if the tokenizer, which an error calls `name`, is of another kind.
    """
    decoder = tokenizer.backend.decoder
    decoders = set(_types(json.loads(decoder.__getstate__()))) if decoder else set[str]()
    if "ByteLevel" in decoders:
        return BYTE_LEVEL
    if decoders & {"ByteFallback", "Metaspace"}:
        return SENTENCE_PIECE
    raise BundleError(
        f"{name} decodes by {', '.join(sorted(decoders)) or 'nothing'}, so its tokens are "
        "not known as bytes: choose a draft with the target's own tokenizer"
    )


def spelled(spelling: str, kind: str) -> bytes:
    """Returns the bytes of a token that was not added, by its spelling in the vocabulary."""
    if kind == BYTE_LEVEL:
        letters = _letters()
        return b"".join([letters.get(letter) or letter.encode() for letter in spelling])
    if _SPELLED_BYTE.fullmatch(spelling):
        return bytes([int(spelling[3:5], 16)])
    return spelling.replace(_SPACE, " ").encode(errors="replace")


def whole_characters(data: bytes) -> int:
    """Returns the length of the longest beginning of bytes that is valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


def _split(data: bytes) -> tuple[str, bytes, bytes]:
    """Returns the text before the first bytes that are not UTF-8, those bytes, and the rest."""
    try:
        return data.decode(), b"", b""
    except UnicodeDecodeError as error:
        return data[: error.start].decode(), data[error.start : error.end], data[error.end :]


@cache
def _letters() -> dict[str, bytes]:
    """Returns the byte of each letter of byte-level tokenizers (Radford et al., GPT-2, 2019).

    Printable letters of Latin-1 stand for themselves, and letters from 256 on for other bytes.
    """
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in shown]
    letters = {chr(byte): bytes([byte]) for byte in shown}
    return letters | {chr(256 + n): bytes([byte]) for n, byte in enumerate(others)}


def _types(decoder: Any) -> Iterator[str]:
    """Yields the types of a decoder and its parts."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders", ()):
            yield from _types(part)
