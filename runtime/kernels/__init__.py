"""Operators of ONNX Runtime for CPUs, in C++: where the compiled library is, and what it uses."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

from edgespec.errors import DeviceError

# What a processor lacks whose best kernels these are, and what that means where it was measured:
# benchmarks/RESULTS.md, and SmolLM2-135M.
_LACKING = {
    "avxvnni": "it has no AVX512, whose instructions do twice as much: a pass over 8 rows, in "
    "which drafts are verified, takes 1.6 times as long as with AVX512-VNNI, and one over a row "
    "1.2 times",
    "avx2": "it has neither AVX512-VNNI nor AVX-VNNI: a pass over 8 rows, in which drafts are "
    "verified, takes 1.5 to 1.8 times as long as with AVX512-VNNI, and one over a row as long, so "
    "drafts gain less",
    "dotprod": "it has no i8mm, which would make passes over several rows faster; by how much is "
    "not measured",
    "neon": "it has neither dotprod nor i8mm, which would make all passes faster; by how much is "
    "not measured",
    "plain": "it has no instructions that there are kernels for, such as AVX2, with which a pass "
    "over one row takes a 20th of the time, and over 8 rows a 45th",
}

_NAMES = {"win32": "edgespec.dll", "darwin": "libedgespec.dylib"}


def library() -> Path | None:
    """Returns the operators' library; None: it was not compiled when edgespec was installed."""
    path = Path(__file__).parent / _NAMES.get(sys.platform, "libedgespec.so")
    return path if path.is_file() else None


def kernel_name() -> str | None:
    """Returns the instruction set that the operators use, such as `avx2`; None: no library.

    Raises:
        DeviceError: the variable EDGESPEC_KERNELS names one that this processor or the library
            does not have, or the library cannot be loaded.
    """
    path = library()
    if path is None:
        return None
    name = _text(path, "edgespec_kernels")
    if name is None:
        raise DeviceError(
            f"EDGESPEC_KERNELS is {os.environ.get('EDGESPEC_KERNELS', '')!r}: "
            f"choose one of {', '.join(usable_kernels())}"
        )
    return name


def usable_kernels() -> tuple[str, ...]:
    """Returns the instruction sets that EDGESPEC_KERNELS may name on this machine, best first."""
    path = library()
    names = _text(path, "edgespec_usable_kernels") if path else None
    return tuple(names.split(", ")) if names else ()


def multiply_add(blocks: int) -> int:
    """Multiplies as the kernels do, as fast as this thread can; returns how many products.

    Args:
        blocks: number of blocks, each of 32 levels for 16 columns and some rows; 2**20 at most.

    Raises:
        DeviceError: there is no library of operators, or it cannot be loaded.
    """
    path = library()
    if path is None:
        raise DeviceError("there is no library of operators: install edgespec with a C++ compiler")
    call = _loaded(path).edgespec_multiply_add
    call.restype = ctypes.c_int64
    call.argtypes = [ctypes.c_int64]
    return int(call(blocks))


def use_threads(most: int) -> None:
    """Lets at most so many threads, 1 or more, compute at once in a session of this process.

    A session has no more than it was opened with. There must be a library of operators.
    """
    path = library()
    assert path is not None
    call = _loaded(path).edgespec_use_threads
    call.restype = None
    call.argtypes = [ctypes.c_int64]
    call(most)


def missing_kernels() -> str | None:
    """Returns one line on what is missing, what it costs and what to do; None: nothing is."""
    if library() is not None:
        return None
    return (
        "no compiled kernels: the CPU runs portable operators, which are slower; install a C++ "
        "compiler, then `pip install --force-reinstall --no-deps --no-cache-dir .` in a checkout"
    )


def lacking() -> str | None:
    """Returns what the kernels in use lack, and what that means; None: nothing, or no kernels."""
    name = kernel_name()
    usable = usable_kernels()
    if usable and name != usable[0]:
        return f"EDGESPEC_KERNELS has chosen them, though the processor has {usable[0]}"
    return _LACKING.get(name or "")


@cache
def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceError(f"{path} cannot be loaded ({error}): install edgespec again") from error


def _text(path: Path, function: str) -> str | None:
    call = getattr(_loaded(path), function)
    call.restype = ctypes.c_char_p
    found = call()
    return found.decode() if isinstance(found, bytes) else None
