"""Measures roles in processes of their own.

Two engines compiled in one process would hold the weights twice and more. So whoever is about to
serve a model has each engine measured apart before it loads anything. The processes take turns, so
that what else the machine does falls on all of them; where memory has no room for all at once, one
is measured after the other.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edgespec import bundle as bundles
from edgespec.bundle import Bundle
from edgespec.errors import DeviceError
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.profiles import Profile
from edgespec.runtime.costs.timing import measure, shapes
from edgespec.runtime.engines import CallSizes, Engines, engine, joined_names
from edgespec.runtime.execution.exactness import settle
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.sizes import role_bytes
from edgespec.system import records
from edgespec.system.interpreter import UNSEEN, interpreter

Step = tuple[str, int | None]
"""Of measuring a role: the capacity that it has come to; None: it goes on, or is done."""

_PROCESS_BYTES = 256 << 20  # Python and an engine's libraries, besides the model

# With the parent's path it finds the same edgespec, installed or in a checkout, from any folder.
# -P: until then nothing comes from the current folder.
_CHILD = (
    "import json, sys; job = json.loads(sys.stdin.buffer.readline());"
    "sys.path[:] = job.pop('path');"
    "from edgespec.runtime.costs.isolated import answer; answer(job)"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What a child process measures.

    Attributes:
        bundle: where the roles are.
        roles: are measured one after the other, each on these engines.
        threads: for each engine's operators.
        full: rows and capacities, or the few points that a load is worth.
    """

    bundle: Bundle
    roles: Mapping[str, Engines]
    threads: int
    full: bool

    @property
    def device(self) -> str:
        """The engines' names, joined by `+`."""
        return joined_names(each.name for engines in self.roles.values() for each in engines)


Report = Callable[[Job, str, int], None]
"""Is called with a job, a role of it and a capacity when measuring has come to that."""


def measure_apart(jobs: Sequence[Job], report: Report | None = None) -> list[dict[str, Profile]]:
    """Measure each job in a process of its own, and store what comes out.

    The processes take turns where there is memory for all of them. Where none can be started that
    is not this program once more, all is measured here, one job after the other.

    Returns:
        Of each job a profile of each role. What could not be measured has its refusal, which was
        logged; a process that died is not stored as one, so that the next load tries again.
    """
    python = interpreter()
    if python is None:
        _log.info("measuring in this process: a program with a Python of its own runs no other")
    found: list[dict[str, Profile]] = [{} for _ in jobs]
    waiting = list(zip(jobs, found, strict=True))
    at_once = len(jobs) if python is not None and _fit(jobs) else 1
    while waiting:
        _in_turns(waiting[:at_once], python, report)
        del waiting[:at_once]
    return found


def answer(job: Mapping[str, Any]) -> None:
    """The child's part: steps as lines of JSON on stdout, each but the first when it is asked."""
    for line in _lines(job):
        # It begins afresh, whatever a library has written before.
        print(f"\n{line}", flush=True)
        if not sys.stdin.buffer.readline():  # nobody listens any more
            break


def _fit(jobs: Sequence[Job]) -> bool:
    """Whether there is room for all of them at once, each with the larger of its roles."""
    needed: defaultdict[str, int] = defaultdict(int)
    free: dict[str, int] = {}
    for job in jobs:
        most: defaultdict[str, int] = defaultdict(int)
        for role, engines in job.roles.items():
            rows, capacities = shapes(job.bundle.manifest.roles[role], job.full)
            calls = CallSizes(rows[-1], capacities[-1], rows[-1])
            for memory, taken in role_bytes(job.bundle, role, engines, calls).items():
                most[memory] = max(most[memory], taken)
            free |= {each.memory: each.available_bytes() for each in engines}
        for memory, taken in most.items():
            needed[memory] += taken + _PROCESS_BYTES
    return all(taken <= free[memory] for memory, taken in needed.items())


def _in_turns(
    jobs: Sequence[tuple[Job, dict[str, Profile]]], python: str | None, report: Report | None
) -> None:
    """A step of each job after the other until all are done; profiles go where each job says."""
    with ExitStack() as running:
        measuring = [
            (job, running.enter_context(closing(_steps(job, python, found)))) for job, found in jobs
        ]
        while measuring:
            for job, steps in tuple(measuring):
                role, capacity = next(steps, (None, None))
                if role is None:
                    measuring.remove((job, steps))
                elif report is not None and capacity is not None:
                    report(job, role, capacity)


def _steps(job: Job, python: str | None, found: dict[str, Profile]) -> Generator[Step]:
    """Measure a job, a turn at each step, and store what comes out, which goes to `found`, too."""
    request = {
        "path": [entry for entry in sys.path if isinstance(entry, str)],
        "bundle": str(job.bundle.path.absolute()),
        "roles": {role: [each.name for each in engines] for role, engines in job.roles.items()},
        "threads": job.threads,
        "full": job.full,
    }
    if python is None:
        failure = "it was not measured"
        for line in _lines(request):
            yield from _taken_in(line.encode(), found)
    else:
        failure = yield from _converse(python, request, found)
    for role, engines in job.roles.items():
        if role in found:
            profiles.remember(job.bundle, role, engines, job.threads, found[role])
        else:
            device = joined_names(each.name for each in engines)
            found[role] = Profile(job.full, {}, f"{device}: {role}: {failure}")
        if found[role].refusal is not None:
            _log.warning("%s", found[role].refusal)


def _lines(job: Mapping[str, Any]) -> Iterator[str]:
    bundle = bundles.load(Path(job["bundle"]))
    for role, names in job["roles"].items():
        try:
            engines = tuple(engine(name) for name in names)
            model = Model.load(bundle, role, engines, job["threads"])
        except DeviceError as error:
            yield _line(role, profile=records.encode(Profile(job["full"], {}, str(error))))
            continue
        # Beyond the `try`: what fails here is no refusal to keep.
        settle(model, bundle, role, engines, job["threads"])
        samples: dict[int, dict[int, list[float]]] = {}
        for capacity, turn in measure(model, *_within(model, *shapes(model.role, job["full"]))):
            known = samples.setdefault(capacity, {})
            yield _line(role, capacity=None if known else capacity)
            for rows, seconds in turn.items():
                known.setdefault(rows, []).extend(seconds)
        yield _line(role, profile=records.encode(Profile.measured(job["full"], samples)))
        del model  # before the next one comes


def _within(
    model: Model, rows: Sequence[int], capacities: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    """Of these, what fixed shapes allow."""
    fixed = model.shapes
    return [n for n in rows if n <= fixed.rows[-1]], fixed.capacities or capacities


def _line(role: str, **facts: Any) -> str:
    return json.dumps({"role": role, **facts})


def _converse(
    python: str, request: Mapping[str, Any], found: dict[str, Profile]
) -> Generator[Step, None, str]:
    """Run the child, step by step; in one line why profiles are missing (if they are)."""
    with _scratch_file() as complaints:
        try:
            process = subprocess.Popen(
                [python, "-P", "-c", _CHILD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, **UNSEEN,
            )  # fmt: skip
        except OSError as error:
            return f"no process to measure in could be started ({error})"
        with process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                _tell(process.stdin, json.dumps(request))
                for line in process.stdout:
                    for step in _taken_in(line, found):
                        yield step
                        _tell(process.stdin, "go on")
            except BaseException:
                process.kill()
                raise
        reason = f"measuring ended with status {process.returncode} and without a result"
        return reason + _last(complaints)


def _tell(pipe: IO[bytes], words: str) -> None:
    """A line for the child; one that has ended already says why by its status."""
    with suppress(OSError):
        os.write(pipe.fileno(), f"{words}\n".encode("ascii"))  # past a buffer that is kept


def _taken_in(line: bytes, found: dict[str, Profile]) -> Iterator[Step]:
    """The step that a line tells of; its profile goes to `found`.

    What libraries print between does not concern us.
    """
    try:
        facts = json.loads(line)
        if "profile" in facts:
            profile = records.decode(Profile, facts["profile"], "profile")
            profile.check()
            found[facts["role"]] = profile
        capacity = facts.get("capacity")
        step = str(facts["role"]), None if capacity is None else int(capacity)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        if line.strip():
            _log.info("while measuring: %s", line.decode(errors="replace").strip())
    else:
        yield step


def _scratch_file() -> IO[bytes]:
    """On Linux in memory: where all is read-only, as in containers, no folder would take it."""
    if sys.platform == "linux" and hasattr(os, "memfd_create"):  # not in every C library
        return os.fdopen(os.memfd_create("edgespec"), "w+b")
    return tempfile.TemporaryFile()


def _last(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return f" ({lines[-1]})" if lines else ""
