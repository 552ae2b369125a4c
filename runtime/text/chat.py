"""Chat templates, rendered as transformers does it: in sandboxed jinja2 with the same extras."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.errors import InputError, reason

_USER_MESSAGE = "hello"


def template_fault(source: str, special_tokens: Mapping[str, str]) -> str | None:
    """Returns what is wrong with a template; None if nothing is.

    The template is tried with one plain message of a user.

    Args:
        source: see `ChatTemplate`.
        special_tokens: see `ChatTemplate`.
    """
    try:
        template = ChatTemplate(source, special_tokens)
        text = template.render([{"role": "user", "content": _USER_MESSAGE}])
    except InputError as error:
        return f"it fails on a plain message: {reason(error.__cause__)}"
    if template.unset:
        return f"it writes {', '.join(sorted(template.unset))}, which nothing sets"
    return None if _USER_MESSAGE in text else "it leaves out what the user says"


class ChatTemplate:
    """A model's own format for a conversation as one text.

    Args:
        source: The jinja2 template.
        special_tokens: Text of `bos_token`, `eos_token` and the like, for use by the template.

    Attributes:
        unset: Names of variables that the template has printed although nothing sets them.

    Raises:
        InputError: If the template is not valid jinja2.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.unset: set[str] = set()
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols],
            undefined=_noted_in(self.unset),
        )  # fmt: skip
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # deep nesting raises errors that are not jinja2's
            raise InputError(
                f"the model's chat template is not valid ({reason(error)}): repair it, or prompt "
                "without it"
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the text of a conversation, by default up to where the model's answer begins.

        Args:
            messages: Messages with `role` and `content`, and what else the template reads.
            add_generation_prompt: Whether the text ends with the opening of an answer.
            tools: Functions that the model may call, in OpenAI's format.
            variables: Further variables that the template reads, such as `enable_thinking`.

        Raises:
            InputError: If the template refuses the conversation.
        """
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    "documents": None,
                    **(variables or {}),
                    "messages": [dict(message) for message in messages],
                    "tools": None if tools is None else [dict(tool) for tool in tools],
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except MemoryError:
            raise
        except Exception as error:  # a template is a program, which may raise anything
            raise InputError(
                f"the model's chat template refuses these messages: {reason(error)}. "
                "Give a list of messages with role and content as the model expects them"
            ) from error


class _GenerationBlock(Extension):
    """The block `{% generation %}`, which marks answers for training; here its content only."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _noted_in(names: set[str]) -> type[jinja2.Undefined]:
    """Returns a type of undefined variables that print as nothing and add their names to a set."""

    class Noted(jinja2.Undefined):
        def __str__(self) -> str:
            names.add(str(self._undefined_name))
            return ""

    return Noted


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, but models were not trained on escaped text.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
