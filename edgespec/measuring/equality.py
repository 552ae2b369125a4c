"""Whether two texts of a target are the same, as far as its arithmetic can tell."""

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
"""The worst first.

`yes`: the texts are the same. `near-tie`: they are the same up to a place where the target scores
both tokens alike, closer than the rounding of a quantized model tells apart. `no`: a fault.
"""

_NEAR_TIE = 0.05  # standard deviations of the logits
_COMPANIES = (1, 3, 8, 16)  # rows of a pass


class Judge:
    """Scores the tokens at which two texts part, by the target on the engines that made them.

    A row's logits depend a little on the rows beside it: where activations are rounded to 8 bits,
    a last digit of the summation order flips a step of the rounding now and then, and the logits
    move by 2 % of their spread. So a near-tie is one if the target itself scores the two tokens
    alike in some company. A target whose rows are exact has no near-ties.

    Args:
        target: as it made the texts.
        tokenizer: of the target.
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
        """One of `VERDICTS` on two continuations of a prompt.

        Args:
            prompt: text or token ids.
            expected: the tokens of plain decoding.
            found: the others.
            temperature: of both; nothing else may shape the sampling.
            seed: of both.
        """
        if list(expected) == list(found):
            return "yes"
        pairs = list(zip(expected, found, strict=False))
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        # Where rows are alike in all company, or one text just ends, no rounding explains it.
        if same is None or self._target.exact:
            return "no"
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        most = self._target.shapes.rows[-1]
        for company in sorted({min(company, most) for company in _COMPANIES}):
            logits = self._logits(tokens, expected[:same], company)[: self._tokenizer.vocab_size]
            scores = logits.astype(np.float64)
            if temperature:
                scores += temperature * gumbel(seed, len(tokens) + same, np.arange(scores.size))
            behind = scores.max() - scores[list(pairs[same])].min()
            if behind <= _NEAR_TIE * logits.std():
                return "near-tie"
        return "no"

    def _logits(self, prompt: Sequence[int], made: Sequence[int], company: int) -> Floats:
        """The row behind what was made so far, `company` rows to a pass; 1 is plain decoding."""
        runner = Runner(self._target)
        logits: Floats = runner.prefill(prompt)["logits"][0]
        for results in runner.score(made, company):
            logits = results["logits"][-1]
        return logits


def worst(verdicts: Iterable[str]) -> str:
    """The worst of at least one."""
    return min(verdicts, key=VERDICTS.index)


def tally(verdicts: Iterable[str]) -> str:
    """How many there are of each, the worst first."""
    found = Counter(verdicts)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
