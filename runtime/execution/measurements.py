"""Files of measurements of a model on its engines, in the user's cache folder."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from edgespec.bundle import Bundle
from edgespec.runtime.engines import Engines
from edgespec.system.cachedir import cache_file
from edgespec.system.processors import extensions

# To be raised where engines are told to compute other bits than before, or at another cost.
_ARITHMETIC = 1


def measurement_file(bundle: Bundle, subject: str, engines: Engines, threads: int) -> Path | None:
    """Returns the file of one measurement, named by all that it depends on.

    Args:
        bundle: the measured bundle; its digest stands for weights and precision.
        subject: the role, or what else of the bundle was measured.
        engines: engines of all stages that took part.
        threads: number of threads of each engine.

    Returns:
        The path; None if there is no cache folder.
    """
    return cache_file("curves", circumstances(bundle, subject, engines, threads))


def circumstances(bundle: Bundle, subject: str, engines: Engines, threads: int) -> object:
    """Returns all that calls depend on, their bits included; its `repr` is what tells them apart.

    Args:
        bundle: see `measurement_file`.
        subject: what is to be told apart within them.
        engines: see `measurement_file`.
        threads: see `measurement_file`.
    """
    # Not the host name, because containers have a new one each time.
    machine = (os.cpu_count(), platform.machine(), extensions())
    stages = [(engine.name, engine.hardware, engine.version) for engine in engines]
    return (*machine, stages, _ARITHMETIC, bundle.digest, subject, threads)
