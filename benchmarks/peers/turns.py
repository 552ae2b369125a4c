"""Ways to decode that take turns, text by text, until the time is up; what was made is kept."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from common import busy_program, count, names

from edgespec.measuring.prompts import read_prompts
from edgespec.models import load_checkpoint
from edgespec.runtime.text.tokenizer import Tokenizer
from peers import FILES, Loading, Made, Peer, PeerError, module_of
from peers.heads import head_of, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADS = ("head", "head-alone")
"""Settings in which a head drafts; alone where it otherwise drafts beside what else there is."""

Way = tuple[str, str]
"""A peer's name and one of its settings."""

COMPANIES = ("nothing", "busy")
"""What runs beside texts; `busy` is a program that keeps a core busy."""

_MARGIN = 64  # cells of a cache beyond the texts, for drafts
_WARM_UP_PROMPT, _WARM_UP_TOKENS = 64, 8
_SEED = 1  # of all texts: a prompt's text is the same alone and beside others


@dataclass(frozen=True)
class Task:
    """Texts that are made at once.

    Attributes:
        test: what it belongs to.
        number: which of that test's.
        prompts: token ids of each.
        new_tokens: of each.
        temperature: 0 for greedy texts.
        repeat: which time it is.
        known: so many tokens of a single prompt are read before, as those of an earlier turn.
        beside: what runs beside it, one of `COMPANIES`.
    """

    test: str
    number: int
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int
    temperature: float = 0.0
    repeat: int = 0
    known: int = 0
    beside: str = COMPANIES[0]

    @property
    def cells(self) -> int:
        """Tokens of all texts together."""
        return sum(len(prompt) + self.new_tokens + _MARGIN for prompt in self.prompts)


@dataclass
class Turns:
    """What was made of tasks.

    Attributes:
        arguments: those of `add_arguments`.
        made: by task and way.
        failures: why a way made nothing more.
        versions: of each peer's packages.
    """

    arguments: argparse.Namespace
    made: dict[tuple[Task, Way], Made] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._end: float = time.monotonic() + 60 * self.arguments.minutes
        self._kept = dict[str, Made]()
        rows: Path | None = self.arguments.rows
        if rows is not None and rows.exists():
            for line in rows.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # a line that a kill cut short
                    key, row = json.loads(line)
                    self._kept[key] = Made(**row)

    def run(self, tasks: Sequence[Task], ways: Iterable[Way], share: float = 1.0) -> None:
        """Loads ways side by side, and makes the texts of all tasks, way after way.

        Args:
            tasks: those of one test.
            ways: who makes them.
            share: of the time that is left; the first task is done in any case while there is some.
        """
        end = self._end_of(share)
        found = {way: [self._found(task, way) for task in tasks] for way in ways}
        wanted = [way for way in ways if not all(found[way])]
        with ExitStack() as stack:
            peers = self._loaded(tasks, wanted, stack)
            stack.enter_context(beside(tasks[0].beside))
            for number, task in enumerate(tasks):
                turns = list(peers)
                first = number % max(1, len(turns))  # each is the first as often as the others
                for way in turns[first:] + turns[:first]:
                    if self._found(task, way):
                        continue
                    if time.monotonic() >= (end if number else self._end):
                        return
                    tell(f"{task.test} {task.number}, repeat {task.repeat}: {' '.join(way)}")
                    try:
                        self._keep(task, way, _made(peers[way], task))
                    except PeerError as error:
                        self.failures[f"{' '.join(way)}, {task.test}"] = str(error)
                        peers.pop(way)
        tell("")

    def start(self, tasks: Sequence[Task], ways: Iterable[Way], share: float = 1.0) -> None:
        """Makes each text in a process of its own, whose start counts, way after way.

        What a way makes of its files is made by the first of its tasks, and there for the others.

        Args:
            tasks: those of one test.
            ways: who makes them.
            share: of the time that is left, behind which no further way begins.
        """
        end = self._end_of(share)
        with beside(tasks[0].beside):
            for way in ways:
                if all(self._found(task, way) for task in tasks):
                    continue
                if time.monotonic() > end:
                    return
                tell(f"{tasks[0].test}: {' '.join(way)}")
                try:
                    self._start(tasks, way)
                except PeerError as error:
                    self.failures[f"{' '.join(way)}, {tasks[0].test}"] = str(error)
        tell("")

    def _end_of(self, share: float) -> float:
        """Returns when a share of the time that is left is over."""
        now = time.monotonic()
        return now + share * (self._end - now)

    def _start(self, tasks: Sequence[Task], way: Way) -> None:
        cache = self.arguments.cache
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=cache) as folder:
            for task in tasks:
                with Peer(way[0], self._loading(tasks, way, Path(folder)), cache) as peer:
                    loaded = time.monotonic() - peer.started
                    made = _made(peer, task)
                    self.versions[way[0]] = peer.versions
                first, seconds = loaded + made.first, loaded + made.seconds
                self._keep(task, way, replace(made, first=first, seconds=seconds))

    def of(self, test: str, way: Way, company: str = COMPANIES[0]) -> dict[Task, Made]:
        """Returns what a way made of a test beside one of `COMPANIES`."""
        return {
            task: made
            for (task, other), made in self.made.items()
            if other == way and (task.test, task.beside) == (test, company)
        }

    def _loaded(
        self, tasks: Sequence[Task], ways: Sequence[Way], stack: ExitStack
    ) -> dict[Way, Peer]:
        given = self.arguments
        peers = dict[Way, Peer]()
        for way in ways:
            if time.monotonic() > self._end:
                break
            name, _ = way
            tell(f"{' '.join(way)}: loading")
            try:
                loading = self._loading(tasks, way, given.cache / "models" / name)
                peer = stack.enter_context(Peer(name, loading, given.cache))
                peer.texts([tasks[0].prompts[0][:_WARM_UP_PROMPT]], _WARM_UP_TOKENS)
            except PeerError as error:
                self.failures[" ".join(way)] = str(error)
            else:
                peers[way], self.versions[name] = peer, peer.versions
        return peers

    def _loading(self, tasks: Sequence[Task], way: Way, folder: Path) -> Loading:
        given = self.arguments
        cells, sequences = (max(map(of, tasks)) for of in (_cells, _sequences))
        head: Path | None = None
        form: str | None = None
        if way[1] in HEADS:
            head, form = head_of(way[0], given.head, given.model, given.cache / "models")
        return Loading(
            target=str(given.model),
            draft=given.draft and str(given.draft),
            setting=way[1],
            threads=given.threads,
            context=cells,
            sequences=sequences,
            folder=str(folder),
            checkpoint=given.checkpoint and str(given.checkpoint),
            draft_checkpoint=given.draft_checkpoint and str(given.draft_checkpoint),
            head=None if head is None else str(head),
            form=form,
            keeps=any(task.known for task in tasks),
        )

    def _found(self, task: Task, way: Way) -> bool:
        if made := self._kept.get(self._key(task, way)):
            self.made[task, way] = made
        return (task, way) in self.made

    def _keep(self, task: Task, way: Way, made: Made) -> None:
        self.made[task, way] = made
        if self.arguments.rows is not None:
            with self.arguments.rows.open("a", encoding="utf-8") as rows:
                rows.write(json.dumps([self._key(task, way), asdict(made)]) + "\n")

    def _key(self, task: Task, way: Way) -> str:
        given = self.arguments
        files = [
            file and f"{file.name}:{file.stat().st_size}" for file in (given.model, given.draft)
        ]
        head = version_of(given.head) if way[1] in HEADS else []
        company = [task.beside] if task.beside != COMPANIES[0] else []
        settings = [task.repeat, *way, *head, *company]
        shape = [len(task.prompts), sum(map(sum, task.prompts)), task.new_tokens, task.temperature]
        return json.dumps([*files, given.threads, task.test, task.number, *shape, *settings])


def _cells(task: Task) -> int:
    return task.cells


def _sequences(task: Task) -> int:
    return len(task.prompts)


def _made(peer: Peer, task: Task) -> Made:
    return peer.texts(task.prompts, task.new_tokens, task.temperature, seed=_SEED, known=task.known)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of everything that peers take part in."""
    parser.add_argument("model", type=Path, help="GGUF file that all read")
    parser.add_argument("--draft", type=Path, help="GGUF file of its draft")
    parser.add_argument(
        "--head",
        type=Path,
        help="draft head (EAGLE-3, DFlash or DSpark for others than edgespec), "
        f"for the settings {' and '.join(HEADS)}; only edgespec has the second",
    )
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for environments and models, kept"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="folder of the model's checkpoint, for onnxruntime-genai"
    )
    parser.add_argument("--draft-checkpoint", type=Path, help="folder of the draft's checkpoint")
    parser.add_argument(
        "--peers",
        type=lambda text: names(text, tuple(FILES)),
        default=list(FILES),
        help=f"of {','.join(FILES)} (default all)",
    )
    parser.add_argument("--code", type=Path, help="JSON lines with prompt, such as HumanEval's")
    parser.add_argument("--threads", type=count, default=2, help="of each peer (default 2)")
    parser.add_argument("-n", type=count, default=64, help="new tokens of a text (default 64)")
    parser.add_argument(
        "--minutes", type=float, default=30, help="after which no text is begun (default 30)"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="file in which texts are kept as they are made; a run that finds them there goes on",
    )


def ways_of(arguments: argparse.Namespace, settings: Sequence[str]) -> list[Way]:
    """Returns those ways of the peers that settings name, but for drafts that are not given."""
    given = {"draft": arguments.draft, **dict.fromkeys(HEADS, arguments.head)}
    missing = [setting for setting, file in given.items() if file is None]
    return [
        (name, setting)
        for name in arguments.peers
        for setting in module_of(name).SETTINGS
        if setting in settings and setting not in missing
    ]


def code_prompts(
    arguments: argparse.Namespace, tokenizer: Tokenizer, limit: int | None = None
) -> list[tuple[int, ...]]:
    """Returns prompts of the file, or built-in ones."""
    files = [arguments.code] if arguments.code else []
    return [tuple(tokenizer.encode(text)) for text in read_prompts(files, limit)]


def tokenizer_of(model: Path) -> Tokenizer:
    """Returns a GGUF file's own tokenizer."""
    return Tokenizer.from_files(load_checkpoint(model).tokenizer_files, model)


def beside(what: str) -> AbstractContextManager[None]:
    """Runs one of `COMPANIES` until the end of the block."""
    return busy_program(float(what == "busy"))


def tell(what: str) -> None:
    """Shows what is being done, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="" if what else "\n", file=sys.stderr, flush=True)


def settings_of(peers: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns how each setting of each peer is set up."""
    return {name: dict(module_of(name).SETTINGS) for name in peers}
