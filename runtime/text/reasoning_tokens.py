"""Counting the tokens that an answer spends on reasoning."""

from __future__ import annotations


class ReasoningTokens:
    """Counts the tokens whose text is reasoning.

    Marks around reasoning do not count, and neither does white space before the mark that ends it.
    Texts come token by token, so that the count does not depend on how many a round gave.

    Attributes:
        count: number of such tokens so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._uncertain = 0  # tokens that are reasoning unless a mark begins with them

    def read(self, tokens: int, inside: bool, reasoning: str) -> None:
        """Counts what was read.

        Args:
            tokens: number of tokens that were read, one at most.
            inside: whether they came inside of reasoning.
            reasoning: reasoning that is certain since then.
        """
        self._uncertain = self._uncertain + tokens if inside else 0
        if reasoning:
            # A token may hold both the mark that begins reasoning and its first characters.
            self.count += max(self._uncertain, tokens)
            self._uncertain = 0
