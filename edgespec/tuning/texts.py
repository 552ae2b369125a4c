"""Text for calibration and trials, as pieces of tokens."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from edgespec.errors import InputError
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.files import read_utf8

PIECE = 128
"""Maximum number of tokens in a piece, which one call reads."""

WARM_UP = 16
"""Number of first tokens of a piece that are not scored, since they have little context."""

_FEWEST = 64  # fewest useful tokens
# Limits above which a text does not suit the tokenizer: tokens per byte, and the share of unknown
# tokens for a warning and for an error.
_BYTEWISE = 0.9
_UNKNOWN = 0.05
_MOSTLY_UNKNOWN = 0.5

_log = logging.getLogger(__name__)


def calibration_text(path: Path | None) -> tuple[str, str]:
    """Returns a calibration text, and its name in messages.

    Args:
        path: file with the text; None for the built-in passages in English and Python.

    Raises:
        InputError: if the file is empty or not UTF-8.
        OSError: if the file cannot be read.
    """
    if path is None:
        return "\n\n".join(PASSAGES), "the built-in text"
    text = read_utf8(path, "the calibration text")
    if not text.strip():
        raise InputError(f"{path} is empty: give a calibration text of a few hundred words")
    return text, str(path)


def pieces_of(text: str, tokenizer: Tokenizer, count: int, source: str) -> list[list[int]]:
    """Cuts pieces of token ids from all parts of a text.

    Args:
        text: text of at least `_FEWEST` tokens.
        tokenizer: tokenizer of the target.
        count: maximum number of pieces.
        source: name of the text in messages.

    Returns:
        As many pieces as the text allows, at least one; each starts with the tokens that a text
        starts with.

    Raises:
        InputError: if the text is too short or the tokenizer does not know it.
    """
    beginning = tokenizer.encode("")
    tokens = tokenizer.encode(text, add_special=False)
    if len(tokens) < _FEWEST:
        raise InputError(
            f"{source}: it has {len(tokens)} tokens: give at least {_FEWEST}, better a few thousand"
        )
    unknown = sum(token == tokenizer.unknown_id for token in tokens) / len(tokens)
    if unknown > _MOSTLY_UNKNOWN:
        raise InputError(
            f"{source}: {unknown:.0%} of its tokens are unknown to the model: give a text in a "
            "language it was made for"
        )
    bytewise = len(tokens) / len(text.encode("utf-8"))
    if unknown > _UNKNOWN:
        _log.warning("%s: %.0f %% of its tokens are unknown to the model", source, 100 * unknown)
    elif bytewise > _BYTEWISE:
        _log.warning(
            "%s: %.2f tokens per byte: the tokenizer was not made for such text, so give one like "
            "those that the model will read",
            source,
            bytewise,
        )
    length = PIECE - len(beginning)
    fitting = max(min(count, len(tokens) // length), 1)
    room = max(len(tokens) - fitting * length, 0) // fitting
    starts = [piece * (length + room) for piece in range(fitting)]
    return [beginning + tokens[start : start + length] for start in starts]


PASSAGES = tuple(
    re.split(r"(?m)^%\n", Path(__file__).with_name("passages.txt").read_text(encoding="utf-8"))
)
"""Built-in prose and code, for calibration and trials without a text from the user."""
