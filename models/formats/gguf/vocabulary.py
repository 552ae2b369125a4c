"""The vocabulary in a GGUF file's metadata: tokens, what each is for, and which end a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from edgespec.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgespec.models.fields import ConfigFields

BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
WORD_PIECES = "bert"
UNIGRAM = "t5"
MERGED = "gemma4"  # SentencePiece with the merges themselves in place of scores
SPACE = "\u2581"
"""Stands for a space in tokens of SentencePiece."""

WITHIN = "##"
"""Begins tokens of `WORD_PIECES` within a word."""

Merges = tuple[list[str], list[str]]
"""The first and the second token of all pairs that are merged."""

# What a token is for, by its number in the file.
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6

_PLACE = "tokenizer.ggml"
# Ends of a turn or text in models whose files name only one of their ends. As in llama.cpp they are
# control tokens whatever the file says, since converters may take them for text.
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>",
    "<end_of_turn>", "<turn|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
)  # fmt: skip
# Where both of these are ends, as in gpt-oss, the other only ends a part of an answer.
_ENDS_OF_ALL = ("<|return|>", "<|call|>")
_END_OF_PART = "<|end|>"


@dataclass(frozen=True)
class GGUFVocabulary:
    """A vocabulary; `ConfigFields` are the file's metadata.

    Attributes:
        kind: `BYTE_LEVEL`, `SENTENCEPIECE`, `WORD_PIECES`, `UNIGRAM` or `MERGED`.
        tokens: All tokens by id.
        uses: What each token is for.
        metadata: The file's metadata.
    """

    kind: str
    tokens: list[str]
    uses: list[int]
    metadata: ConfigFields

    # What files that name no such tokens mean.
    _USUAL: ClassVar = {
        SENTENCEPIECE: {"bos": 1, "eos": 2, "unknown": 0},
        WORD_PIECES: {"unknown": 100, "bos": 101, "eos": 102},
    }

    @classmethod
    def read(cls, metadata: ConfigFields) -> GGUFVocabulary:
        """Reads tokens from metadata.

        Raises:
            UnsupportedModelError: The tokenizer is of a kind that is not supported.
            CheckpointError: Tokens are missing, or the file contradicts itself.
        """
        kind = metadata.get(f"{_PLACE}.model")
        kinds = (BYTE_LEVEL, SENTENCEPIECE, WORD_PIECES, UNIGRAM, MERGED)
        if not isinstance(kind, str) or kind not in kinds:
            raise metadata.unsupported(
                f"{_PLACE}.model", f"use a model with one of {', '.join(kinds)}"
            )
        tokens = [str(each) for each in _list(metadata, "tokens", str)]
        uses: list[int] = []
        if metadata.get(f"{_PLACE}.token_type") is None:
            uses = [NORMAL] * len(tokens)
        else:
            uses = [each for each in _list(metadata, "token_type", int) if isinstance(each, int)]
        if len(uses) != len(tokens):
            raise CheckpointError(
                f"{metadata.source}: {_PLACE}.token_type has {len(uses)} values for {len(tokens)} "
                "tokens: download the file again"
            )
        uses = [CONTROL if token in _ENDS else use for token, use in zip(tokens, uses, strict=True)]
        if kind == WORD_PIECES:
            tokens = [*map(_word_piece, tokens, uses)]
        elif kind != BYTE_LEVEL:  # found before spaces are replaced, so they have spaces
            spaced = (token.replace(SPACE, " ") for token in tokens)
            tokens = [
                new if use == USER_DEFINED else token
                for token, new, use in zip(tokens, spaced, uses, strict=True)
            ]
        return cls(kind, tokens, uses, metadata)

    def special(self, name: str) -> int | None:
        """Returns the id of a special token, such as `bos`; None if there is none.

        Raises:
            CheckpointError: The file names a token that does not exist.
        """
        place = f"{_PLACE}.{name}_token_id"
        value = self.metadata.get(place)
        if value is None:
            usual = self._USUAL.get(self.kind, {}).get(name)
            return usual if usual is not None and usual < len(self.tokens) else None
        if value == 2**32 - 1 or value == -1:  # stands for none
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise self.metadata.invalid(place, f"must be an id below {len(self.tokens)}")
        return value

    def ends(self) -> tuple[int, ...]:
        """Returns the ids that end a text: those that the file names, and those known by name."""
        named = [self.special(name) for name in ("eos", "eot", "eom")]
        found = [id_ for id_ in named if id_ is not None]
        found += [id_ for id_, token in enumerate(self.tokens) if token in _ENDS]
        names = {self.tokens[id_] for id_ in found}
        if names.issuperset(_ENDS_OF_ALL):
            found = [id_ for id_ in found if self.tokens[id_] != _END_OF_PART]
        return tuple(dict.fromkeys(found))

    def flag(self, name: str, default: bool) -> bool:
        """Returns a switch of the tokenizer.

        Raises:
            CheckpointError: Its value is no boolean.
        """
        place = f"{_PLACE}.{name}"
        return default if self.metadata.get(place) is None else self.metadata.flag(place)

    def scores(self) -> list[float]:
        """Returns the score of each token: those that score higher are taken, or merged, first.

        Raises:
            CheckpointError: There are none, or not as many as tokens.
        """
        values = _list(self.metadata, "scores", float)
        scores = [each for each in values if isinstance(each, float)]
        if len(scores) != len(self.tokens):
            raise CheckpointError(
                f"{self.metadata.source}: {_PLACE}.scores has {len(scores)} values for "
                f"{len(self.tokens)} tokens: download the file again"
            )
        return scores

    def characters(self) -> bytes:
        """Returns SentencePiece's table of what becomes of characters first; empty: nothing does.

        Raises:
            CheckpointError: It is no list of bytes.
        """
        if self.metadata.get(f"{_PLACE}.precompiled_charsmap") is None:
            return b""
        values = _list(self.metadata, "precompiled_charsmap", int)
        return bytes(each & 255 for each in values if isinstance(each, int))

    def merges(self) -> Merges:
        """Returns the pairs of tokens that are merged, in their order.

        Raises:
            CheckpointError: There are none, or one is no pair.
        """
        lefts = []
        rights = []
        for number, each in enumerate(_list(self.metadata, "merges", str)):
            left, space, right = str(each).partition(" ")
            if not (left and space and right):
                raise CheckpointError(
                    f"{self.metadata.source}: {_PLACE}.merges has {each!r} as number {number}, "
                    "which is no pair: download the file again"
                )
            lefts.append(left)
            rights.append(right)
        return lefts, rights

    def added(self) -> Iterator[tuple[int, str, bool]]:
        """Yields the tokens that are found before a text is split: id, text, whether special."""
        ids = self.ids
        for id_, (token, use) in enumerate(zip(self.tokens, self.uses, strict=True)):
            if use in (CONTROL, USER_DEFINED, UNKNOWN) and token and ids[token] == id_:
                yield id_, token, use != USER_DEFINED

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token that a text can have; of equal ones the first."""
        ids: dict[str, int] = {}
        for id_, (token, use) in enumerate(zip(self.tokens, self.uses, strict=True)):
            if use != UNUSED:
                ids.setdefault(token, id_)
        return ids

    def config(self, begins: bool) -> str:
        """Returns the content of tokenizer_config.json.

        Args:
            begins: Whether a text begins with `bos`.
        """
        names = {
            "bos_token": "bos",
            "eos_token": "eos",
            "unk_token": "unknown",
            "pad_token": "padding",
            "prefix_token": "fim_pre",
            "suffix_token": "fim_suf",
            "middle_token": "fim_mid",
        }
        found = {name: self.special(place) for name, place in names.items()}
        special = {name: self.tokens[id_] for name, id_ in found.items() if id_ is not None}
        fixed = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": begins}
        ends = {"add_eos_token": True} if self.flag("add_eos_token", False) else {}
        return json.dumps({**special, **fixed, **ends}, ensure_ascii=False, indent=1)


def _word_piece(token: str, use: int) -> str:
    """Returns a token as BERT's vocabulary has it, where pieces within a word begin with ##."""
    if use in (CONTROL, UNKNOWN) or not token:
        return token
    return token.removeprefix(SPACE) if token.startswith(SPACE) else f"{WITHIN}{token}"


def _list(metadata: ConfigFields, name: str, kind: type) -> list[object]:
    """A list of one kind of values.

    Raises:
        CheckpointError: It is missing, empty or of another kind.
    """
    place = f"{_PLACE}.{name}"
    values = metadata.get(place)
    if not isinstance(values, list) or not values or not isinstance(values[0], kind):
        raise metadata.invalid(place, f"must be a list of {kind.__name__}")
    return values
