"""All settings of all peers, in turns text by text."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from peers import peer
from peers.base import PLAIN, Checkpoints, Loading, PeerError, Request, Text
from peers.lines import Row, Way
from peers.process import PeerProcess
from peers.setup import converted, environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_WARM_UP_PROMPT, _WARM_UP_TOKENS = 64, 8


@dataclass(frozen=True)
class Job:
    """What is measured.

    Attributes:
        checkpoints: The pair.
        settings: Of each peer, by its name.
        requests: The texts of a repeat, each with the number of its prompt.
        repeats: How often; the number of the repeat is added to a text's seed.
        loading: What all have in common; setting and folder are filled in.
        cache: Folder of environments and converted checkpoints.
    """

    checkpoints: Checkpoints
    settings: Mapping[str, Sequence[str]]
    requests: Sequence[tuple[int, Request]]
    repeats: int
    loading: Loading
    cache: Path


@dataclass
class Measured:
    """What came.

    Attributes:
        ways: That made all texts.
        rows: Their texts.
        versions: Of each peer's packages.
        failures: Why a peer or setting is not among the ways.
    """

    ways: list[Way] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass
class _Running:
    """A loaded setting and what it has made."""

    peer: str
    setting: str
    process: PeerProcess
    start_seconds: float
    rows: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.peer} {self.setting}"


def measure(job: Job) -> Measured:
    """Set up, load side by side, and make all texts in turns; who fails is left out."""
    found = Measured()
    with ExitStack() as stack:
        running = _load_all(job, found, stack)
        for repeat in range(job.repeats):
            for number, request in job.requests:
                for each in list(running):
                    _tell(f"{each.name}: repeat {repeat + 1}, prompt {number + 1}")
                    seeded = replace(request, seed=request.seed + repeat)
                    try:
                        each.rows.append(_row(each, repeat, number, seeded))
                    except PeerError as error:
                        running.remove(each)
                        found.failures[each.name] = str(error)
        for each in running:
            found.ways.append(_way(each, running, job))
            found.rows += each.rows
    _tell("")
    return found


def prepare(job: Job, found: Measured) -> dict[str, tuple[Path, Path]]:
    """Interpreter and models of each peer that can be set up, made now where they are missing."""
    ready = {}
    for name in job.settings:
        _tell(f"{name}: environment and models")
        try:
            needs = peer(name)
            python = environment(needs.home, needs.requirements, job.cache, needs.build)
            ready[name] = (python, converted(name, python, job.checkpoints, job.cache))
        except PeerError as error:
            found.failures[name] = str(error)
    return ready


def _load_all(job: Job, found: Measured, stack: ExitStack) -> list[_Running]:
    running = []
    for name, (python, folder) in prepare(job, found).items():
        for setting in job.settings[name]:
            _tell(f"{name} {setting}: loading")
            if setting not in peer(name).settings:
                continue
            log = job.cache / "logs" / f"{name}-{setting}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            process = stack.enter_context(PeerProcess(python, name, log))
            loading = replace(job.loading, setting=setting, folder=folder)
            try:
                found.versions[name] = process.load(loading)
                first = process.make(_warm_up(job.requests[0][1]))
            except PeerError as error:
                found.failures[f"{name} {setting}"] = str(error)
                continue
            start = first.first_at - process.started
            running.append(_Running(name, setting, process, start))
    return running


def _warm_up(request: Request) -> Request:
    return replace(request, prompt=request.prompt[:_WARM_UP_PROMPT], new_tokens=_WARM_UP_TOKENS)


def _row(each: _Running, repeat: int, number: int, request: Request) -> Row:
    text: Text = each.process.make(request)
    return Row(
        peer=each.peer,
        setting=each.setting,
        temperature=request.temperature,
        repeat=repeat,
        prompt=number,
        prompt_tokens=len(request.prompt),
        tokens=text.tokens,
        ttft=text.ttft,
        whole=text.whole,
    )


def _way(each: _Running, running: Sequence[_Running], job: Job) -> Way:
    peak = each.process.peak_mib()  # before the verdicts, which may take more
    return Way(
        peer=each.peer,
        setting=each.setting,
        precision=peer(each.peer).precision,
        start_seconds=each.start_seconds,
        peak_mib=peak,
        verdicts=_verdicts(each, running, job),
    )


def _verdicts(each: _Running, running: Sequence[_Running], job: Job) -> tuple[str, ...]:
    """On the greedy texts of the first repeat, by the same peer's plain decoding."""
    plain = next((r for r in running if (r.peer, r.setting) == (each.peer, PLAIN)), None)
    if plain is None or plain is each or not each.rows:
        return ()
    verdicts = []
    for number, request in job.requests:
        if not request.temperature:
            found, expected = (_tokens(of, number) for of in (each, plain))
            verdicts.append(each.process.verdict(request, expected, found))
    return tuple(verdicts)


def _tokens(of: _Running, prompt: int) -> tuple[int, ...]:
    """Of the greedy text of a prompt, in the first repeat."""
    return next(row.tokens for row in of.rows if row.prompt == prompt and not row.temperature)


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="" if what else "\n", file=sys.stderr, flush=True)
