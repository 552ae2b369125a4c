r"""Measures how far a reader walks through the package: files entered, and returns to them.

    python benchmarks/walks.py [--walk WALK ...]    # all walks if none is named

A reader follows a call to its function once. A call from another file enters the function's file;
if the reader was there before, it is a return. What does not count: to come back to the caller,
further functions of a file that the same caller has entered already, properties, which read as
fields, and what modules do while they are imported. Returns of the loop are those to modules of
one step, which go round by nature. The walk of an option has only those functions that are handed
its value, by itself or in a field.

Each walk is made twice with the embedded pair; the second one is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from common import exit_code, print_result, print_table, with_all_threads

import edgespec
from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.models.embedded import BUNDLE
from edgespec.serve.app import application
from edgespec.serve.models import Models
from edgespec.serve.queue import RequestQueue
from edgespec.serve.served_model import ServedModel

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from starlette.applications import Starlette

LOOP = tuple(
    f"edgespec.{each}"
    for each in (
        "llm.stream",
        "runtime.text.decoder",
        "runtime.text.tokenizer",
        "runtime.speculation",
        "runtime.drafters",
        "runtime.sequences",
        "runtime.sampling",
        "runtime.engines",
    )
)
"""What a step enters."""

_ROOTS = tuple(f"{Path(each).resolve()}/" for each in edgespec.__path__)
_PROMPT = "def mean(values):\n"
_TOKENS = 8
_TEMPLATE = "{% for each in messages %}{{ each.content }}{% endfor %}"
_TEMPERATURE = 0.625
_DRAFT = "lookup"


@dataclass
class Walk:
    """The files that a reader enters, in this order.

    Attributes:
        holds: whether a call belongs to the walk; None: all do.
        entries: module names, once for each entry.
    """

    holds: Callable[[FrameType], bool] | None = None
    entries: list[str] = field(default_factory=list)
    _known: set[CodeType] = field(default_factory=set)
    _trips: set[tuple[CodeType | None, str]] = field(default_factory=set)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Notes a call, as `sys.setprofile` wants it."""
        code = frame.f_code
        if event != "call" or code in self._known or not is_read(frame):
            return
        if self.holds is not None and not self.holds(frame):
            return
        self._known.add(code)
        module = frame.f_globals["__name__"]
        outer = caller(frame)
        trip = (None if outer is None else outer.f_code, module)
        own = outer is not None and outer.f_globals["__name__"] == module
        if not own and trip not in self._trips:
            self.entries.append(module)
        self._trips.add(trip)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Notes the calls of this thread, and of those that are started meanwhile."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def files(self) -> list[str]:
        """The modules that were entered, each once, in this order."""
        return list(dict.fromkeys(self.entries))

    @property
    def returns(self) -> Counter[str]:
        """How often each module was entered again."""
        return Counter(self.entries) - Counter(self.files)

    @property
    def of_loop(self) -> int:
        """The returns to modules of one step."""
        return sum(count for name, count in self.returns.items() if name.startswith(LOOP))


def is_read(frame: FrameType) -> bool:
    """Whether a call is one of a function that a reader looks up."""
    code = frame.f_code
    name = frame.f_globals.get("__name__", "")
    if not name.startswith("edgespec.") or not code.co_filename.startswith(_ROOTS):
        return False
    if code.co_name.startswith("<"):  # a module, a lambda or a comprehension
        return False
    *owners, last = code.co_qualname.split(".")
    if last.startswith("__") and last != "__init__":
        return False
    owner = frame.f_globals.get(owners[0]) if owners else None
    found = inspect.getattr_static(owner, last, None) if inspect.isclass(owner) else None
    return not isinstance(found, property | cached_property)


def caller(frame: FrameType) -> FrameType | None:
    """Returns the function of ours from which a call comes; None if there is none."""
    outer = frame.f_back
    while outer is not None and not outer.f_globals.get("__name__", "").startswith("edgespec."):
        outer = outer.f_back
    return outer


def is_handed(frame: FrameType, name: str, value: object) -> bool:
    """Whether a function is handed the value of an option, by itself or in a field."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    arguments = (frame.f_locals.get(each) for each in code.co_varnames[:count])
    return any(_has(each, name, value) for each in arguments)


def _has(argument: object, name: str, value: object) -> bool:
    if isinstance(argument, type(value)):
        return argument == value
    fields = argument if isinstance(argument, Mapping) else getattr(argument, "__dict__", {})
    found = fields.get(name)
    return isinstance(found, type(value)) and found == value


def generate(walk: Walk) -> None:
    """A prompt through `generate`."""
    with LLM(BUNDLE) as llm, walk.recorded():
        llm.generate(_PROMPT, max_new_tokens=_TOKENS)


def chat(walk: Walk, **options: object) -> None:
    """A chat through the server, from a request's body to the answer's."""
    body = {"messages": [{"role": "user", "content": _PROMPT}], "max_tokens": _TOKENS, **options}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pair"
        _copy_with_template(path)
        with LLM(path) as llm:
            models = Models([ServedModel("pair", llm.bundle, llm.options, llm=llm)])
            app = application(RequestQueue(models, 1, 1, 1 << 20), None)
            with walk.recorded():
                asyncio.run(_asked(app, json.dumps(body).encode()))
            models.stop()


def load(walk: Walk, **options: Any) -> None:
    """A model path, as `LLM` opens it."""
    with walk.recorded():
        llm = LLM(BUNDLE, **options)
    llm.close()


def temperature(walk: Walk) -> None:
    """The temperature that a client asks for."""
    walk.holds = partial(is_handed, name="temperature", value=_TEMPERATURE)
    chat(walk, temperature=_TEMPERATURE)


def draft(walk: Walk) -> None:
    """The draft source that `LLM` is told."""
    walk.holds = partial(is_handed, name="draft", value=_DRAFT)
    load(walk, draft=_DRAFT)


WALKS = {
    "generate": generate,
    "chat": chat,
    "path": load,
    "temperature": temperature,
    "draft": draft,
}


def measured(name: str) -> Walk:
    """Makes a walk for the second time."""
    walk = Walk()
    with with_all_threads():
        WALKS[name](Walk())
        WALKS[name](walk)
    return walk


def _copy_with_template(folder: Path) -> None:
    """Copies the embedded pair, which knows no chat, with a chat template."""
    shutil.copytree(BUNDLE, folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": _TEMPLATE}))
    manifest = bundles.load(BUNDLE).manifest
    files = {**manifest.files, file.name: bundles.describe_file(file)}
    bundles.save_manifest(folder, replace(manifest, files=files))


async def _asked(app: Starlette, body: bytes) -> None:
    """Lets an application answer a request for a chat."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    told: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body}]
    waiting = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        if not told:
            await waiting.wait()  # the client stays
        return told.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("status", 200) != 200:
            raise RuntimeError(f"the server answers with status {message['status']}")

    await app(scope, receive, send)


def main() -> None:
    """Prints the walks, and a table of their files and returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--walk", action="append", choices=WALKS, help="a walk; default: all")
    given = parser.parse_args()
    found = {name: measured(name) for name in given.walk or WALKS}
    for name, walk in found.items():
        print(f"{name}: {', '.join(walk.files)}")
        again = (f"{each} {count}" for each, count in walk.returns.most_common())
        print(f"returns: {', '.join(again)}\n")
    rows = {name: (len(w.files), w.returns.total(), w.of_loop) for name, w in found.items()}
    header = ["walk", "files entered", "returns", "of these in the loop"]
    print_table(header, [[name, *row] for name, row in rows.items()])
    print_result("walks", {"files_returns_loop": rows})


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    sys.exit(exit_code(main))
