"""How much a template asks for, known before it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

AT_ONCE = 64
"""Characters or items that count as a step where all are read or made at once."""

MOST_SIZE = 1 << 24
"""Characters of a text, items of a list."""

_WIDE = re.compile(r"\*|\d{4}")  # of a format with %: a width, also one that is an argument
_WIDE_IN_BRACES = re.compile(r"\{[^{}]*(\{|\d{4})")


class UnusualError(Exception):
    """A template does what those of real models do not: it is to be run elsewhere."""


def size_of(value: Any) -> int:
    """Returns the number of characters or items of a value."""
    return len(value) if isinstance(value, str | list | tuple | range | dict) else 0


def count_of(value: Any) -> int:
    """Returns a number by which a text may be repeated."""
    return value if isinstance(value, int) else 0


def bits_of(value: Any) -> int:
    """Returns the number of bits of a whole number."""
    return value.bit_length() if isinstance(value, int) else 0


def _of_join(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    between = args[1] if len(args) > 1 else kwargs.get("d", "")
    return size_of(args[0]) * max(size_of(between), 1)


def _of_replace(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    given = {**dict(zip(("old", "new"), args[1:], strict=False)), **kwargs}
    return str(args[0]).count(str(given.get("old", ""))) * size_of(given.get("new", ""))


def _of_indent(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    width = args[1] if len(args) > 1 else kwargs.get("width", 4)
    return (str(args[0]).count("\n") + 1) * (count_of(width) + size_of(width))


def _of_json(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    options = [*args[1:], *kwargs.values()]
    parts = [
        *options,
        *(each for option in options if isinstance(option, tuple) for each in option),
    ]
    widest = max((max(count_of(each), size_of(each)) for each in parts), default=0)
    if widest > AT_ONCE // 4:
        raise UnusualError
    return 0


def _of_format(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return _formatted(_WIDE, args, kwargs)


def _of_braces(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return _formatted(_WIDE_IN_BRACES, args, kwargs)


def _formatted(wide: re.Pattern[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    form = str(args[0])
    if wide.search(form):
        raise UnusualError
    values = [len(str(each)) for each in (*args[1:], *kwargs.values())]
    return (form.count("%") + form.count("{")) * max(values, default=0)


def _of_strip(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    return size_of(args[0]) * sum(map(size_of, (*args[1:], *kwargs.values())))


GROWTH: dict[str, Callable[[tuple[Any, ...], Mapping[str, Any]], int]] = {
    "join": _of_join,
    "replace": _of_replace,
    "indent": _of_indent,
    "tojson": _of_json,
    "format": _of_format,
    "braces": _of_braces,
    "trim": _of_strip,
    "strip": _of_strip,
    "lstrip": _of_strip,
    "rstrip": _of_strip,
}
"""How many characters a filter or method may make, by its arguments; `braces` is `str.format`."""
