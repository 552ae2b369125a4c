"""Matrix products of an export, whose numbers do not depend on the number of threads.

BLAS would divide a product among threads of its own. With some of its kernels their number changes
the last digits, and its threads spin while they wait: beside ours, that took most of an export's
processor time. So it gets one thread, and products are divided here, always into the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from edgespec.export.arrays import Floats
from edgespec.system.machine import default_threads

_PART = 256  # rows or columns of a part
_threads = cache(default_threads)
_Part = TypeVar("_Part")
_Found = TypeVar("_Found")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Lets BLAS compute in the thread that calls it, within the `with` and in the whole process.

    It has no effect on Apple's Accelerate, whose threads cannot be limited at run time.
    """
    with threadpool_limits(1, user_api="blas"):
        yield


def product(x: Floats, weight: Floats) -> Floats:
    """Returns x @ weight.T, [rows, N], of x [rows, K] and weight [N, K]."""
    found: Floats = np.empty((len(x), len(weight)), np.float32)

    def work(rows: slice) -> None:
        np.matmul(x[rows], weight.T, out=found[rows])

    in_threads(work, _parts(len(x)))
    return found


def upper_moments(x: Floats) -> Floats:
    """Returns x.T @ x, [K, K], of x [rows, K]; below the diagonal, it is not complete."""
    found: Floats = np.zeros((x.shape[1], x.shape[1]), np.float32)

    def work(pair: tuple[slice, slice]) -> None:
        first, second = pair
        np.matmul(x[:, first].T, x[:, second], out=found[first, second])

    parts = _parts(x.shape[1])
    in_threads(work, [(part, other) for i, part in enumerate(parts) for other in parts[i:]])
    return found


def _parts(size: int) -> list[slice]:
    return [slice(start, min(start + _PART, size)) for start in range(0, size, _PART)]


def in_threads(work: Callable[[_Part], _Found], parts: Sequence[_Part]) -> list[_Found]:
    """Calls a function with each part, on all cores; returns its results in the same order."""
    threads = min(_threads(), len(parts))
    if threads <= 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        # With the caller's context, to which numpy's `errstate` belongs.
        futures = [pool.submit(copy_context().run, work, part) for part in parts]
        return [each.result() for each in futures]
