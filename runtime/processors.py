"""The processors that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

from edgespec.runtime import control_groups

# Linux lists beside each logical processor those of the same core.
_TOPOLOGY, _SIBLINGS = Path("/sys/devices/system/cpu"), "topology/thread_siblings_list"


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
