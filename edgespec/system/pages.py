"""Large pages of memory for files that are mapped, where the system has them."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from edgespec.system.machine import available_bytes

_LARGE = 1 << 21  # bytes of a large page
_LEAST = 1 << 25  # bytes of a file that is worth it
_ENOUGH = 0.5  # a share of large pages with which a file is left as it is
_SMAPS = Path("/proc/self/smaps")  # where Linux lists the mappings of this process


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
