"""Check whether two texts of a target are the same, up to its rounding errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.noise import gumbel
from edgespec.runtime.text.tokenizer import Tokenizer

VERDICTS = ("no", "near-tie", "yes")
"""Verdicts on two texts, the worst first.

`yes`: the texts are the same. `near-tie`: they are the same up to a place where the target's scores
of the two tokens are closer than its rounding error. `no`: they differ, which is a bug.
"""

_NEAR_TIE = 0.05  # standard deviations of the logits
_BATCH_ROWS = (1, 3, 8, 16)  # rows per pass with which scores are computed again


class Judge:
    """Compares the target's scores of the tokens at which two texts first differ.

    A row's logits depend a little on the other rows of its pass: if activations are rounded to 8
    bits, another summation order sometimes changes a rounding step, and the logits move by 2 % of
    their spread. So two tokens are a near-tie if the target scores them alike in a pass of some
    number of rows. A target whose rows are exact has no near-ties.

    Args:
        target: target, on the engines that made the texts.
        tokenizer: tokenizer of the target.
    """

    def __init__(self, target: Model, tokenizer: Tokenizer) -> None:
        self._target = target
        self._tokenizer = tokenizer

    def verdict(
        self,
        prompt: str | Sequence[int],
        expected: Sequence[int],
        found: Sequence[int],
        temperature: float = 0.0,
        seed: int = 0,
    ) -> str:
        """Returns one of `VERDICTS` on two continuations of a prompt.

        Args:
            prompt: text or token ids.
            expected: tokens of plain decoding.
            found: tokens of the other continuation.
            temperature: temperature of both; no other sampling options may be in use.
            seed: seed of both.
        """
        if list(expected) == list(found):
            return "yes"
        pairs = list(zip(expected, found, strict=False))
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        # If rows are exact, or one text merely ends earlier, rounding does not explain it.
        if same is None or self._target.exact:
            return "no"
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        most = self._target.shapes.rows[-1]
        for rows in sorted({min(rows, most) for rows in _BATCH_ROWS}):
            logits = self._logits(tokens, expected[:same], rows)[: self._tokenizer.vocab_size]
            scores = logits.astype(np.float64)
            if temperature:
                scores += temperature * gumbel(seed, len(tokens) + same, np.arange(scores.size))
            behind = scores.max() - scores[list(pairs[same])].min()
            if behind <= _NEAR_TIE * logits.std():
                return "near-tie"
        return "no"

    def _logits(self, prompt: Sequence[int], made: Sequence[int], rows: int) -> Floats:
        """Computes the logits after `made` with `rows` rows per pass; 1 is plain decoding."""
        runner = Runner(self._target)
        logits: Floats = runner.prefill(prompt)["logits"][0]
        for results in runner.score(made, rows):
            logits = results["logits"][-1]
        return logits


def worst(verdicts: Iterable[str]) -> str:
    """Returns the worst of at least one verdict."""
    return min(verdicts, key=VERDICTS.index)


def tally(verdicts: Iterable[str]) -> str:
    """Describes the number of texts by verdict, the worst first."""
    found = Counter(verdicts)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
