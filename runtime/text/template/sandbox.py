"""Chat templates are programs of strangers: here they end, and take little time and memory.

What templates of real models do is done in this process. Its steps are counted, and before anything
that may be large is made, its size is counted in steps, too. As soon as a template does anything
else, it is run in another process with limits instead (`template_jobs`), which costs milliseconds.
Nothing is computed while a template is compiled.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import wraps
from types import GeneratorType
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from edgespec.runtime.text.template.sizes import (
    AT_ONCE,
    GROWTH,
    MOST_SIZE,
    UnusualError,
    bits_of,
    count_of,
    size_of,
)

_MOST_SOURCE = 1 << 18  # characters of a template
_MOST_STEPS = 400_000  # items of loops, calls, filters and operations for one conversation
_MOST_SECONDS = 3  # of processor time, for one conversation
_MOST_BITS = 1 << 16
_MOST_DEPTH = 200  # of lists in lists
_LOOKS = 8  # a power of two of steps, after which the clock is looked at
# no template can name these
_ITEMS = " items"
_JOINED = " joined"
_READ = " read"
_MADE = " made"

_SHALLOW_FILTERS = (
    "count d default first items last length list map reject rejectattr reverse select selectattr"
)
_OTHER_FILTERS = (
    "abs capitalize dictsort e escape float format indent int join lower max min replace safe sort "
    "string title tojson trim unique upper"
)
_SHALLOW_TESTS = (
    "boolean callable defined divisibleby even false filter float integer iterable mapping none "
    "number odd sameas sequence string test true undefined"
)
_METHODS_OF_TEXTS = (
    "capitalize count endswith find format index isalnum isalpha isdecimal isdigit islower "
    "isnumeric isspace istitle isupper items join lower lstrip partition removeprefix removesuffix "
    "replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase "
    "title upper"
)
_SHALLOW = frozenset(_SHALLOW_FILTERS.split())  # which do not look into the items of a list
_FILTERS = _SHALLOW.union(_OTHER_FILTERS.split())
_TESTS = frozenset(_SHALLOW_TESTS.split())
_OF_TEXTS = frozenset(_METHODS_OF_TEXTS.split())
_OF_OBJECTS = frozenset(["copy", "get", "items", "keys", "values"])


class Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox in which a template ends, or an `UnusualError` says that it is to be run elsewhere.

    Args:
        options: of jinja2's environment.
        filters: further filters.
        functions: further functions.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(
        self,
        options: Mapping[str, Any],
        filters: Mapping[str, Callable[..., Any]],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        super().__init__(**options, optimized=False, finalize=_in_context(self._shown))
        self._steps = threading.local()
        self.filters |= filters
        self.globals |= functions
        usual = ("range", "namespace", "dict", *functions)
        self._functions = [self.globals[each] for each in usual]
        for name, function in self.filters.items():
            self.filters[name] = self._filter(name, function)
        for name, function in self.tests.items():
            self.tests[name] = function if name in _TESTS else self._test(function)
        self.filters |= {
            _ITEMS: self._items,
            _JOINED: self._joined,
            _READ: self._read,
            _MADE: self._sized,
        }

    def begin(self) -> None:
        """Begins to count the steps of this thread's template."""
        self._steps.left = _MOST_STEPS
        self._steps.late = time.thread_time() + _MOST_SECONDS

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `SandboxedEnvironment`; macros and recursive loops are called here, too."""
        self._step()
        if not isinstance(function, Macro | LoopContext | jinja2.Undefined):
            args = self._examined(function, args, kwargs)
        return self._sized(super().call(context, function, *args, **kwargs))

    def _examined(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Counts what a function will do; returns its arguments."""
        method = getattr(function, "__wrapped__", function)  # formats are wrapped by jinja2
        owner = getattr(method, "__self__", None)
        name = getattr(method, "__name__", "")
        if isinstance(owner, str) and name in _OF_TEXTS:
            args = tuple(map(_listed, args))
            self._read(owner, *args, *kwargs.values())
            if name == "join":
                self._grow(name, (*args, owner), kwargs)
            else:
                self._grow("braces" if name == "format" else name, (owner, *args), kwargs)
        elif any(function is each for each in self._functions) or (
            isinstance(owner, Mapping) and name in _OF_OBJECTS
        ):
            self._read(*args)
        elif not (isinstance(owner, LoopContext) and name == "cycle"):
            raise UnusualError
        return args

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment`."""
        self._step()
        bits = (
            bits_of(left) * count_of(right) if operator == "**" else bits_of(left) + bits_of(right)
        )
        size = max(size_of(left) * count_of(right), size_of(right) * count_of(left))
        if bits > _MOST_BITS or (operator == "*" and size > MOST_SIZE):
            raise OverflowError("a number or text of the template is too large")
        if operator == "%" and isinstance(left, str):
            self._read(right)
            self._grow("format", (left, right), {})
        return self._sized(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See `SandboxedEnvironment`."""
        if isinstance(argument, tuple):  # whose hash is that of all within
            self._read(argument)
        return super().getitem(obj, argument)

    def concat(self, parts: Iterable[str]) -> str:
        """Joins what a template writes."""
        found = io.StringIO(newline="")
        size = 0
        for part in parts:
            size += len(part)
            if size > MOST_SIZE:
                raise OverflowError("a text of the template is too large")
            found.write(part)
        self._step(size // AT_ONCE)
        return found.getvalue()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > _MOST_SOURCE:
            raise OverflowError(f"it has {len(source)} characters, more than {_MOST_SOURCE}")
        return cast(
            "nodes.Template", _FilterInsertion().visit(super()._parse(source, name, filename))
        )

    def _filter(self, name: str, function: Any) -> Any:
        @wraps(function)  # which keeps the mark of one that reads the context
        def filtered(*args: Any, **kwargs: Any) -> Any:
            if name not in _FILTERS:
                raise UnusualError
            args = tuple(map(_listed, args))
            given = args[1:] if hasattr(function, "jinja_pass_arg") else args
            self._step(1 + sum(map(size_of, given)) // AT_ONCE)
            if name not in _SHALLOW:
                self._read(*given, *kwargs.values())
                self._grow(name, given, kwargs)
            return self._sized(function(*args, **kwargs))

        return filtered

    def _test(self, function: Any) -> Any:
        @wraps(function)
        def tested(*args: Any) -> Any:
            self._read(*args)
            return function(*args)

        return tested

    def _items(self, values: Iterable[Any]) -> Iterator[Any]:
        for each in values:
            self._step()
            yield each

    def _joined(self, parts: Iterable[Any]) -> str:
        return self.concat(str(self._read(each)) for each in parts)

    def _shown(self, value: Any) -> Any:
        self._step()
        return value if isinstance(value, str) else self._read(value)

    def _read(self, *values: Any) -> Any:
        """Counts all that is within values, since it will be read; returns the first one."""
        if len(values) == 1 and isinstance(values[0], str) and len(values[0]) < AT_ONCE:
            return values[0]  # as most are
        count = 0
        left = [(each, 0) for each in values]
        while left:
            value, depth = left.pop()
            count += 1 + depth // 4  # by which JSON may be indented
            if isinstance(value, str):
                count += len(value) // AT_ONCE
            elif isinstance(value, Namespace):
                raise UnusualError
            elif isinstance(value, Collection) and not isinstance(value, bytes):
                if depth > _MOST_DEPTH:
                    raise OverflowError("its lists nest too deep, or are too large")
                within = [*value, *value.values()] if isinstance(value, Mapping) else value
                left += [(each, depth + 1) for each in within]
            if count >= AT_ONCE:
                self._step(count // 8)
                count = 0
        return values[0] if values else None

    def _grow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Counts how large the result of a filter or method may be, beyond what it reads."""
        if name in GROWTH and args:
            self._step(GROWTH[name](args, kwargs) // AT_ONCE)

    def _step(self, count: int = 1) -> None:
        before = getattr(self._steps, "left", _MOST_STEPS)
        self._steps.left = left = before - count
        if left < 0:
            raise OverflowError(f"it takes more than {_MOST_STEPS} steps")
        if (left ^ before) >> _LOOKS and time.thread_time() > self._steps.late:
            raise OverflowError(f"it takes more than {_MOST_SECONDS} s, too large a time")

    def _sized(self, value: Any) -> Any:
        size = size_of(value)
        self._step(size // AT_ONCE)
        if size > MOST_SIZE:
            raise OverflowError("a text of the template is too large")
        return value


class _FilterInsertion(NodeTransformer):
    """Has what no filter or call does go through filters: loops, joined texts, comparisons."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _ITEMS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _read(node.expr)
        for operand in node.ops:
            operand.expr = _read(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.key = _read(node.key)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE) if isinstance(node.arg, nodes.Slice) else node


def _read(node: nodes.Expr) -> nodes.Expr:
    """Has a value counted that will be compared, unless it stands in the template."""
    parts = node.items if isinstance(node, nodes.List | nodes.Tuple) else [node]
    constant = all(isinstance(each, nodes.Const) for each in parts)
    return node if constant else _filtered(node, _READ)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    expression = cast("nodes.Expr", node)
    return nodes.Filter(expression, name, [], [], None, None, lineno=node.lineno)


def _in_context(shown: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns what is called with each value that is written, which none is when it is compiled."""

    @jinja2.pass_context
    def finalize(_context: Any, value: Any) -> Any:
        return shown(value)

    return finalize


def _listed(value: Any) -> Any:
    """Returns the items of a generator: one of thousands of others would exhaust the stack."""
    return list(value) if isinstance(value, GeneratorType) else value
