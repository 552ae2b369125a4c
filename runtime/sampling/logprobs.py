"""Log-probabilities of chosen tokens, before temperature, penalty and truncation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.sampling.truncation import likeliest_tokens


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities of a chosen token and of the likeliest ones.

    Attributes:
        token: id of the chosen token.
        logprob: natural logarithm of its probability.
        top: ids of the likeliest tokens with their log-probabilities, the likeliest first.
        beyond: number of characters at the token's end that are no part of the text, since a stop
            string or a line ended it within the token.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    beyond: int = 0


def token_logprobs(logits: Floats, token: int, vocab_size: int, top: int) -> TokenLogprobs:
    """Returns the log-probabilities of one choice.

    Args:
        logits: [V] float32, the row that the token was chosen from.
        token: the chosen token.
        vocab_size: number of real tokens; higher ids are padding without probability.
        top: number of likeliest tokens to give.
    """
    real = logits[:vocab_size].astype(np.float64)
    peak = real.max()
    total = peak + np.log(np.exp(real - peak).sum())
    best = (
        likeliest_tokens(logits[None], vocab_size, min(top, vocab_size))[0].tolist() if top else []
    )
    return TokenLogprobs(
        token, float(real[token] - total), tuple((id_, float(real[id_] - total)) for id_ in best)
    )
