"""Facts reported with each measurement: the machine, the package versions, the memory used."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

import edgespec
from edgespec.system import machine
from edgespec.system.machine import proc_field

MIB = 1 << 20

_PACKAGES = ("numpy", "onnxruntime-ep-webgpu", "onnxruntime-qnn", "openvino", "safetensors")
_ONNXRUNTIME = "capi/build_and_package_info.py"  # in the folder of any of its distributions


def circumstances() -> dict[str, object]:
    """Returns the facts of all measurements: memory used, machine, versions, commit."""
    return {
        "peak_rss_mb": peak_rss_mb(),
        "hardware": hardware(),
        "versions": versions(),
        "git_revision": git_revision(),
    }


def hardware() -> dict[str, object]:
    """Returns the CPU model, its extensions, the number of CPUs, memory in GiB, and the load."""
    return {
        "cpu": machine.processor_name(),
        "extensions": list(machine.extensions()),
        "logical_cpus": os.cpu_count(),
        "usable_cpus": len(machine.usable_processors()),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "load_average": round(psutil.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Returns the versions of Python, edgespec and the installed packages that affect speed."""
    found = {"python": platform.python_version(), "edgespec": edgespec.__version__}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found | _onnxruntime()


def _onnxruntime() -> dict[str, str]:
    """Returns the version of the ONNX Runtime that is imported, by its distribution.

    Distributions replace each other's files, so what pip has noted may be of none that is there.
    """
    found = importlib.util.find_spec("onnxruntime")
    for folder in (found and found.submodule_search_locations) or ():
        with suppress(OSError):
            text = Path(folder, _ONNXRUNTIME).read_text(encoding="utf-8")
            told = dict(re.findall(r"^(\w+) = ['\"](.+)['\"]$", text, re.M))
            if name := told.get("package_name"):
                return {name: told.get("__version__", "")}
    return {}


def git_revision() -> str | None:
    """Returns the commit of the running checkout; None if this is not a checkout.

    The suffix `-dirty` means that files have changed. A repository that a wheel happens to be
    installed in does not count.
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
    """Returns the process's peak resident memory in MiB, file-backed pages included."""
    if sys.platform == "win32":
        return round(psutil.Process().memory_info().peak_wset / MIB, 1)
    # On Linux, rusage also counts the memory of the process that started this one.
    if own := proc_field("/proc/self/status", "VmHWM"):
        return round(int(own.split()[0]) / 1024, 1)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB; bytes on macOS
    return round(peak / (MIB if sys.platform == "darwin" else 1024), 1)
