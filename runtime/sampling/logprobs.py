"""Log-probabilities of chosen tokens: the model's, before temperature, penalty, truncation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.sampling.likeliest import likeliest_tokens


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely a token was, and what else was likely.

    Attributes:
        token: the id that was chosen.
        logprob: natural logarithm of its probability.
        top: the likeliest ids and theirs, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: Floats, token: int, vocab_size: int, top: int) -> TokenLogprobs:
    """The log-probabilities of one choice.

    Args:
        logits: [V] float32, the row that the choice was made by.
        token: the choice.
        vocab_size: ids from there on are padding, which has no probability.
        top: how many of the likeliest to give.
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
