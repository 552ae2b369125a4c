"""Measures roles in separate processes.

Two engines compiled in one process would hold the weights at least twice. So each engine is
measured in its own process before a model is loaded. The processes take turns, so that other load
on the machine affects all of them alike; if memory has no room for all at once, they are measured
one after the other.
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
from edgespec.runtime.costs.timing import Points, measure, shapes, usual_tokens
from edgespec.runtime.engines import CallSizes, Engines, engine, joined_names
from edgespec.runtime.execution.exactness import use_exact_shapes
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.sizes import role_bytes
from edgespec.system import records
from edgespec.system.interpreter import NO_CONSOLE, interpreter

Step = tuple[str, int | None]
"""A step of measuring: the role, and the capacity that begins with it, or None if none does."""

_PROCESS_BYTES = 256 << 20  # Python and an engine's libraries, besides the model

# With the parent's sys.path the child finds the same edgespec, installed or in a checkout, from any
# folder. It is started with -P, so that it imports nothing from the current folder before that.
_CHILD = (
    "import json, sys; job = json.loads(sys.stdin.buffer.readline());"
    "sys.path[:] = job.pop('path');"
    "from edgespec.runtime.costs.isolated import answer; answer(job)"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """The roles that one child process measures.

    Attributes:
        bundle: the bundle of the roles.
        roles: engines by role; the roles are measured one after the other.
        threads: number of threads per engine.
        full: whether to measure many rows and capacities, as `edgespec profile` does, or only the
            few points that choosing an engine needs.
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
"""Called with a job, a role and a capacity when measuring this capacity begins."""


def measure_apart(jobs: Sequence[Job], report: Report | None = None) -> list[dict[str, Profile]]:
    """Measures each job in its own process, and stores the profiles.

    The processes take turns if memory has room for all of them. If no Python interpreter can be
    started, as in a frozen program, the jobs are measured in this process, one after the other.

    Returns:
        For each job, the profile of each role. The profile of a role that could not be measured
        tells the reason in `refusal`, which is also logged. If a process died, its profile is not
        stored, so that the next load tries again.
    """
    python = interpreter()
    if python is None:
        _log.info("measuring in this process: a frozen program cannot start a Python interpreter")
    found: list[dict[str, Profile]] = [{} for _ in jobs]
    waiting = list(zip(jobs, found, strict=True))
    at_once = len(jobs) if python is not None and _fit(jobs) else 1
    while waiting:
        _in_turns(waiting[:at_once], python, report)
        del waiting[:at_once]
    return found


def answer(job: Mapping[str, Any]) -> None:
    """Runs in the child: writes steps as lines of JSON to stdout, each after a line from stdin."""
    for line in _lines(job):
        # The line break ends whatever a library has written to stdout.
        print(f"\n{line}", flush=True)
        if not sys.stdin.buffer.readline():  # the parent is gone
            break


def _fit(jobs: Sequence[Job]) -> bool:
    """Returns whether memory has room for all jobs at once, each with its larger role."""
    needed: defaultdict[str, int] = defaultdict(int)
    free: dict[str, int] = {}
    for job in jobs:
        most: defaultdict[str, int] = defaultdict(int)
        for role, engines in job.roles.items():
            points = shapes(job.bundle.manifest.roles[role], job.full)
            rows = max(map(max, points.values()))
            calls = CallSizes(rows, max(points), rows)
            for memory, taken in role_bytes(job.bundle, role, engines, calls).items():
                most[memory] = max(most[memory], taken)
            free |= {each.memory: each.available_bytes() for each in engines}
        for memory, taken in most.items():
            needed[memory] += taken + _PROCESS_BYTES
    return all(taken <= free[memory] for memory, taken in needed.items())


def _in_turns(
    jobs: Sequence[tuple[Job, dict[str, Profile]]], python: str | None, report: Report | None
) -> None:
    """Runs the jobs in turns, a step each, until all are done.

    Args:
        jobs: jobs with the dictionaries that get their profiles.
        python: path of the Python interpreter; None: measure in this process.
        report: called when a capacity begins.
    """
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
    """Measures a job, a turn at each step; stores its profiles and adds them to `found`."""
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
        # Outside of the `try`: a failure here is not stored as a refusal.
        use_exact_shapes(model, bundle, role, engines, job["threads"])
        samples: dict[int, dict[int, list[float]]] = {}
        points = _within(model, shapes(model.role, job["full"]))
        tokens = usual_tokens(bundle, role, max(map(max, points.values())))
        for capacity, turn in measure(model, points, tokens):
            known = samples.setdefault(capacity, {})
            yield _line(role, capacity=None if known else capacity)
            for rows, seconds in turn.items():
                known.setdefault(rows, []).extend(seconds)
        yield _line(role, profile=records.encode(Profile.measured(job["full"], samples)))
        del model  # frees its memory before the next one is loaded


def _within(model: Model, points: Points) -> Points:
    """Returns the points that the model's shapes allow: all capacities, where these are fixed."""
    fixed = model.shapes
    if fixed.capacities:
        points = dict.fromkeys(fixed.capacities, points[min(points)])
    return {c: tuple(n for n in rows if n <= fixed.rows[-1]) for c, rows in points.items()}


def _line(role: str, **facts: Any) -> str:
    return json.dumps({"role": role, **facts})


def _converse(
    python: str, request: Mapping[str, Any], found: dict[str, Profile]
) -> Generator[Step, None, str]:
    """Runs the child step by step; returns one line that says why profiles may be missing."""
    with _scratch_file() as complaints:
        try:
            process = subprocess.Popen(
                [python, "-P", "-c", _CHILD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, **NO_CONSOLE,
            )  # fmt: skip
        except OSError as error:
            return f"the process that measures could not be started ({error})"
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
        reason = f"the measuring process ended with status {process.returncode} without a result"
        return reason + _last(complaints)


def _tell(pipe: IO[bytes], words: str) -> None:
    """Sends a line to the child. If it has ended, its exit status tells why later."""
    with suppress(OSError):
        # Unbuffered: a buffer would keep what could not be written, and fail again when closed.
        os.write(pipe.fileno(), f"{words}\n".encode("ascii"))


def _taken_in(line: bytes, found: dict[str, Profile]) -> Iterator[Step]:
    """Yields the step that a line reports, and adds a profile in it to `found`.

    Other lines, which libraries print, are logged.
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
    """Returns a temporary file: on Linux in memory, since in containers all may be read-only."""
    if sys.platform == "linux" and hasattr(os, "memfd_create"):  # not in every C library
        return os.fdopen(os.memfd_create("edgespec"), "w+b")
    return tempfile.TemporaryFile()


def _last(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return f" ({lines[-1]})" if lines else ""
