"""The process's one OpenVINO core."""

from __future__ import annotations

from functools import cache

import openvino as ov


@cache
def core() -> ov.Core:
    """Returns the core that all of OpenVINO's devices share; it lives as long as the process.

    Each core's CPU plug-in sets an alternative stack for signals. Cores that are freed in another
    order than they were made leave the thread with a stack that is gone, and its next signal, such
    as Ctrl-C, ends the process.
    """
    return ov.Core()
