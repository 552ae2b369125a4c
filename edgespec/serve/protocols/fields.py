"""Request bodies: types of their fields, and parsing with readable errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticUndefined

from edgespec.errors import InputError
from edgespec.llm.options import GenerationOptions
from edgespec.serve.refusals import SHOWN, RequestError, shorten_value
from edgespec.system.durations import parse_duration
from edgespec.system.options import declared

Json = dict[str, Any]

UNSUPPORTED = "unsupported"
"""The type of an error of a field that asks for what is not here."""

# What clients add to messages, or send back with answers, and nobody asks for anything by.
_NOTES = frozenset(("id", "status", "annotations", "logprobs", "cache_control"))
_MOST_TOLD = 1000  # different things of which the log tells

_log = logging.getLogger(__name__)

# Validation of a list stops at its first wrong item: an error for each could take seconds.
LONG = Field(fail_fast=True)
SOME = Field(min_length=1, fail_fast=True)
MESSAGES = Field(min_length=1, max_length=10_000, fail_fast=True)


def whole(value: Any) -> Any:
    """Makes a whole number, or those in a list, of a float: some clients know no others."""
    if isinstance(value, list) and float in set(map(type, value)):
        return list(map(whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(whole)
Int = Annotated[int, Whole]
Count = Annotated[Int, Field(ge=1)]
Unlimited = Annotated[Literal[-1], Whole]  # as in llama.cpp: as many tokens as fit
One = Annotated[Int, Field(ge=1, le=1)]  # a literal would also accept true
Empty = Annotated[list[Any], Field(max_length=0)]
Text = Annotated[str, Field(min_length=1)]
Stop = Text | Annotated[list[Text], Field(max_length=16)]
Tokens = Annotated[list[int], SOME, Whole]


def _seconds(value: Any) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return parse_duration(f"{value:f}")
        return parse_duration(value if isinstance(value, str) else "")
    except InputError as error:
        raise PydanticCustomError("duration", "Give seconds, or a text such as 5m") from error


KeepAlive = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_seconds, json_schema_input_type=float | str),
]
"""Seconds for which a model stays loaded that nobody uses; what is negative is infinity."""


def option_field(name: str) -> Any:
    """Returns the range and the description of one of `GenerationOptions`, for a field."""
    found = declared(GenerationOptions)[name]
    return Field(ge=found.least, gt=found.above, le=found.most, description=found.text)


_MEMBER = "<member of a union>"


def member(name: str) -> str:
    """Returns the tag of a member of a union, which is no part of a field's name in errors."""
    return f"{_MEMBER} {name}"


def _with_members(schema: Any) -> None:
    """Gives each member of the unions in a schema of pydantic's a name as `member` has it."""
    if isinstance(schema, dict):
        if schema.get("type") == "union":
            choices = (each[0] if isinstance(each, tuple) else each for each in schema["choices"])
            schema["choices"] = [(each, _MEMBER) for each in choices]
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for each in schema:
            _with_members(each)


class Fields(BaseModel):
    """Base of all bodies: types are not converted, and fields that are not known are passed over.

    The log names each of those once. What would change a text and is not here is a field that is
    known, see `unsupported`.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """See pydantic."""
        schema = handler(source)
        _with_members(schema)
        return schema

    def model_post_init(self, _context: Any) -> None:
        """See pydantic."""
        if extra := self.__pydantic_extra__:
            for name in (each for each in extra if each not in _NOTES):
                tell_once(f"a request has the field {shorten_value(name)}, which is not known here")
            extra.clear()


_told = set[str]()


def tell_once(what: str) -> None:
    """Logs that something of a request is passed over, if no request had it before."""
    if what not in _told and len(_told) < _MOST_TOLD:
        _told.add(what)
        _log.warning("%s: it is passed over", what)


def kinds_left_out(
    what: str, foreign: Callable[[str], bool], given: Any = PydanticUndefined
) -> BeforeValidator:
    """Returns what leaves members of some types out of a list; the log names each type once.

    Args:
        what: how the log says that a request has one.
        foreign: whether members of a type are left out.
        given: the type of such a list, for the document.
    """

    def stays(value: Any) -> bool:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or not foreign(kind):
            return True
        tell_once(f"{what} of the type {shorten_value(kind)}, which is not here")
        return False

    return BeforeValidator(
        lambda values: list(filter(stays, values)) if isinstance(values, list) else values,
        json_schema_input_type=given,
    )


def _off(value: bool) -> bool:
    if value:
        raise PydanticCustomError("on", "Input should be false")
    return value


# As with `One`: a literal would also accept 0.
Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"type": "boolean", "const": False})]


def unset(value: int | None) -> int | None:
    """Turns -1 into None: clients of llama.cpp and vLLM send -1 for a missing number."""
    return None if value == -1 else value


Unset = AfterValidator(unset)

Checked = TypeVar("Checked", bound=BaseModel)


# What takes up to 0.2 s, or 0.02 s, to check, while no other thread can go on.
_MOST = {"objects, lists and fields": (b"{[:", 50_000), "values": (b",", 300_000)}

_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def one_line(value: Any) -> str:
    """Returns a value as JSON without what some clients take for the end of a line."""
    return json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS)


def parse_body(kind: type[Checked], data: bytes, what: str = "the body") -> Checked:
    """Parses JSON in UTF-8 and checks it; errors call the whole `what`.

    Raises:
        RequestError: if it is invalid, or of too many parts.
    """
    if len(data) > min(most for _, most in _MOST.values()):
        counts = _counts(data)
        for name, (marks, most) in _MOST.items():
            if counts[list(marks)].sum() > most:
                raise RequestError(
                    413, f"{what} has more than {most} {name}: shorten it", "too_large"
                )
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise refusal(error, what) from error


def _counts(data: bytes) -> NDArray[np.int64]:
    """Returns how often each byte occurs in JSON outside strings, while other threads go on."""
    plain = np.frombuffer(data.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    quoted = np.logical_xor.accumulate(plain == ord('"'))
    return np.bincount(plain[~quoted], minlength=256)


def refusal(error: ValidationError, what: str = "the body") -> RequestError:
    """Describes the most deeply nested error of a body."""
    found = error.errors(include_url=False, include_context=False)
    deepest = max(found, key=lambda each: len(each["loc"]))
    if deepest["type"] == "json_invalid":
        return RequestError(400, f"{what} is not UTF-8 JSON: {deepest['msg']}", "invalid_json")
    name = _name(deepest["loc"])
    if deepest["type"] == UNSUPPORTED:
        value = shorten_value(deepest["input"])
        said = f"{name} is {value}, which is not supported here: leave it out"
        return RequestError(400, said, "unsupported", name)
    if deepest["type"] == "missing":
        return RequestError(400, f"{name} is missing: give it", "missing", name)
    wanted = dict.fromkeys(each["msg"] for each in found if _name(each["loc"]) == name)
    message = f"{name or what} is {shorten_value(deepest['input'])}: {' or '.join(wanted)}"
    return RequestError(400, message, "invalid_value", name or None)


def _name(place: tuple[int | str, ...]) -> str:
    """Returns the name of the field at a place, which also has the members of unions."""
    parts = (part[:SHOWN] for part in map(str, place) if not part.startswith(_MEMBER))
    return ".".join(parts)
