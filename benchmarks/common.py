"""What every benchmark reports beside its numbers, and how memory is measured."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1 << 20
_PACKAGES = ("edgespec", "numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "safetensors")
_POLL_SECONDS = 0.01


def hardware() -> dict[str, object]:
    """The machine: CPU model, logical and usable CPUs, memory in GiB, load of the last minute."""
    return {
        "cpu": _cpu_model(),
        "logical_cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Python and those of the packages that decide speed which are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def print_result(benchmark: str, values: Mapping[str, object]) -> None:
    """Print the one JSON line that ends every benchmark."""
    result = {"benchmark": benchmark, **values, "hardware": hardware(), "versions": versions()}
    print(json.dumps(result), flush=True)


@dataclass(frozen=True)
class Watched:
    """A command that ran to its end.

    Attributes:
        seconds: Wall clock, the interpreter's start included.
        peak_mib: Most anonymous plus shared memory at one time, all its processes together.
    """

    seconds: float
    peak_mib: float


def watch(command: Sequence[str]) -> Watched:
    """Run a command and poll its memory; pages of mapped files do not count. Linux only.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    peak = 0
    start = time.perf_counter()
    with subprocess.Popen(command) as process:
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
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    counted = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(counted))


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
