"""Patterns of JSON schemas, in the words of llguidance's regular expressions."""

from __future__ import annotations

import re

# A class of characters as ECMA-262 reads it, a property of characters, or any other escape.
_PARTS = re.compile(r"\[(\^?)((?:\\.|[^\]\\])*)\]|\\[pP](?:\{[^}]*\}|.)|\\.", re.DOTALL)
_IN_CLASS = re.compile(r"\\.|[\[&~]", re.DOTALL)
_NO_NUL = r"[^\x00]"
_MOST = 64  # names that are listed


def adapt_pattern(pattern: str) -> str:
    r"""Returns a pattern for strings that are tested as what their JSON means.

    Where a class has all control characters, llguidance (1.9) takes `\"` and `\\` for two of its
    characters. None of our classes has the character 0, so that none has all of them. What ECMA-262
    takes for characters of a class, and Rust for operators, is escaped.
    """
    return _PARTS.sub(_adapted_class, pattern)


def _adapted_class(found: re.Match[str]) -> str:
    text = found[0]
    if text.startswith("\\"):
        return f"[{text}&&{_NO_NUL}]" if text[1] in "pP" else text
    if not found[2]:  # nothing, or anything
        return text if not found[1] else r"[\s\S]"
    inner = _IN_CLASS.sub(lambda each: each[0] if len(each[0]) > 1 else f"\\{each[0]}", found[2])
    return f"[[{found[1]}{inner}]&&{_NO_NUL}]"


def matching_strings(pattern: str) -> list[str] | None:
    """Returns all strings that a pattern matches; None if they are many, or not easily told."""
    if not (pattern.startswith("^") and pattern.endswith("$")) or pattern.endswith("\\$"):
        return None
    try:
        found, rest = _sequence(pattern[1:-1])
    except ValueError:
        return None
    return None if rest else sorted(set(found))


def _alternatives(text: str) -> tuple[list[str], str]:
    """Returns what a regular expression matches up to a closing parenthesis, and the rest."""
    found, text = _sequence(text)
    while text.startswith("|"):
        others, text = _sequence(text[1:])
        found = _bounded(found + others)
    return found, text


def _sequence(text: str) -> tuple[list[str], str]:
    found = [""]
    while text and text[0] not in "|)":
        part, text = _atom(text)
        part, text = _repeated(part, text)
        found = _bounded([one + other for one in found for other in part])
    return found, text


def _bounded(found: list[str]) -> list[str]:
    if len(found) > _MOST:
        raise ValueError
    return found


def _atom(text: str) -> tuple[list[str], str]:
    if text.startswith("("):
        found, text = _alternatives(text.removeprefix("(").removeprefix("?:"))
        if not text.startswith(")"):
            raise ValueError
        return found, text[1:]
    if listed := re.match(r"\[((?:\w-\w|[\w .:/-])+)\]", text, re.ASCII):
        ranges = re.findall(r"(\w)-(\w)|(.)", listed[1])
        places = [range(ord(a or c), ord(b or c) + 1) for a, b, c in ranges]
        return [chr(each) for place in places for each in place], text[listed.end() :]
    if escaped := re.match(r"\\([^\w\s])", text):
        return [escaped[1]], text[2:]
    if text[0] in r".[]\^$*+?{}":
        raise ValueError
    return [text[0]], text[1:]


def _repeated(part: list[str], text: str) -> tuple[list[str], str]:
    if text.startswith("?"):
        return ["", *part], text[1:]
    counted = re.match(r"\{(\d)(?:,(\d))?\}", text)
    if counted is None:
        if text[:1] in ("*", "+", "{"):
            raise ValueError
        return part, text
    found = list[str]()
    several = [""]
    for count in range(int(counted[2] or counted[1]) + 1):
        found += several if count >= int(counted[1]) else []
        several = _bounded([one + other for one in several for other in part])
    return _bounded(found), text[counted.end() :]
