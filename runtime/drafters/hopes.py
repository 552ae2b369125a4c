"""What earlier texts let the next one hope for, by which a draft model reads what will pay."""

from __future__ import annotations

from edgespec.runtime.speculation.generation import Generation

FIRST_ACCEPTANCE = 0.85
"""How likely the target is to choose a model's best token, where nothing is known of both."""

FIRST_LENGTH = 128
"""Tokens of a text, where none has ended yet."""

_TEXT_WEIGHT = 0.2  # of a text in what the next one hopes for


class Hopes:
    """What the texts of a drafter have taught."""

    def __init__(self) -> None:
        self._acceptances = dict[bool, float]()  # of greedy texts and of sampled ones
        self._length = float(FIRST_LENGTH)

    def acceptance(self, generation: Generation) -> float:
        """Returns how likely the target is to choose the model's best token as a text begins."""
        return self._acceptances.get(generation.is_sampled, FIRST_ACCEPTANCE)

    def further(self, generation: Generation) -> float:
        """Returns how many tokens may be expected to follow.

        They are as many as texts mostly have, or as have come where these are more: what is read
        once it would have paid costs at most twice what it had to (ski rental: Karlin et al.,
        Competitive snoopy caching, 1988).
        """
        return min(max(self._length, generation.new_tokens), generation.remaining)

    def learn(self, generation: Generation, acceptance: float | None) -> None:
        """Learns of a text that has ended.

        What was hoped for in vain is forgotten by texts that are not read, so that it is tried
        again. Where a text was cut, nobody knows how long it would have become, but that it is not
        shorter. One that was cancelled counts: a stop string ends texts so, too.

        Args:
            generation: the text.
            acceptance: what was found in it; None: it was not read.
        """
        found = FIRST_ACCEPTANCE if acceptance is None else acceptance
        before = self.acceptance(generation)
        self._acceptances[generation.is_sampled] = before + (found - before) * _TEXT_WEIGHT
        length = generation.new_tokens
        whole = length > 0 and generation.finish not in ("length", "context", "error")
        if whole or length > self._length:
            self._length += (length - self._length) * _TEXT_WEIGHT
