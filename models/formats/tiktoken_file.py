"""The tokenizer of a folder that has it as a file of tiktoken: tokens by their ranks."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.fields import ConfigFields, check_share, read_checkpoint_text
from edgespec.models.formats.gguf.merging import pairs
from edgespec.models.formats.gguf.tokenizer import tokenizer_files
from edgespec.models.formats.gguf.vocabulary import (
    BYTE_LEVEL,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    GGUFVocabulary,
)

if TYPE_CHECKING:
    from pathlib import Path

TIKTOKEN_FILE = "tiktoken.model"
_ADDED = "added_tokens_decoder"
_MOST_ADDED = 2**12
_DIGITS = 10  # more than an id has
_FLAGS = ("lstrip", "rstrip", "single_word")  # of added tokens; none of them is implemented
_PLACE = "tokenizer.ggml"


def read_tiktoken(path: Path, config: ConfigFields, splitting: str) -> str:
    """Returns the tokenizer.json that finds the same tokens.

    It is made as that of a GGUF file, of what llama.cpp's converter makes of the same files.

    Args:
        path: The file: a line for each token, with its bytes in base 64 and its rank.
        config: tokenizer_config.json, which has the tokens that are no bytes of texts.
        splitting: How texts are split, by the name that GGUF files have for it.

    Raises:
        CheckpointError: Something is damaged.
    """
    check_share(path)
    tokens = _tokens(path)
    whole, left, right = pairs(tokens)
    order = np.lexsort((right, left, whole))
    merges = [f"{tokens[a]} {tokens[b]}" for a, b in zip(left[order], right[order], strict=True)]
    uses = [NORMAL] * len(tokens)
    added = _added(config, len(tokens))
    for id_ in range(len(tokens), max(added, default=-1) + 1):
        text, use = added.get(id_, (f"<unused {id_}>", UNUSED))
        tokens.append(text)
        uses.append(use)
    metadata = {
        f"{_PLACE}.model": BYTE_LEVEL,
        f"{_PLACE}.pre": splitting,
        f"{_PLACE}.tokens": tokens,
        f"{_PLACE}.token_type": uses,
        f"{_PLACE}.merges": merges,
    }
    files = tokenizer_files(GGUFVocabulary.read(ConfigFields(metadata, str(path))))
    return files["tokenizer.json"]


def _tokens(path: Path) -> list[str]:
    """Returns the tokens by rank, each of whose bytes is a letter as in GPT-2's vocabulary."""
    letters = _letters()
    texts: dict[int, str] = {}
    for number, line in enumerate(read_checkpoint_text(path).splitlines(), 1):
        try:
            text, rank = line.split()
            if int(rank) in texts:
                raise ValueError(rank)
            texts[int(rank)] = "".join(letters[each] for each in b64decode(text, validate=True))
        except ValueError as error:
            raise CheckpointError(
                f"{path}: line {number} is {line[:40]!r}, not a token and its rank: download "
                "it again"
            ) from error
    tokens = [texts[rank] for rank in sorted(texts)]
    if {*texts} != {*range(len(tokens))} or len({*tokens} - {""}) != len(tokens) or not tokens:
        raise CheckpointError(f"{path} lacks tokens or has some twice: download it again")
    return tokens


def _letters() -> list[str]:
    """Returns the letter of each byte: printable ones are their own, others follow behind all."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(each if each in plain else next(others)) for each in range(256)]


def _added(config: ConfigFields, first: int) -> dict[int, tuple[str, int]]:
    """Returns the text and the use of each token from an id on that is no bytes of texts."""
    listed = config.group(_ADDED)
    found: dict[int, tuple[str, int]] = {}
    for name in listed.values:
        own = listed.group(name)
        text = own.get("content")
        is_id = name.isdecimal() and len(name) < _DIGITS and int(name) < first + _MOST_ADDED
        if not is_id or not isinstance(text, str):
            raise config.invalid(_ADDED, "must have texts of tokens by their ids")
        own.only(dict.fromkeys(_FLAGS, (None, False)), "use a folder with tokenizer.json")
        if int(name) >= first:
            found[int(name)] = text, CONTROL if own.flag("special") else USER_DEFINED
    return found
