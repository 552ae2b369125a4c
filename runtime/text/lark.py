"""Pieces of grammars in llguidance's Lark notation (docs/syntax.md there).

Marks are texts that some tokenizers have as tokens, which nothing can spell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

TEXT = r"(.|\n)*"
"""Regular expression of any text."""


class Spelling:
    """Writes marks in a grammar.

    Args:
        special: ids of tokens that grammars must name, by what they are called.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special

    def marks(self, text: str) -> str:
        """Returns a text for a rule, in which tokens stand for the marks in it."""
        return " ".join([self._part(part) for part in self.parts(text)])

    def begins_with_token(self, text: str) -> bool:
        """Whether a text begins with a token that must be named."""
        return any(text.startswith(token) for token in self._special)

    def parts(self, text: str) -> list[str]:
        """Splits a text into special tokens and what is between them."""
        if not self._special:
            return [text] if text else []
        longest_first = sorted(self._special, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        return [part for part in re.split(f"({pattern})", text) if part]

    def lines(self, text: str) -> list[str]:
        """Returns a text for a rule in parts: tokens, ends of lines, and what is between them."""
        split = (each for part in self.parts(text) for each in re.split(r"(\n)", part))
        return [self._part(each) for each in split if each]

    def ended(self, rule: str, mark: str, text: str = TEXT, but: str = "") -> Iterator[str]:
        """Yields rules for a text that ends with the first of a mark, spelled or as a token.

        Args:
            rule: name of the rule; others begin with it.
            mark: the mark.
            text: regular expression of the text before it.
            but: name of a terminal that neither the text nor text and mark may match; empty for
                none.
        """
        first, *others = self.parts(mark)
        rest = "".join(f" {self._part(each)}" for each in others)
        terminal = rule.upper()
        exception = but and f" & ~{but}"
        ways = [f"{rule}_spelled"]
        yield f"{terminal}_SPELLED: /{text}{escape(first)}/{exception}"
        yield f"{rule}_spelled[lazy]: {terminal}_SPELLED"
        if first in self._special:
            ways.append(f"{terminal}_TEXT {self._part(first)}")
            yield f"{terminal}_TEXT: /{text}/{exception}"
        yield f"{rule}: ({' | '.join(ways)}){rest}"

    def _part(self, text: str) -> str:
        if text in self._special:
            return f"<[{self._special[text]}]>"
        return quote(text)


def optional_prefix(parts: Sequence[str]) -> str:
    """Returns what stands in a rule for the first of some parts, as many as come."""
    nested = ""
    for part in reversed(parts):
        nested = f" ({part}{nested})?"
    return nested


def chain_rules(
    name: str, members: Sequence[tuple[str, bool]], separator: str
) -> tuple[str, list[str]]:
    """Returns Lark rules for members in their order, some of which may be left out.

    Args:
        name: beginning of the rules' names.
        members: what stands for each member in a rule, and whether it must come.
        separator: what stands in a rule between two members.

    Returns:
        What stands for all members, and the rules that it needs.
    """
    rules: list[str] = []
    first = later = '""'  # each rule is the rest behind some members: none yet, or at least one
    for number, (member, required) in reversed(list(enumerate(members))):
        without = ("", "") if required else (f" | {first}", f" | {later}")
        rules.append(f"{name}_{number}a: {member} {later}{without[0]}")
        rules.append(f"{name}_{number}b: {separator} {member} {later}{without[1]}")
        first = f"{name}_{number}a"
        later = f"{name}_{number}b"
    return first, rules


def quote(text: str) -> str:
    """Returns a text as a literal of a grammar."""
    return json.dumps(text, ensure_ascii=False)


def escape(text: str) -> str:
    """Returns a text as a part of a regular expression between slashes."""
    return re.sub(r"([^\w\s<>\"':;,=!@%&_-])", r"\\\1", text).replace("\n", r"\n")
