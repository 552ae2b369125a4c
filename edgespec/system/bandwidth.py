"""How fast this machine reads its memory, which limits the tokens a second of a model alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_PART = 1 << 27  # bytes that a thread reads in a call, more than caches hold


def bandwidth(threads: int, seconds: float) -> float:
    """Returns the bytes a second that so many threads read from memory, at best.

    Args:
        threads: number of threads, each of which reads a part of its own.
        seconds: how long is read.
    """
    parts = [np.ones(_PART // 4, np.float32) for _ in range(threads)]
    best = float("inf")
    end = time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        while best == float("inf") or time.perf_counter() < end:
            begin = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - begin)
    return threads * _PART / best
