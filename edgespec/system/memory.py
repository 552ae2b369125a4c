"""Free memory of this machine."""

import psutil

from edgespec.system import control_groups


def available_bytes() -> int:
    """Returns the free bytes of memory, also limited by the process's control groups."""
    free = int(psutil.virtual_memory().available)
    allowed = control_groups.free_bytes()
    return max(free if allowed is None else min(free, allowed), 0)
