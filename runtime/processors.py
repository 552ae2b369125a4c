"""The processors that this process may use."""

from __future__ import annotations

import os

import psutil

from edgespec.runtime import control_groups


def default_threads() -> int:
    """Physical cores that this process may use: a second thread per core slows matmuls down.

    Of a quota of processor time, as containers have, whole processors: more threads use a period's
    time up before it ends, and then all wait for the next.
    """
    threads = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        threads = min(threads, len(os.sched_getaffinity(0)))
    quota = control_groups.processor_quota()
    return threads if quota is None else max(1, min(threads, int(quota)))
