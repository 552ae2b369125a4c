"""What every benchmark reports beside its numbers, and how memory is measured."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from edgespec.cli.tables import markdown_table
from edgespec.errors import EdgespecError
from edgespec.system.environment import MIB, hardware, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POLL_SECONDS = 0.01


def print_result(benchmark: str, values: Mapping[str, object]) -> None:
    """Print the one JSON line that ends every benchmark."""
    result = {"benchmark": benchmark, **values, "hardware": hardware(), "versions": versions()}
    print(json.dumps(result), flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table, numbers to the right."""
    print(markdown_table(header, rows))


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Declare --threads, which every command that runs an engine has."""
    parser.add_argument("--threads", type=count, default=2, help="of each engine (default 2)")


def count(text: str) -> int:
    """An argument that is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return int(text)


def counts(text: str) -> list[int]:
    """An argument that is a list of such numbers: 1,2,4."""
    return [count(part) for part in text.split(",")]


def names(text: str, known: Sequence[str]) -> list[str]:
    """An argument that is a list of names: a,b."""
    found = text.split(",")
    for name in found:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not known: use {', '.join(known)}")
    return found


def exit_code(main: Callable[[], None]) -> int:
    """Run a command; an error of edgespec's is one line and its exit code.

    What nobody reads any more, as behind `| head`, is thrown away.
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
        peak_mib: Most anonymous plus shared memory at one time, all its processes together.
    """

    seconds: float
    peak_mib: float


def watch(command: Sequence[str], quiet: bool = False) -> Watched:
    """Run a command and poll its memory; pages of mapped files do not count. Linux only.

    Args:
        command: The program and its arguments.
        quiet: Whether to drop what it prints to stdout.

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
    """Bytes of anonymous plus shared memory of a process and its descendants; 0 once it ended."""
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
