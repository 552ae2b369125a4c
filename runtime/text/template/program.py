"""A chat template as a program: run here as long as it does what those of real models do.

Others are run in another process, within limits, which takes some milliseconds for each text.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_items
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.errors import InputError, reason
from edgespec.runtime.text.template.sandbox import Sandbox
from edgespec.runtime.text.template.sizes import MOST_SIZE, UnusualError
from edgespec.runtime.text.tools.calls import PlainArguments
from edgespec.system.jobs import JobError, JobLimits, Why, Worker, serve

_LIMITS = JobLimits(seconds=2, megabytes=256)
_LONGEST_PATTERN = 1000
_ENDED: dict[Why, str] = {
    "time": f"it takes longer than {_LIMITS.seconds} s",
    "memory": f"it takes more than {_LIMITS.megabytes} MB, too large a text",
    "crash": "its parts nest too deep, or are too large",
}


class Program:
    """A compiled template.

    Args:
        source: the jinja2 template.

    Attributes:
        unset: Names of variables that it has written although nothing sets them.

    Raises:
        Exception: if it is not valid.
    """

    def __init__(self, source: str) -> None:
        self.unset: set[str] = set()
        self._source = source
        self._here = True
        self._thread = threading.local()
        self._environment = Sandbox(_options(self.unset), _FILTERS, _FUNCTIONS)
        self._environment.begin()
        self._template = self._environment.from_string(source)

    def begin(self) -> None:
        """Begins to count what this thread's texts take."""
        self._environment.begin()
        self._thread.ended = None

    def render(self, variables: Mapping[str, Any]) -> str:
        """Returns the text with these variables.

        Raises:
            Exception: if the template refuses them, or takes too much.
        """
        if self._here:
            try:
                return self._template.render(variables)
            except UnusualError:
                self._here = False
        if ended := getattr(self._thread, "ended", None):
            raise OverflowError(ended)
        try:
            job = pickle.dumps((self._source, dict(variables)))
            told = json.loads(_WORKER.run(job))
        except JobError as error:
            self._thread.ended = _ENDED[error.why]
            raise OverflowError(self._thread.ended) from error
        self.unset.update(told["unset"])
        return str(told["text"])


def _options(unset: set[str]) -> dict[str, Any]:
    return {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "undefined": _noted_in(unset),
        "extensions": [_GenerationBlock, loopcontrols],
    }


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
    if isinstance(value, PlainArguments):
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
    return value.items() if isinstance(value, PlainArguments) else do_items(value)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    if len(pattern) > _LONGEST_PATTERN:
        raise ValueError(f"a pattern of a date has {len(pattern)} characters")
    return datetime.now().strftime(pattern)


_FILTERS: dict[str, Callable[..., Any]] = {"tojson": _to_json, "items": _items}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}


# What follows runs in the child.


def _do(job: bytes) -> bytes:
    source, variables = pickle.loads(job)  # of the process that started this one
    unset = set[str]()
    environment = ImmutableSandboxedEnvironment(**_options(unset))
    environment.filters |= _FILTERS
    environment.globals |= _FUNCTIONS
    try:
        text = environment.from_string(source).render(variables)
    except MemoryError:
        raise
    except Exception as error:  # a template is a program, which may raise anything
        raise InputError(reason(error)) from error
    if len(text) > MOST_SIZE:
        raise InputError("a text of the template is too large")
    return json.dumps({"text": text, "unset": sorted(unset)}).encode()


def main() -> None:
    """Does what templates ask for until nobody asks for more."""
    serve(_do, _LIMITS)


_WORKER = Worker(__name__, _LIMITS)
