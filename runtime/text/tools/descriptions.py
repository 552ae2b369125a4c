"""Tools: functions that a model may call, as Python functions or in OpenAI's format."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from edgespec.errors import InputError, reason
from edgespec.runtime.text.schema.hints import hint_schema

Tool = Callable[..., Any] | Mapping[str, Any]
"""A Python function, or a function in the format of OpenAI's API."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")  # as MCP has them
_SECTION = re.compile(r"^[ \t]*(\w[\w ]*):[ \t]*$")
_ENTRY = re.compile(r"^[ \t]*\*{0,2}(\w+)[ \t]*(?:\([^)]*\))?:[ \t]*(.*)$")


def describe_tool(tool: Tool) -> dict[str, Any]:
    """Returns a tool in OpenAI's format, with name, description and parameters.

    A Python function is described by its type hints and its docstring (Google style: a summary, and
    `Args:` with a line for each parameter). Parameters with defaults may be left out by the model.

    Args:
        tool: function, or description of one.

    Raises:
        InputError: if it is not described well enough.
    """
    if isinstance(tool, Mapping):
        return _checked(tool)
    if not callable(tool):
        raise InputError(f"a tool is {reason(repr(tool), 60)}: give functions or dicts")
    name = getattr(tool, "__name__", type(tool).__name__)
    try:
        parameters = inspect.signature(tool).parameters
        hints = get_type_hints(tool, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise InputError(f"tool {name}: its parameters are not known ({reason(error)})") from error
    summary, texts = _documented(inspect.getdoc(tool) or "")
    properties: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InputError(f"tool {name} takes {parameter}: name its parameters one by one")
        if key not in hints:
            raise InputError(f"tool {name}: parameter {key} has no type hint: give one")
        schema = hint_schema(hints[key], f"tool {name}: parameter {key}")
        properties[key] = {**schema, **({"description": texts[key]} if key in texts else {})}
    required = [key for key, each in parameters.items() if each.default is each.empty]
    schema = {"type": "object", "properties": properties, "required": required}
    return _checked(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": summary,
                "parameters": schema,
            },
        }
    )


def _checked(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tool in OpenAI's format with all its fields."""
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise InputError(
            f"a tool is {reason(repr(dict(tool)), 60)}: give a function, as "
            '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"a tool has the name {reason(repr(name), 60)}: give up to 128 letters, digits, -, _ "
            "and ."
        )
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise InputError(f"tool {name}: its parameters must have a JSON schema of type object")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise InputError(f"tool {name}: its description is {description!r:.40}: give a string")
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"tool {name}: its parameters are no JSON ({reason(error)})") from error
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": dict(parameters)},
    }


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """Returns the text of a docstring before its sections, and what it says about parameters."""
    summary: list[str] = []
    entries: dict[str, str] = {}
    section = latest = ""
    for line in text.splitlines():
        header = _SECTION.match(line)
        entry = _ENTRY.match(line) if section.lower() in ("args", "arguments") else None
        if header:
            section = header[1]
        elif not section:
            summary.append(line)
        elif entry and (not latest or _indented(line) <= _indented(latest)):
            latest = line
            name = entry[1]
            entries[name] = entry[2]
        elif entries and line.strip() and section.lower() in ("args", "arguments"):
            entries[name] += f" {line.strip()}"
    return "\n".join(summary).strip(), entries


def _indented(line: str) -> int:
    return len(line) - len(line.lstrip())
