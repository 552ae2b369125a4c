"""Texts that repeat themselves without end, as those of small models may."""

from __future__ import annotations

from collections import deque

LONGEST_PERIOD = 128
"""Number of tokens up to which a repeated part is noticed."""

LEAST_REPEATS = 6
LEAST_TOKENS = 200  # rulers, rows of a table that is empty and the like are shorter


class LoopMatcher:
    """Notices that the end of a text is one part repeated over and over.

    The part has up to `LONGEST_PERIOD` tokens. It is there `LEAST_REPEATS` times or more, without
    anything between, and on at least `LEAST_TOKENS` tokens in all.
    """

    def __init__(self) -> None:
        self._latest = deque[int](maxlen=LONGEST_PERIOD)  # the last token first
        self._runs: dict[int, int] = {}  # by period: tokens at the end that equal those before

    def push(self, token: int) -> bool:
        """Takes the next token; returns whether the text repeats itself by now."""
        self._runs = {
            period: self._runs.get(period, 0) + 1
            for period, earlier in enumerate(self._latest, 1)
            if earlier == token
        }
        self._latest.appendleft(token)
        return any(
            run + period >= max(LEAST_REPEATS * period, LEAST_TOKENS)
            for period, run in self._runs.items()
        )
