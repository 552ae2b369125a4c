"""What devices' names stand for: `cpu` and `gpu` leave the engine open.

The device `gpu` is the best GPU engine that is usable here, or `cpu` where none is.
"""

from __future__ import annotations

import logging
from functools import cache

from edgespec.errors import DeviceError
from edgespec.runtime.deployment.placement import GPU
from edgespec.runtime.engines import CPU_ENGINES, Engine, best_gpu, engine

_log = logging.getLogger(__name__)

CPU = "cpu"
"""The device that leaves the engine open; so does `placement.GPU`."""


def engines_of(device: str) -> list[Engine]:
    """The engines behind a device.

    Raises:
        DeviceError: if it is not known, or no engine for it is usable.
    """
    name = resolved(device)
    return cpu_engines() if name == CPU else [engine(name)]


def resolved(device: str) -> str:
    """The device itself; for `gpu` the engine it stands for, or `cpu` where there is none.

    A GPU that the user named is an error where it is missing; `gpu` is a wish: that it could not
    be fulfilled is logged once.
    """
    if device != GPU:
        return device
    found = best_gpu()
    if found is None:
        _warn_of_no_gpu()
    return found or CPU


def gpu_engine() -> Engine | None:
    """The engine that `gpu` stands for; None where there is none."""
    found = best_gpu()
    return None if found is None else engine(found)


@cache
def _warn_of_no_gpu() -> None:
    _log.warning("no GPU can be used here, so gpu is the cpu: `edgespec devices` says why")


@cache
def _pass_over(level: int, reason: str) -> None:
    """Log it once a process, however often the engines are asked for."""
    _log.log(level, "%s", reason)


def cpu_engines() -> list[Engine]:
    """The engines behind the device `cpu` whose libraries are here.

    Raises:
        DeviceError: if there is none.
    """
    engines, missing = [], []
    for name in CPU_ENGINES:
        try:
            engines.append(engine(name))
        except DeviceError as error:
            # Not installed: as on Windows on ARM, for which there is none.
            absent = isinstance(error.__cause__, ModuleNotFoundError)
            _pass_over(logging.INFO if absent else logging.WARNING, str(error))
            missing.append(str(error))
    if not engines:
        raise DeviceError("no engine for the cpu is installed: " + "; ".join(missing))
    return engines
