"""Shared parts of all benchmarks: arguments, output and memory measurement."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import psutil

from edgespec import bundle as bundles
from edgespec.cli.tables import markdown_table
from edgespec.errors import EdgespecError
from edgespec.system.environment import MIB, hardware, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from edgespec.llm.result import Result

_POLL_SECONDS = 0.01
_BUSY_PERIOD = 0.02  # seconds
_BUSY_PROGRAM = """
import sys, time
busy, period = map(float, sys.argv[1:])
while True:
    end = time.perf_counter() + busy * period
    while time.perf_counter() < end:
        pass
    if busy < 1:
        time.sleep((1 - busy) * period)
"""


def print_result(benchmark: str, values: Mapping[str, object]) -> None:
    """Prints the JSON line that ends every benchmark."""
    result = {"benchmark": benchmark, **values, "hardware": hardware(), "versions": versions()}
    print(json.dumps(result), flush=True)


def facts_of(bundle: Path) -> dict[str, object]:
    """Returns the facts about a bundle for a benchmark's JSON line."""
    found = bundles.load(bundle)
    return {
        "bundle": found.manifest.provenance,
        "parameters": {name: role.parameters for name, role in found.manifest.roles.items()},
        "precision": found.target.precision.weights,
    }


def speed(results: Sequence[Result]) -> float:
    """Returns the tokens per second of all texts together, without the first of each."""
    seconds = sum(each.tpot_ms * (each.new_tokens - 1) / 1e3 for each in results)
    return round(sum(each.new_tokens - 1 for each in results) / seconds, 1)


def mean_length(results: Sequence[Result]) -> float:
    """Returns the mean number of tokens of a round; 0 if there was none."""
    rounds = sum(each.rounds for each in results)
    return round(sum(each.new_tokens - 1 for each in results) / max(1, rounds), 2)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a Markdown table with numbers aligned right."""
    print(markdown_table(header, rows))


@contextmanager
def busy_program(share: float = 1.0) -> Iterator[None]:
    """Runs a program that is busy for this share of the time, until the end of the block."""
    if not share:
        yield
        return
    command = [sys.executable, "-c", _BUSY_PROGRAM, str(share), str(_BUSY_PERIOD)]
    with subprocess.Popen(command) as program:
        try:
            yield
        finally:
            program.kill()


@contextmanager
def with_all_threads() -> Iterator[None]:
    """Lets passes keep their threads, whatever other programs do until the end of the block."""
    from edgespec.runtime.engines.native import ThreadLimit  # loads ONNX Runtime

    with mock.patch.object(ThreadLimit, "adapt"):
        yield


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Declares the option --threads."""
    parser.add_argument("--threads", type=count, default=2, help="threads per engine (default 2)")


def count(text: str) -> int:
    """Parses an argument that is a positive whole number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return int(text)


def counts(text: str) -> list[int]:
    """Parses an argument that is a list of positive whole numbers, such as 1,2,4."""
    return [count(part) for part in text.split(",")]


def names(text: str, known: Sequence[str]) -> list[str]:
    """Parses an argument that is a list of names, such as a,b."""
    found = text.split(",")
    for name in found:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not known: use {', '.join(known)}")
    return found


def exit_code(main: Callable[[], None]) -> int:
    """Runs a command and returns its exit code; errors of edgespec are printed as one line.

    Output to a closed pipe, as with `| head`, is discarded.
    """
    try:
        main()
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # and would come again when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@dataclass(frozen=True)
class Watched:
    """A command that ran to its end.

    Attributes:
        seconds: Wall clock, the interpreter's start included.
        peak_mib: Peak of anonymous plus shared memory, of all its processes together.
    """

    seconds: float
    peak_mib: float


def watch(command: Sequence[str], quiet: bool = False) -> Watched:
    """Runs a command and polls its memory, without pages of mapped files. Linux only.

    Args:
        command: The program and its arguments.
        quiet: Whether to discard its stdout.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    peak = 0
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL if quiet else None) as process:
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - start
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Watched(seconds, peak / MIB)


def memory(pid: int) -> int:
    """Returns the anonymous plus shared bytes of a process and its children; 0 if it ended."""
    try:
        pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    return sum(map(_own_memory, pids))


def _own_memory(pid: int) -> int:
    # Shares of pages: what a process has only just been forked from is its parent's memory.
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    counted = ("Pss_Anon:", "Pss_Shmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(counted))
