"""How fast this machine reads its memory, which limits the tokens a second of a model alone."""

from __future__ import annotations

import time
from collections.abc import Callable
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

    def read(number: int) -> int:
        np.max(parts[number])
        return parts[number].nbytes

    return best_rate(read, threads, seconds)


def best_rate(work: Callable[[int], int], threads: int, seconds: float) -> float:
    """Returns how much work so many threads do in a second together, at best.

    Args:
        work: does a part as the thread of this number, and returns how much that was.
        threads: number of threads.
        seconds: how long they work, again and again.
    """
    best = 0.0
    end = time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        while not best or time.perf_counter() < end:
            begin = time.perf_counter()
            done = sum(pool.map(work, range(threads)))
            best = max(best, done / (time.perf_counter() - begin))
    return best
