"""Measures what calls of a role cost, and does so in a process of its own.

Two engines compiled in one process would hold the weights twice and more. So whoever is about to
serve a model has each engine measured apart, one after the other, before it loads anything.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edgespec import bundle as bundles
from edgespec import records
from edgespec.bundle import Bundle, Role
from edgespec.errors import DeviceError
from edgespec.runtime import profiles
from edgespec.runtime.buckets import capacity_bucket
from edgespec.runtime.engines import Engines, engine, joined
from edgespec.runtime.exactness import settle
from edgespec.runtime.feeds import Rows
from edgespec.runtime.interpreter import UNSEEN, interpreter
from edgespec.runtime.model import Model
from edgespec.runtime.profiles import Profile
from edgespec.runtime.runner import Runner

Report = Callable[[str, int], None]
"""Is called with a role and a capacity when that has been measured."""

_QUICK_ROWS = (1, 2, 4, 8, 32)
_FULL_ROWS = (1, 2, 4, 8, 16, 32)
# Attention is linear in the capacity: beyond the last of these the curve's slope goes on.
_CAPACITIES = (256, 1024, 4096)

# Turns over all numbers of rows at one capacity: as many as fit the time, within these bounds. One
# that takes long is enough: what else the machine does falls on its calls alike.
_SECONDS, _LEAST_TURNS, _MOST_TURNS = 0.5, 2, 10
_LONG_TURN = 5.0
# Calls of one shape in a row. The first of them pays for the change of shape (up to 2 ms in
# OpenVINO) and does not count: the rounds of a text mostly repeat the shape of those before.
_CALLS = 3
_LONG = 0.05  # seconds of a call beside which that is little: one is enough

# With the parent's path it finds the same edgespec, installed or in a checkout, from any folder.
# -P: until then nothing comes from the current folder.
_CHILD = (
    "import json, sys; job = json.load(sys.stdin.buffer); sys.path[:] = job.pop('path');"
    "from edgespec.runtime.profiling import answer; answer(job)"
)

_log = logging.getLogger(__name__)


def shapes(role: Role, full: bool) -> tuple[Sequence[int], Sequence[int]]:
    """Numbers of rows and capacities to measure, ascending."""
    if not full:
        return _QUICK_ROWS, _CAPACITIES[:1]
    most = min(capacity_bucket(role.context_length), _CAPACITIES[-1])
    return _FULL_ROWS, sorted({*(c for c in _CAPACITIES if c < most), most})


def measure(
    model: Model, rows: Sequence[int], capacities: Sequence[int]
) -> Iterator[tuple[int, dict[int, float]]]:
    """Time verifications: filling the inputs, and the engine's call.

    Numbers of rows take turns, so that what else the machine does falls on all of them.

    Args:
        model: a compiled role.
        rows: of a call, each at most as many as the smallest capacity holds.
        capacities: buckets of the cache, ascending. The text fills them up to the largest call.

    Yields:
        A capacity, and the least seconds by rows there: `dict` makes a `Curve`'s points of it.
    """
    runner = Runner(model)
    batches = [Rows.chain([0] * n) for n in rows]
    for capacity in capacities:
        runner.skip(capacity - max(rows) - runner.length)
        for batch in batches:  # the first call of a shape plans for it
            runner.verify(batch)
        samples: dict[int, list[float]] = {n: [] for n in rows}
        begin = time.perf_counter()
        for turn in range(_MOST_TURNS):
            spent = time.perf_counter() - begin
            if spent > (_SECONDS if turn >= _LEAST_TURNS else _LONG_TURN):
                break
            for batch in batches:
                samples[len(batch.tokens)] += timed(runner, batch)
        yield capacity, {n: min(seconds) for n, seconds in samples.items()}


def timed(runner: Runner, rows: Rows) -> list[float]:
    """Seconds of some verifications in a row, without a short one that changes the shape."""
    seconds = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        runner.verify(rows)
        seconds.append(time.perf_counter() - begin)
        if seconds[-1] >= _LONG:
            break
    return seconds[1:] or seconds


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


def measure_apart(job: Job, report: Report | None = None) -> dict[str, Profile]:
    """Measure roles in a process of its own, and store what comes out.

    Where none can be started that is not this program once more, they are measured here.

    Returns:
        A profile of each role. What could not be measured has its refusal, which was logged; a
        process that died is not stored as one, so that the next load tries again.
    """
    request = {
        "path": [entry for entry in sys.path if isinstance(entry, str)],
        "bundle": str(job.bundle.path.absolute()),
        "roles": {role: [each.name for each in engines] for role, engines in job.roles.items()},
        "threads": job.threads,
        "full": job.full,
    }
    python = interpreter()
    if python is None:
        _log.info("measuring in this process: a program with a Python of its own runs no other")
        found, failure = _listen(map(str.encode, _lines(request)), report), "it was not measured"
    else:
        found, failure = _converse(python, request, report)
    for role, engines in job.roles.items():
        if role in found:
            profiles.remember(job.bundle, role, engines, job.threads, found[role])
        else:
            device = joined(each.name for each in engines)
            found[role] = Profile(job.full, {}, f"{device}: {role}: {failure}")
        if found[role].refusal is not None:
            _log.warning("%s", found[role].refusal)
    return found


def answer(job: Mapping[str, Any]) -> None:
    """The child's part: what was measured, as lines of JSON on stdout."""
    for line in _lines(job):
        # It begins afresh, whatever a library has written before.
        print(f"\n{line}", flush=True)


def _lines(job: Mapping[str, Any]) -> Iterator[str]:
    bundle = bundles.load(Path(job["bundle"]))
    for role, names in job["roles"].items():
        try:
            engines = tuple(engine(name) for name in names)
            model = Model.load(bundle, role, engines, job["threads"])
        except DeviceError as error:
            yield _line(role, profile=records.encode(Profile(job["full"], {}, str(error))))
            continue
        settle(model, bundle, role, engines, job["threads"])
        seconds = {}
        for capacity, by_rows in measure(model, *_within(model, *shapes(model.role, job["full"]))):
            least = model.shapes.rows[0]
            # What fewer rows cost is the cost of the least, unless it is of a fixed shape.
            seconds[capacity] = {
                n if model.shapes.capacities else max(n, least): spent
                for n, spent in by_rows.items()
            }
            yield _line(role, capacity=capacity)
        yield _line(role, profile=records.encode(Profile.measured(job["full"], seconds)))
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
    python: str, request: Mapping[str, Any], report: Report | None
) -> tuple[dict[str, Profile], str]:
    """Run the child; what it told, and in one line why that is not all (if it is not)."""
    with _scratch_file() as complaints:
        try:
            process = subprocess.Popen(
                [python, "-P", "-c", _CHILD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, **UNSEEN,
            )  # fmt: skip
        except OSError as error:
            return {}, f"no process to measure in could be started ({error})"
        with process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                with suppress(OSError):  # it ended already: its status tells why
                    process.stdin.write(json.dumps(request).encode("ascii"))
                    process.stdin.close()
                found = _listen(process.stdout, report)
            except BaseException:
                process.kill()
                raise
        reason = f"measuring ended with status {process.returncode} and without a result"
        return found, reason + _last(complaints)


def _listen(lines: Iterable[bytes], report: Report | None) -> dict[str, Profile]:
    """The profiles among the lines of `answer`."""
    found: dict[str, Profile] = {}
    for line in lines:
        step = _take_in(line, found)
        if step is not None and report is not None:
            report(*step)
    return found


def _take_in(line: bytes, found: dict[str, Profile]) -> tuple[str, int] | None:
    """What a line tells: a profile, or a role and a capacity that it is done with.

    What libraries print between does not concern us.
    """
    try:
        facts = json.loads(line)
        if "profile" not in facts:
            return str(facts["role"]), int(facts["capacity"])
        profile = records.decode(Profile, facts["profile"], "profile")
        if profile.refusal is None:
            profile.curve()
        found[facts["role"]] = profile
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        if line.strip():
            _log.info("while measuring: %s", line.decode(errors="replace").strip())
    return None


def _scratch_file() -> IO[bytes]:
    """On Linux in memory: where all is read-only, as in containers, no folder would take it."""
    if sys.platform == "linux" and hasattr(os, "memfd_create"):  # not in every C library
        return os.fdopen(os.memfd_create("edgespec"), "w+b")
    return tempfile.TemporaryFile()


def _last(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return f" ({lines[-1]})" if lines else ""
