"""The machine as this process sees it: its processors, and its memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from edgespec.system import control_groups

_CPUINFO = "/proc/cpuinfo"
_EXTENSIONS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm", "sve")

# Linux lists for each logical processor the logical processors of the same core.
_TOPOLOGY = Path("/sys/devices/system/cpu")
_SIBLINGS = "topology/thread_siblings_list"

_LARGE = 1 << 21  # bytes of a large page
_LEAST = 1 << 25  # bytes of a file that is worth it
_ENOUGH = 0.5  # a share of large pages with which a file is left as it is
_SMAPS = Path("/proc/self/smaps")  # where Linux lists the mappings of this process


@cache
def processor_name() -> str:
    """Returns the processor's model name, as far as the system knows it."""
    return proc_field(_CPUINFO, "model name") or platform.processor() or platform.machine()


@cache
def extensions() -> tuple[str, ...]:
    """Returns the instruction sets that matter for quantized products; empty outside Linux.

    The model name alone does not tell: virtual machines call different processors by one name,
    such as "Intel(R) Xeon(R) Processor".
    """
    flags = (proc_field(_CPUINFO, "flags") or proc_field(_CPUINFO, "Features")).split()
    return tuple(name for name in _EXTENSIONS if name in flags)


def default_threads(topology: Path = _TOPOLOGY) -> int:
    """Returns the number of physical cores that this process may use.

    A second thread per core slows matmuls down. A container's quota of processor time is rounded
    down to whole processors: more threads would use up a period's time early and then all wait.

    Args:
        topology: folder in which Linux describes the processors.
    """
    quota = control_groups.processor_quota()
    cores = _cores(topology)
    return cores if quota is None else max(1, min(cores, int(quota)))


def usable_processors() -> list[int]:
    """Returns the numbers of the logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def busy_seconds() -> tuple[float, float]:
    """Returns for how long these processors were busy by all programs, and by this one.

    Both count from times of their own. Where the system tells nothing of others, the first is 0.
    """
    every = list[Any]()
    with suppress(OSError, psutil.Error):  # /proc may be hidden
        every = psutil.cpu_times(percpu=True)
    usable = usable_processors()
    if usable[-1] < len(every):  # else some are switched off, and others take their places
        every = [every[number] for number in usable]
    busy = (each.user + each.system + getattr(each, "nice", 0.0) for each in every)
    return sum(busy), time.process_time()


def available_bytes() -> int:
    """Returns the free bytes of memory, also limited by the process's control groups."""
    free = int(psutil.virtual_memory().available)
    allowed = control_groups.free_bytes()
    return max(free if allowed is None else min(free, allowed), 0)


def release_memory() -> None:
    """Gives freed memory back to the system, where glibc keeps it for later."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # other C libraries have no such function
            ctypes.CDLL(None).malloc_trim(0)


def prefer_large_pages(file: Path, least: int = _LEAST) -> None:
    """Reads a file into large pages of the system's cache, if it is there in small ones or not yet.

    Whoever maps it reads it faster then, since a processor finds its pages with less work. Linux
    does so for file systems that know such pages (ext4 since 6.16, XFS) where it is asked to
    before a file is read; elsewhere nothing happens. Small pages that others have mapped stay.

    Args:
        file: the file; none, if it cannot be read.
        least: bytes of a file that is worth it.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    with suppress(OSError), file.open("rb") as opened:
        handle = opened.fileno()
        size = os.fstat(handle).st_size
        if not least <= size < available_bytes() or _large_share(handle, size) >= _ENOUGH:
            return
        for part in (2 * _LARGE, size):  # is it worth it to read the whole file again?
            os.posix_fadvise(handle, 0, part, os.POSIX_FADV_DONTNEED)
            if not _large_share(handle, part):
                return


def proc_field(file: str, name: str) -> str:
    """Returns the first value of a field of a file of Linux's /proc; empty if one is missing."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return ""


def _cores(topology: Path) -> int:
    """Returns the number of cores with at least one logical processor allowed to this process."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return cores
    allowed = usable_processors()
    with suppress(OSError):  # /sys may be hidden
        return len({(topology / f"cpu{n}" / _SIBLINGS).read_text() for n in allowed})
    return min(cores, len(allowed))


def _large_share(handle: int, size: int) -> float:
    """Reads the beginning of a file, if it is not in memory; returns the share of large pages."""
    with mmap.mmap(handle, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_HUGEPAGE)
        content = np.frombuffer(mapped, np.uint8)
        content[::_LARGE].max()
        address = content.ctypes.data
        del content  # a mapping that is in use cannot be closed
        return _large_bytes(address) / size


def _large_bytes(address: int) -> int:
    """Returns how many bytes of the mapping that begins at an address are in large pages."""
    found = False
    with _SMAPS.open(encoding="utf-8") as lines:
        for line in lines:
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):
                found = name.startswith(f"{address:x}-")
            elif found and name == "FilePmdMapped:":
                return 1024 * int(rest.split()[0])
    return 0
