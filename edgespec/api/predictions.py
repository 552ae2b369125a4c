"""Predicted texts as users give them: text, or token ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.runtime.drafters.alignment import Alignment, Prediction
from edgespec.runtime.text.tokenizer import Tokenizer


def predicted_tokens(
    given: str | Sequence[int] | None, tokenizer: Tokenizer, vocabulary: int
) -> list[int]:
    """Converts a prediction to token ids; without a prediction there are none.

    Args:
        given: see `GenerationOptions.prediction`.
        tokenizer: tokenizer of the target.
        vocabulary: number of the target's tokens.

    Raises:
        InputError: if it is neither text nor token ids, or not valid.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return tokenizer.encode(given, add_special=False)
    try:
        if isinstance(given, bytes | bytearray | memoryview):  # its items would look like ids
            raise TypeError
        tokens = [operator.index(token) for token in given]
    except TypeError as error:
        raise InputError(
            f"prediction is {reason(repr(given), 80)}: give a text, or token ids in one flat list"
        ) from error
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise InputError(
                f"prediction has the token id {token}, which is not in the vocabulary of "
                f"{vocabulary}: give the ids of this model's tokenizer"
            )
    return tokens


def prediction_facts(prediction: Prediction | None, tokens: Sequence[int]) -> dict[str, Any]:
    """Returns the fields of `GenerationResult` that concern a prediction.

    They follow from the two texts alone, so the same text always has the same numbers.
    """
    if prediction is None:
        return {}
    alignment = Alignment(prediction)
    for token in tokens:
        alignment.read(token)
    return {
        "accepted_prediction_tokens": alignment.followed,
        "rejected_prediction_tokens": len(prediction) - alignment.followed,
    }
