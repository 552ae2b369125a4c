"""Options: fields of frozen dataclasses, each declared once with its help and its range.

From a declaration follow the check of a value, the help of the class, the signature of functions
that take the options as keyword arguments (`shown`), and flags of the command line
(`edgespec/cli/arguments.py`).
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Any, Self, TypeGuard, TypeVar, cast, get_args, get_type_hints

from edgespec.errors import InputError, did_you_mean

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_OPTION = "option"
_WANTED = {float: "a number", str: "a text", bool: "True or False", Path: "a path"}


@dataclass(frozen=True)
class Option:
    """What is declared of an option besides its name, type and default.

    Attributes:
        text: what it does, for help.
        none: what None stands for; empty if that follows from `text`.
        choices: allowed values; empty for any.
        least: smallest number.
        above: number that it must be greater than.
        most: largest number.
        gap: smallest number besides `least`.
        give: what to give instead of a wrong value; empty: as type and range say.
        metavar: name of the value in help; empty: as the type says.
        also: another name by which callers may give it; empty: none.
        usual: whether `--help` shows it, and not `--help-all` alone.
    """

    text: str
    none: str = ""
    choices: tuple[Any, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    gap: float = -math.inf
    give: str = ""
    metavar: str = ""
    also: str = ""
    usual: bool = False

    def check(self, name: str, value: object, kinds: tuple[type, ...]) -> None:
        """Checks a value.

        Args:
            name: name of the option.
            value: the value.
            kinds: types that it may have; empty for any.

        Raises:
            InputError: with the name, the value and what is allowed.
        """
        if value is None and NoneType in kinds:
            return
        if self.choices:
            if value not in self.choices:
                known = ", ".join(map(str, self.choices))
                raise InputError(f"{name} is {value!r}: use one of {known}")
            return
        if (kinds and not _is_of(value, kinds)) or (_is_number(value) and not self._holds(value)):
            raise InputError(f"{name} is {value!r}: give {self.give or self._wanted(value, kinds)}")

    def read(self, name: str, text: str, kinds: tuple[type, ...]) -> float:
        """Reads a number as users type it; `check` says whether it is allowed.

        Raises:
            InputError: if it is none, as `check`.
        """
        try:
            return float(text) if float in kinds else int(text)
        except ValueError:
            wanted = self.give or self._wanted(text, kinds)
            raise InputError(f"{name} is {text!r:.80}: give {wanted}") from None

    def _holds(self, value: float) -> bool:
        least = _or(self.least, -math.inf)
        most = _or(self.most, math.inf)
        # A NaN is not within.
        inside = least <= value <= most and (self.above is None or value > self.above)
        return inside and (value == self.least or value >= self.gap)

    def _wanted(self, value: object, kinds: tuple[type, ...]) -> str:
        if _is_number(value) and self.most is not None and value > self.most:
            return f"{self.most} or less"
        if int in kinds or not kinds:
            return "a whole number" + f" of at least {self.least}" * (self.least is not None)
        return " or ".join(words for kind, words in _WANTED.items() if kind in kinds)


def option(default: Any, text: str, **further: Any) -> Any:
    """Declares an option as a dataclass's field; see `Option` for the further arguments."""
    return field(default=default, metadata={_OPTION: Option(text, **further)})


@cache
def declared(kind: type) -> dict[str, Option]:
    """Returns what a class declares of its options, by their names."""
    found = {each.name: each.metadata.get(_OPTION) for each in fields(kind)}
    return {name: each for name, each in found.items() if each is not None}


@cache
def kinds_of(kind: type) -> dict[str, tuple[type, ...]]:
    """Returns the types that values may have, by option; empty where that are not plain ones."""
    plain = {int, NoneType, *_WANTED}
    found = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}
    return {name: kinds if plain.issuperset(kinds) else () for name, kinds in found.items()}


class Options:
    """Base of dataclasses of options, whose fields are checked as an object is made.

    Raises:
        InputError: if a value is not allowed.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        kinds = kinds_of(kind)
        numpy = sys.modules.get("numpy")  # dear to import, and not needed for numbers of Python's
        for name, each in declared(kind).items():
            value = getattr(self, name)
            if numpy is not None and isinstance(value, numpy.generic):
                value = value.item()  # a number of Python's
                object.__setattr__(self, name, value)
            each.check(name, value, kinds[name])

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Self:
        """Returns the options that keyword arguments give.

        Raises:
            TypeError: if an option is unknown.
            InputError: if a value is not allowed.
        """
        known = [each.name for each in fields(cast("Any", cls))]
        given = named(cls, keywords)
        for name in given:
            if name not in known:
                raise TypeError(unknown(name, known))
        return cls(**given)


def explained(kind: type[T]) -> type[T]:
    """Decorates an options class: its docstring tells what its options are."""
    lines = list[str]()
    own = cast("Any", kind)
    for name, each in declared(own).items():
        none = f"; None: {each.none}" if each.none else ""
        also = f"; also {each.also}" if each.also else ""
        text = f"{name}: {each.text}{none}{also}."
        lines.append(fill(text, 96, initial_indent="    ", subsequent_indent="        "))
    kind.__doc__ = "\n".join([inspect.getdoc(kind) or "", "", "Attributes:", *lines])
    return kind


def shown(kind: type) -> Callable[[F], F]:
    """Decorates a function so that `inspect.signature`, help and completion show its options.

    The function's last parameter is `**options`; the fields of the options class replace it.
    """

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        taken = inspect.signature(kind).parameters.values()
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in taken]
        parameters = [*list(own.parameters.values())[:-1], *keywords]
        vars(function)["__signature__"] = own.replace(parameters=parameters)
        return function

    return decorate


def named(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options by the names of a class's fields, where they have others, too.

    Raises:
        InputError: if one is given by both names with different values.
    """
    found = dict(options)
    for name, each in declared(kind).items():
        if each.also in found:
            value = found.pop(each.also)
            if found.setdefault(name, value) != value:
                raise InputError(
                    f"{name} is {found[name]!r} and {each.also} is {value!r}, which are two names "
                    "of one option: give one of them"
                )
    return found


def unknown(name: str, known: list[str]) -> str:
    """Returns the message for an option that is not known."""
    return f"unknown option {name!r}{did_you_mean(name, known)}: use one of {', '.join(known)}"


def _or(number: float | None, otherwise: float) -> float:
    return otherwise if number is None else number


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_of(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)
