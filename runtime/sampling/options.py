"""How tokens are chosen: the user's options. It imports no numpy, for the help of commands."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

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
    typical_p: float = option(
        1.0,
        "sample from the tokens whose surprise is the most usual one, up to this probability "
        "(Meister et al., 2022); 1 is off",
        least=0,
        most=1,
        give="a number from 0 to 1 (off)",
    )
    top_n_sigma: float = option(
        0.0,
        "sample from tokens whose logits are at most so many standard deviations below the best "
        "(Tang et al., 2024); 0 is off",
        least=0,
    )
    xtc_probability: float = option(
        0.0,
        "how often, from 0 (never) to 1, all but the least likely of the tokens that reach "
        "xtc_threshold are left out",
        least=0,
        most=1,
        give="a number from 0 (off) to 1",
    )
    xtc_threshold: float = option(
        0.1,
        "probability, before the temperature, from which on xtc_probability leaves tokens out; "
        "above 0.5 is off",
        least=0,
        most=1,
        give="a number from 0 to 1 (0.1 is usual)",
    )
    mirostat: int = option(
        0,
        "truncate so that the surprise of tokens stays near mirostat_tau (Basu et al., 2021), by "
        "version 1 or 2, instead of by all the options above but the temperature; 0 is off",
        least=0,
        most=2,
        give="1 or 2 for a version of it, or 0 (off)",
    )
    mirostat_tau: float = option(5.0, "surprise that mirostat aims at, in bits", least=0, most=100)
    mirostat_eta: float = option(
        0.1, "how fast mirostat follows the surprise of a token", least=0, most=1
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
    dry_multiplier: float = option(
        0.0,
        "subtracted from logits of tokens that would go on with a repetition of prompt and text, "
        "times dry_base to the power of its tokens beyond dry_allowed_length; 0 is off",
        least=0,
        most=100,
        give="a number from 0 (off) to 100 (0.8 is usual)",
    )
    dry_base: float = option(
        1.75,
        "see dry_multiplier",
        least=1,
        most=100,
        give="a number from 1 to 100 (1.75 is usual)",
    )
    dry_allowed_length: int = option(
        2, "number of tokens from which on dry_multiplier counts a repetition", least=1
    )
    dry_penalty_last_n: int = option(
        -1,
        "number of last tokens in which dry_multiplier looks for repetitions; -1 for all",
        least=-1,
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), "texts that repetitions of dry_multiplier end at", metavar="TEXT"
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
        breakers = texts("dry_sequence_breakers", self.dry_sequence_breakers)
        object.__setattr__(self, "dry_sequence_breakers", breakers)

    @property
    def penalizes_repetitions(self) -> bool:
        """Whether logits of tokens that go on with a repetition are changed."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def penalizes(self) -> bool:
        """Whether logits are changed by a penalty or a bias."""
        neutral = self.repetition_penalty == 1 and not (
            self.presence_penalty or self.frequency_penalty
        )
        return bool(self.logit_bias) or not neutral or self.penalizes_repetitions


def texts(name: str, given: object) -> tuple[str, ...]:
    """Returns the texts that an option holds, one or several.

    Raises:
        InputError: if one is no text, or empty.
    """
    several = isinstance(given, Iterable) and not isinstance(given, str)
    found = tuple(cast("Iterable[object]", given)) if several else (given,)
    if not all(isinstance(text, str) and text for text in found):
        raise InputError(f"{name} is {given!r}: give strings of at least one character")
    return cast("tuple[str, ...]", found)


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
