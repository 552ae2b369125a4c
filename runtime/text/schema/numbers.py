"""Numbers in a range, as a terminal of Lark's notation, exact whatever their size.

llguidance's own compiler of JSON schemas reads numbers as doubles, and bounds of integers as 64
bits. Here digits are compared as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from edgespec.errors import InputError

_EXACT = 2**53 - 1  # integers up to here are exact as doubles
_DIGITS = 15  # significant digits that doubles keep
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
"""Keywords of the bounds of numbers."""

_WHOLE, _FRACTION = "(0|[1-9][0-9]*)", r"(\.[0-9]+)?"


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_decimal(value: float) -> str:
    """Returns a number in decimal notation, without a point if it is an integer."""
    whole, fraction = _parts(abs(Decimal(str(value))))
    return f"{'-' if value < 0 else ''}{whole}{f'.{fraction}' if fraction else ''}"


def is_exact(value: Any) -> bool:
    """Whether llguidance takes a value for what it is, if it is a number."""
    if not is_number(value):
        return True
    exact = Decimal(str(value))
    places = len(exact.as_tuple().digits) - 1 - exact.adjusted() if exact else 0
    return abs(value) <= _EXACT and (isinstance(value, int) or places <= _DIGITS)


def has_exact_bounds(schema: Mapping[str, Any]) -> bool:
    """Whether llguidance takes the bounds of a schema for what they are."""
    return all(is_exact(schema.get(key)) for key in BOUNDS)


def round_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema with bounds that llguidance takes exactly, of no more numbers.

    Raises:
        InputError: if no such numbers are left.
    """
    found = dict(schema)
    for key in BOUNDS:
        value = schema.get(key)
        if value is None or is_exact(value):
            continue
        lower = key.lower().endswith("minimum")
        if abs(value) > _EXACT and (value > 0) == lower:
            raise InputError(
                f"has {key} {value}, to which a text cannot be held beside others of allOf, "
                "multipleOf or $ref: write them as one range"
            )
        del found[key]
        if abs(value) > _EXACT:
            nearest: float = -_EXACT if lower else _EXACT
        else:  # a fraction of many digits: of fewer, inwards
            context = Context(prec=_DIGITS, rounding=ROUND_CEILING if lower else ROUND_FLOOR)
            nearest = float(context.create_decimal(str(value)))
        plain = "minimum" if lower else "maximum"
        other = found.get(plain)
        others = [nearest, other] if other is not None and is_number(other) else [nearest]
        found[plain] = max(others) if lower else min(others)
    return found


def number_terminal(schema: Mapping[str, Any]) -> str:
    """Returns the body of a Lark terminal for the numbers of a schema, in decimal notation.

    Args:
        schema: JSON schema of the type integer or number.

    Raises:
        InputError: if no number is in the range.
    """
    parts = [f"/-?{_WHOLE}{'' if schema['type'] == 'integer' else _FRACTION}/"]
    (low, above), (high, below) = _bound(schema, "inimum", max), _bound(schema, "aximum", min)
    if low is not None and high is not None and (low > high or (low == high and (above or below))):
        raise InputError(f"has no number between {low} and {high}: widen that")
    if low is not None:
        parts += [f"/{_from(low)}/" if low > 0 else f"(~/-{_from(-low)}/ | /-{_equal(-low)}/)"]
    if high is not None:
        parts += [f"/-{_from(-high)}/" if high < 0 else f"(~/{_from(high)}/ | /{_equal(high)}/)"]
    for bound, is_open in ((low, above), (high, below)):
        if bound is not None and is_open:
            sign = "-" if bound < 0 else "" if bound > 0 else "-?"
            parts.append(f"~/{sign}{_equal(abs(bound))}/")
    return " & ".join(parts)


def _bound(schema: Mapping[str, Any], name: str, tighter: Any) -> tuple[Decimal | None, bool]:
    """Returns a bound of a schema, and whether it is open; older drafts say that by `true`."""
    plain = schema.get(f"m{name}")
    exclusive = schema.get(f"exclusiveM{name}")
    found = [Decimal(str(each)) for each in (plain, exclusive) if is_number(each)]
    if not found:
        return None, False
    bound = tighter(found)
    return bound, exclusive is True or (is_number(exclusive) and Decimal(str(exclusive)) == bound)


def _parts(value: Decimal) -> tuple[str, str]:
    """Returns the digits of a number of at least 0 before and behind its point."""
    whole, _, fraction = f"{value:f}".partition(".")
    return whole, fraction.rstrip("0")


def _equal(value: Decimal) -> str:
    """Returns a regular expression of a number of at least 0."""
    whole, fraction = _parts(value)
    return rf"{whole}\.{fraction}0*" if fraction else rf"{whole}(\.0+)?"


def _from(value: Decimal) -> str:
    """Returns a regular expression of what is at least a number of at least 0."""
    whole, fraction = _parts(value)
    # Behind the last digit that is not zero, any digits may come.
    zeros = 0 if fraction else len(whole) - len(whole.rstrip("0"))
    found = "[0-9]*"
    small = len(fraction) - len(fraction.lstrip("0"))
    for digit in reversed(fraction[small:]):
        found = f"({digit}{found}{_larger(digit, '[0-9]*')})"
    if small:
        found = f"(0{{{small}}}{found}|0{{0,{small - 1}}}[1-9][0-9]*)"
    found = rf"\.{found}" if fraction else f"[0-9]{{{zeros}}}{_FRACTION}"
    for behind, digit in enumerate(reversed(whole[: len(whole) - zeros]), zeros):
        found = f"({digit}{found}{_larger(digit, f'[0-9]{{{behind}}}{_FRACTION}')})"
    return f"({found}|[1-9][0-9]{{{len(whole)},}}{_FRACTION})"


def _larger(digit: str, rest: str) -> str:
    return "" if digit == "9" else f"|[{int(digit) + 1}-9]{rest}"
