"""What a bias and the tokens of a path do to the logits behind it, before all else.

In llama.cpp's order and arithmetic: a bias is added; then logits of repeated tokens are divided by
the repetition penalty where positive and multiplied where negative (Keskar et al., 2019); then they
lose the frequency penalty for each time and the presence penalty once (OpenAI), and what
`repetitions` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from edgespec.runtime.arrays import Floats, Ids
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.repetitions import Breakers, Repetitions

_NEVER = np.float32(1e30)  # as good as infinite, but no temperature or penalty makes it a NaN


class Penalties:
    """Penalties and bias of one text, which counts its tokens as it grows.

    Args:
        options: penalties, bias, and which tokens count.
        vocab_size: number of token ids of the tokenizer.
        prompt: tokens before the text.
        breakers: what ends repetitions.
    """

    def __init__(
        self,
        options: SamplingOptions,
        vocab_size: int,
        prompt: Sequence[int],
        breakers: Breakers,
    ) -> None:
        self._options = options
        self._tokens = list(prompt)
        self._window = None if options.repeat_last_n in (None, -1) else options.repeat_last_n
        self._bias = np.zeros(vocab_size, np.float32)
        self._biased = np.array([token for token, _ in options.logit_bias], np.int64)
        bias = np.array([each for _, each in options.logit_bias], np.float32)
        self._bias[self._biased] = bias.clip(-_NEVER, _NEVER)
        # Unless all penalties count the same tokens, the repetition penalty counts the prompt, too.
        same = options.repeat_last_n is not None
        repeats = options.repetition_penalty != 1
        self._repeated = np.zeros(vocab_size, np.float32)  # how often each token is counted
        self._written = self._repeated if same or not repeats else self._repeated.copy()
        counted = np.array(self._tokens if same or repeats else [], np.int64)
        if self._window is not None:
            counted = counted[max(len(counted) - self._window, 0) :]
        self._ids, counts = np.unique(counted[counted < vocab_size], return_counts=True)
        self._repeated[self._ids] = counts
        self._repetitions: Repetitions | None = None
        if options.penalizes_repetitions:
            self._repetitions = Repetitions(options, breakers, prompt)

    def append(self, token: int) -> None:
        """Goes on by one token of the text."""
        self._tokens.append(token)
        self._count(token, 1)
        if self._window is not None and len(self._tokens) > self._window:
            self._count(self._tokens[-1 - self._window], -1)
        if self._repetitions is not None:
            self._repetitions.append(token)

    @contextmanager
    def behind(self, branch: Sequence[int]) -> Iterator[None]:
        """Goes on by the tokens of a branch for the time being."""
        lengths = None if self._repetitions is None else self._repetitions.lengths
        for token in branch:
            self.append(token)
        try:
            yield
        finally:
            for _ in branch:
                if self._window is not None and len(self._tokens) > self._window:
                    self._count(self._tokens[-1 - self._window], 1)
                self._count(self._tokens.pop(), -1)
            if self._repetitions is not None and lengths is not None:
                self._repetitions.lengths = lengths

    def penalized(self, logits: Floats, tokens: Ids | None = None) -> Floats:
        """Returns the logits of the row behind the tokens so far, as a new array.

        Args:
            logits: [n] float32.
            tokens: [n] int64, the token of each logit, -1 for none; None: token n is number n.
        """
        found = np.array(logits, np.float32)
        options = self._options
        if self._biased.size:
            places, ids = _places(self._biased, found, tokens)
            found[places] += self._bias[ids]
        places, ids = _places(self._ids, found, tokens)
        values = found[places]
        written = self._written[ids]
        if options.repetition_penalty != 1:
            penalty = options.repetition_penalty
            values = np.where(values < 0, values * penalty, values / penalty)
        # As in llama.cpp: both are one term, in float32.
        found[places] = values - (
            written * np.float32(options.frequency_penalty)
            + (written > 0) * np.float32(options.presence_penalty)
        )
        if self._repetitions is not None:
            lost = self._repetitions.penalties()
            places, ids = _places(np.array(list(lost), np.int64), found, tokens)
            found[places] -= np.array([lost[token] for token in ids.tolist()], np.float32)
        return found

    def _count(self, token: int, times: int) -> None:
        if token >= self._bias.size:
            return
        if not self._repeated[token]:
            self._ids = np.append(self._ids, token)
        self._repeated[token] += times
        if self._written is not self._repeated:
            self._written[token] += times
        if not self._repeated[token]:
            self._ids = self._ids[self._ids != token]


def _places(ids: Ids, logits: Floats, tokens: Ids | None) -> tuple[Ids, Ids]:
    """Returns which logits belong to some tokens, and these tokens."""
    if tokens is None:
        ids = ids[ids < logits.size]  # a tokenizer may know more than a model
        return ids, ids
    places = np.flatnonzero(np.isin(tokens[: logits.size], ids))
    return places, tokens[places]
