"""How tokens are chosen: the user's options. It imports no numpy, for the help of commands."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.errors import InputError
from edgespec.system.options import Options, explained, option

LEAST_TEMPERATURE = 1e-6
"""Smallest temperature besides 0. Below it, or above a million, float32 probabilities no longer
tell tokens apart."""


@explained
@dataclass(frozen=True)
class SamplingOptions(Options):
    """How tokens are chosen; the defaults are greedy decoding.

    Numpy numbers are converted to Python numbers.

    Raises:
        InputError: If a value is outside its range.
    """

    temperature: float = option(
        0.0,
        "sampling temperature, by which logits are divided; 0 is greedy",
        least=0,
        gap=LEAST_TEMPERATURE,
        most=1e6,
        give="0 for greedy decoding, or a number from 1e-6 to 1e6 (0.7 to 1 is usual)",
        usual=True,
    )
    top_k: int = option(
        0,
        "sample from this number of likeliest tokens and those equal to the last; 0 is off",
        least=0,
    )
    top_p: float = option(
        1.0,
        "sample from the smallest set of likeliest tokens with this probability; 1 is off, "
        "0 leaves the likeliest alone",
        least=0,
        most=1,
        give="a number from 0 (the likeliest token) to 1 (off)",
    )
    min_p: float = option(
        0.0,
        "sample from tokens with at least this share of the best one's probability; 0 is off",
        least=0,
        most=1,
        give="a number from 0 (off) to 1",
    )
    # A penalty near 0 would make logits infinite.
    repetition_penalty: float = option(
        1.0,
        "logits of tokens of prompt and text are divided by it where positive and multiplied "
        "where negative (Keskar et al., 2019), in greedy decoding, too; 1 is off",
        least=0.01,
        most=100,
        give="a number from 0.01 to 100 (1.1 is usual)",
    )
    presence_penalty: float = option(
        0.0,
        "subtracted from logits of tokens that the text has; 0 is off",
        least=-2,
        most=2,
        give="a number from -2 to 2 (0 is off)",
    )
    frequency_penalty: float = option(
        0.0,
        "subtracted from logits of tokens as often as the text has them; 0 is off",
        least=-2,
        most=2,
        give="a number from -2 to 2 (0 is off)",
    )
    repeat_last_n: int | None = option(
        None,
        "number of last tokens of prompt and text that all three penalties count; -1 for all",
        none="each counts what it says",
        least=-1,
    )
    logit_bias: tuple[tuple[int, float], ...] = option(
        (), "numbers that are added to logits, by token ids, as in {42: -1.5}; -inf for never"
    )
    seed: int | None = option(
        None,
        "the same seed gives the same text",
        none="one is drawn, and reported",
        least=0,
        most=(1 << 64) - 1,
        give="a whole number from 0 to 2**64 - 1, or nothing to have one drawn",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))

    @property
    def penalizes(self) -> bool:
        """Whether logits are changed by a penalty or a bias."""
        neutral = self.repetition_penalty == 1 and not (
            self.presence_penalty or self.frequency_penalty
        )
        return bool(self.logit_bias) or not neutral


def _bias(given: object) -> tuple[tuple[int, float], ...]:
    pairs: Any = given.items() if isinstance(given, Mapping) else given
    try:
        # Keys of JSON and TOML are strings.
        found = {
            int(token) if isinstance(token, str) else operator.index(token): float(value)
            for token, value in pairs
        }
    except (TypeError, ValueError):
        found = {-1: 0.0}
    if any(token < 0 or math.isnan(value) for token, value in found.items()):
        raise InputError(
            f"logit_bias is {given!r:.80}: give numbers by token ids, as in {{42: -1.5}}"
        )
    return tuple(found.items())
