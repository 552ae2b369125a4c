"""Memory and CPU limits that Linux control groups set, as in containers, services and batch jobs.

Control groups of version 1, version 2 and both at once are supported. A group's limit also holds
for all groups below it, so the lowest limit of the process's group and its visible parents counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_PROCESS = Path("/proc/self")

# Files with the limit and the current use, for version 2 and for version 1.
_MEMORY = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def free_bytes(process: Path = _PROCESS) -> int | None:
    """Returns the bytes of memory that the process may still use; None if nothing limits it.

    Args:
        process: folder of the process in /proc.
    """
    found = []
    for group in _groups("memory", process):
        for limit, used in _MEMORY:
            with suppress(OSError, ValueError):  # the other version's file, or no limit ("max")
                found.append(_free(group, limit, used))
    return min(found, default=None)


def processor_quota(process: Path = _PROCESS) -> float | None:
    """Returns how many processors' worth of time the process may use; None if nothing limits it.

    Args:
        process: folder of the process in /proc.
    """
    found = []
    for group in _groups("cpu", process):
        with suppress(OSError, ValueError):
            found.append(_quota(*(group / "cpu.max").read_text().split()))
        with suppress(OSError, ValueError):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            found.append(_quota(*((group / name).read_text() for name in names)))
    return min(found, default=None)


def _groups(controller: str, process: Path) -> Iterator[Path]:
    """Yields the folders of the process's groups for this controller, and of their parents."""
    try:
        memberships, mounts = (
            (process / name).read_text("utf-8", "surrogateescape").splitlines()
            for name in ("cgroup", "mountinfo")
        )
    except OSError:  # not Linux, or /proc is hidden
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in mounts:
            place, _, kind = mount.partition(" - ")
            # Version 2 has one hierarchy for all controllers and names none of them. In version 1
            # some hierarchies belong to other controllers and lack this one's files.
            if kind.startswith("cgroup " if controllers else "cgroup2 "):
                _, _, _, root, folder, *_ = place.split(" ")
                yield from _upwards(Path(folder), PurePosixPath(root), PurePosixPath(path))


def _upwards(folder: Path, root: PurePosixPath, path: PurePosixPath) -> Iterator[Path]:
    """Yields the folder of a group and of its parents.

    Args:
        folder: mount point, which shows the hierarchy from `root` downwards.
        root: group that the mount point stands for.
        path: group of the process.
    """
    seen = path.is_relative_to(root) and ".." not in path.parts
    group = folder / path.relative_to(root) if seen else folder
    yield group
    while group != folder:
        group = group.parent
        yield group


def _free(group: Path, limit: str, used: str) -> int:
    """Returns the free bytes of a group; cached files that it can drop count as free."""
    statistics = (group / "memory.stat").read_text().split()
    values = dict(zip(statistics[::2], statistics[1::2], strict=True))
    cached = int(values.get("total_inactive_file", values.get("inactive_file", 0)))
    return int((group / limit).read_text()) - int((group / used).read_text()) + cached


def _quota(quota: str, period: str) -> float:
    """Returns a number of processors; ValueError if there is no limit."""
    if int(quota) < 0:  # version 1's way to say no limit; version 2 says "max"
        raise ValueError(quota)
    return int(quota) / int(period)
