"""Where what was measured of a model on its engines is kept, in the user's cache folder."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from edgespec.bundle import Bundle
from edgespec.runtime.engines import Engines
from edgespec.system.cachedir import cache_file
from edgespec.system.processors import extensions


def measurement_file(bundle: Bundle, subject: str, engines: Engines, threads: int) -> Path | None:
    """The file of one measurement, for all that it depends on; None: there is no cache folder.

    Args:
        bundle: what was measured; its digest stands for weights and precision.
        subject: the role, or what else of the bundle was measured.
        engines: of all stages that took part.
        threads: for each engine's operators.
    """
    # Not the machine's name, of which containers have many.
    machine = (os.cpu_count(), platform.machine(), extensions())
    stages = [(engine.name, engine.hardware, engine.version) for engine in engines]
    return cache_file("curves", (*machine, stages, bundle.digest, subject, threads))
