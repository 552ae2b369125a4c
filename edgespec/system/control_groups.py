"""What Linux's control groups leave to this process, as in containers, services and batch jobs.

Versions 1 and 2, and both at once. What limits a group limits all below it, so the least of the
process's own group and those above it counts, as far as the process sees them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_PROCESS = Path("/proc/self")

# Files of version 2 and of version 1: what may be used, and what is used.
_MEMORY = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def free_bytes(process: Path = _PROCESS) -> int | None:
    """Memory that the groups may still use; None where nothing limits them.

    Args:
        process: its folder in /proc.
    """
    found = []
    for group in _groups("memory", process):
        for limit, used in _MEMORY:
            with suppress(OSError, ValueError):  # of the other version, or no limit ("max")
                found.append(_free(group, limit, used))
    return min(found, default=None)


def processor_quota(process: Path = _PROCESS) -> float | None:
    """How many processors' time the groups may use; None where nothing limits them.

    Args:
        process: its folder in /proc.
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
    """The folders of the process's groups that may have this controller, and of those above."""
    try:
        memberships, mounts = (
            (process / name).read_text("utf-8", "surrogateescape").splitlines()
            for name in ("cgroup", "mountinfo")
        )
    except OSError:  # another system, or one that hides them
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in mounts:
            place, _, kind = mount.partition(" - ")
            # Version 2 has one hierarchy for all controllers, and names none. Version 1 has some of
            # other controllers, without the files of this one.
            if kind.startswith("cgroup " if controllers else "cgroup2 "):
                _, _, _, root, folder, *_ = place.split(" ")
                yield from _upwards(Path(folder), PurePosixPath(root), PurePosixPath(path))


def _upwards(folder: Path, root: PurePosixPath, path: PurePosixPath) -> Iterator[Path]:
    """A group and those above it, where `folder` shows what the hierarchy has from `root` on."""
    seen = path.is_relative_to(root) and ".." not in path.parts
    group = folder / path.relative_to(root) if seen else folder
    yield group
    while group != folder:
        group = group.parent
        yield group


def _free(group: Path, limit: str, used: str) -> int:
    """What may still be used; cached files that the group can drop count as free.

    Raises:
        OSError: if there is no such group.
        ValueError: if it has no limit.
    """
    statistics = (group / "memory.stat").read_text().split()
    values = dict(zip(statistics[::2], statistics[1::2], strict=True))
    cached = int(values.get("total_inactive_file", values.get("inactive_file", 0)))
    return int((group / limit).read_text()) - int((group / used).read_text()) + cached


def _quota(quota: str, period: str) -> float:
    """Processors from microseconds of their time in a period.

    Raises:
        ValueError: if there is no limit.
    """
    if int(quota) < 0:  # as version 1 has it; version 2 has "max"
        raise ValueError(quota)
    return int(quota) / int(period)
