"""The processors that this process may use."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from edgespec.system import control_groups
from edgespec.system.procfs import proc_field

_CPUINFO = "/proc/cpuinfo"
_EXTENSIONS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm", "sve")

# Linux lists beside each logical processor those of the same core.
_TOPOLOGY, _SIBLINGS = Path("/sys/devices/system/cpu"), "topology/thread_siblings_list"


@cache
def model_name() -> str:
    """The processors', as far as the system tells it."""
    return proc_field(_CPUINFO, "model name") or platform.processor() or platform.machine()


@cache
def extensions() -> tuple[str, ...]:
    """Their instructions that decide how fast quantized products are; on Linux, else none.

    Virtual machines on unlike processors give these one name, such as "Intel(R) Xeon(R) Processor".
    """
    flags = (proc_field(_CPUINFO, "flags") or proc_field(_CPUINFO, "Features")).split()
    return tuple(name for name in _EXTENSIONS if name in flags)


def default_threads() -> int:
    """Physical cores that this process may use: a second thread per core slows matmuls down.

    Of a quota of processor time, as containers have, whole processors: more threads use a period's
    time up before it ends, and then all wait for the next.
    """
    quota = control_groups.processor_quota()
    return _cores() if quota is None else max(1, min(_cores(), int(quota)))


def _cores() -> int:
    """Those whose processors this process may run on, be it all of a core's or one."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return cores
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):  # where /sys is not to be seen
        return len({(_TOPOLOGY / f"cpu{n}" / _SIBLINGS).read_text() for n in allowed})
    return min(cores, len(allowed))
