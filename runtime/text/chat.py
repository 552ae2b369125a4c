"""Chat templates, rendered as transformers does it: in sandboxed jinja2 with the same extras."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_items
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from edgespec.errors import InputError, reason
from edgespec.runtime.text.streaming import AsWritten

LEFT_OUT = "it leaves out what the user says"
"""The fault of a template that shows no trace of a plain message."""

_HELLO: Mapping[str, Any] = {"role": "user", "content": "hello"}
_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLING: Mapping[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_PROBE = "probe"
_MOST_STEPS = 200_000  # items of loops, calls, filters and operations for one conversation
_MOST_SIZE = 1 << 24  # characters of a text, items of a list
_MOST_BITS = 1 << 16
_AT_ONCE = 64  # characters or items that count as a step where all are read or made at once
_ITEMS, _JOINED = " items", " joined"  # filters that no template can name


def template_fault(source: str, special_tokens: Mapping[str, str]) -> str | None:
    """Returns what is wrong with a template; None if nothing is.

    The template is tried with one plain message of a user.

    Args:
        source: see `ChatTemplate`.
        special_tokens: see `ChatTemplate`.
    """
    try:
        template = ChatTemplate(source, special_tokens)
        text = template.render([_HELLO])
    except InputError as error:
        return f"it fails on a plain message: {reason(error.__cause__)}"
    if _HELLO["content"] not in text:
        return LEFT_OUT
    if template.unset:
        return f"it writes {', '.join(sorted(template.unset))}, which nothing sets"
    return None


class ChatTemplate:
    """A model's own format for a conversation as one text.

    Some templates read what a role says only as a list of typed parts. They are given such lists.

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
        environment = _Bounded(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols],
            undefined=_noted_in(self.unset),
        )  # fmt: skip
        self._environment = environment
        environment.filters["tojson"] = _to_json
        environment.filters["items"] = _items
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        self._in_parts: dict[object, bool] = {}  # by role
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
        if isinstance(messages, Sequence) and all(isinstance(each, Mapping) for each in messages):
            messages = [self._as_read(message) for message in messages]
        self._environment.begin()
        return self._render(messages, add_generation_prompt, tools, variables)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
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

    def _as_read(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message with its content as the template reads it."""
        content = message.get("content")
        if isinstance(content, str) and self._reads_parts(message.get("role")):
            return {**message, "content": _part(content)}
        return dict(message)

    def _reads_parts(self, role: object) -> bool:
        """Whether the template shows what a role says as parts, and not as a text."""
        if role not in self._in_parts:
            unset = set(self.unset)
            self._environment.begin()  # of all that is tried
            self._in_parts[role] = not self._shows(role, _PROBE) and self._shows(
                role, _part(_PROBE)
            )
            self.unset.clear()
            self.unset.update(unset)
        return self._in_parts[role]

    def _shows(self, role: object, content: object) -> bool:
        said = {"role": role, "content": content, "tool_call_id": _CALL["id"], "name": "f"}
        before: list[Mapping[str, Any]] = []
        after = before
        if role != "user":
            user = self._as_read(_HELLO)
            before = [user] if role in ("tool", "assistant") else []
            before += [self._as_read(_CALLING)] if role == "tool" else []
            after = [user]
        # Some templates want a system message, and some a last one of the user.
        systems = [{"role": "system", "content": each} for each in ("hello", _part("hello"))]
        begun = [before, *([system, *before] for system in systems)]
        tried = [[*each, said, *end] for each in begun for end in ([], after)]
        for messages in tried:
            with suppress(InputError):
                if _PROBE in self._render(messages):
                    return True
        return False


def _part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


class _Bounded(ImmutableSandboxedEnvironment):
    """A sandbox in which a template ends: its steps are counted, and values have a largest size."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._steps = threading.local()
        for name, function in self.filters.items():
            self.filters[name] = self._filter(function)
        self.filters[_ITEMS] = self._items
        self.filters[_JOINED] = lambda parts: self._sized("".join(map(str, parts)))

    def begin(self) -> None:
        """Begins to count the steps of this thread's template."""
        self._steps.left = _MOST_STEPS

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `SandboxedEnvironment`; macros and recursive loops are called here, too."""
        self._step()
        return self._sized(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment`."""
        self._step()
        bits = _bits(left) * _count(right) if operator == "**" else _bits(left) + _bits(right)
        size = max(_size(left) * _count(right), _size(right) * _count(left))
        if bits > _MOST_BITS or (operator == "*" and size > _MOST_SIZE):
            raise OverflowError("a number or text of the template is too large")
        return self._sized(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return cast("nodes.Template", _Counted().visit(super()._parse(source, name, filename)))

    def _filter(self, function: Any) -> Any:
        @wraps(function)  # which keeps the mark of one that reads the context
        def filtered(*args: Any, **kwargs: Any) -> Any:
            self._step(1 + sum(map(_size, args)) // _AT_ONCE)
            return self._sized(function(*args, **kwargs))

        return filtered

    def _items(self, values: Iterable[Any]) -> Iterator[Any]:
        for each in values:
            self._step()
            yield each

    def _step(self, count: int = 1) -> None:
        self._steps.left = left = getattr(self._steps, "left", _MOST_STEPS) - count
        if left < 0:
            raise OverflowError(f"it takes more than {_MOST_STEPS} steps")

    def _sized(self, value: Any) -> Any:
        size = _size(value)
        self._step(size // _AT_ONCE)
        if size > _MOST_SIZE:
            raise OverflowError("a text of the template is too large")
        return value


class _Counted(NodeTransformer):
    """Has loops take their values, and joined texts their parts, through filters."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        node.iter = self._filtered(node.iter, _ITEMS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return self._filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    @staticmethod
    def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
        expression = cast("nodes.Expr", node)
        return nodes.Filter(expression, name, [], [], None, None, lineno=node.lineno)


class _GenerationBlock(Extension):
    """The block `{% generation %}`, which marks answers for training; here its content only."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | range) else 0


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


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
    if isinstance(value, AsWritten):
        return value
    # jinja2's own filter escapes HTML, but models were not trained on escaped text.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, AsWritten) else do_items(value)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
