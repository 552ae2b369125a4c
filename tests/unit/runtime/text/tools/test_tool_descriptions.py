"""Python functions as tools."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

import pytest
from chats import WEATHER

from edgespec.errors import InputError
from edgespec.runtime.text.tools.descriptions import describe_tool


class Unit(enum.Enum):
    CELSIUS = "C"
    KELVIN = "K"


@dataclass
class Place:
    city: str
    country: str = "IT"


class Span(TypedDict, total=False):
    start: int
    end: int


def weather(
    place: Place,
    unit: Unit,
    days: Annotated[int, "How many days."] = 1,
    models: list[str] | None = None,
    span: Span | None = None,
    mode: Literal["short", "long"] = "short",
    extra: dict[str, float] | None = None,
) -> str:
    """Tells the weather.

    Of any place.

    Args:
        place: Where
            it is.
        unit (Unit): Which unit.
        models: Names: of models.

    Returns:
        text: not a parameter.
    """
    return ""


class Home:
    def lamp(self, on: bool) -> None:
        """Switches the lamp."""


def test_a_function_is_described_by_its_hints_and_its_docstring():
    function = describe_tool(weather)["function"]
    assert function["name"] == "weather"
    assert function["description"] == "Tells the weather.\n\nOf any place."
    parameters = function["parameters"]
    assert parameters["required"] == ["place", "unit"]
    assert parameters["properties"] == {
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
            "description": "Where it is.",
        },
        "unit": {"enum": ["C", "K"], "description": "Which unit."},
        "days": {"type": "integer", "description": "How many days."},
        "models": {
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
            "description": "Names: of models.",
        },
        "span": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"start": {"type": "integer"}, "end": {"type": "integer"}},
                    "required": [],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        },
        "mode": {"enum": ["short", "long"]},
        "extra": {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "number"}},
                {"type": "null"},
            ]
        },
    }


def test_methods_and_descriptions_are_tools_too():
    assert describe_tool(Home().lamp)["function"] == {
        "name": "lamp",
        "description": "Switches the lamp.",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
        },
    }
    assert describe_tool(WEATHER) == WEATHER
    empty = {"type": "object", "properties": {}}
    assert describe_tool({"function": {"name": "f"}})["function"]["parameters"] == empty


def unhinted(a): ...
def many(*numbers: int): ...
def raw(a: bytes): ...


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (unhinted, "parameter a has no type hint"),
        (many, "takes \\*numbers"),
        (raw, "<class 'bytes'>, which JSON does not have"),
        (lambda: 1, "the name '<lambda>'"),
        ({"function": {"name": "f", "parameters": {"default": float("nan")}}}, "are no JSON"),
        (3, "a tool is 3"),
        ({"type": "function"}, "give a function"),
        ({"function": {"name": "f", "parameters": {"type": "array"}}}, "of type object"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(tool, reason):
    with pytest.raises(InputError, match=reason):
        describe_tool(tool)
