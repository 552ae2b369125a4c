"""What a measurement says beside its numbers: the machine, the versions, the memory it took."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

import edgespec
from edgespec.system import processors
from edgespec.system.procfs import proc_field

MIB = 1 << 20

_PACKAGES = (
    "numpy", "onnxruntime", "onnxruntime-gpu", "onnxruntime-ep-webgpu", "onnxruntime-qnn",
    "openvino", "safetensors",
)  # fmt: skip


def hardware() -> dict[str, object]:
    """The machine: CPU and its extensions, CPUs, memory in GiB, load of the last minute."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": processors.model_name(),
        "extensions": list(processors.extensions()),
        "logical_cpus": os.cpu_count(),
        "usable_cpus": usable,
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "load_average": round(psutil.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Python and those of the packages that decide speed which are installed."""
    found = {"python": platform.python_version(), "edgespec": edgespec.__version__}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def git_revision() -> str | None:
    """The commit of the checkout that runs, `-dirty` behind it where files differ; None in a wheel.

    Whatever repository a wheel happens to be installed below is not ours.
    """
    checkout = Path(edgespec.__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, check=True, timeout=10
        )
        return found.stdout.strip() or None
    return None


def peak_rss_mb() -> float:
    """This process's largest resident memory so far, MiB, file-backed pages included."""
    if sys.platform == "win32":
        return round(psutil.Process().memory_info().peak_wset / MIB, 1)
    # Linux's rusage also knows what the process that started this one held then.
    if own := proc_field("/proc/self/status", "VmHWM"):
        return round(int(own.split()[0]) / 1024, 1)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB, on macOS bytes
    return round(peak / (MIB if sys.platform == "darwin" else 1024), 1)
