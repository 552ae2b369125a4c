"""Finds the engines for a device name; `cpu` and `gpu` leave the engine open.

The device `gpu` is the best GPU engine that is usable here, or `cpu` if there is none.
"""

from __future__ import annotations

import logging
from functools import cache

from edgespec.errors import DeviceError
from edgespec.runtime.deployment.placement import GPU
from edgespec.runtime.engines import CPU_ENGINES, Engine, best_gpu, engine

_log = logging.getLogger(__name__)

CPU = "cpu"
"""The device name that stands for any CPU engine."""


def engines_of(device: str) -> list[Engine]:
    """Returns the engines that a device name stands for.

    Raises:
        DeviceError: if it is not known, or no engine for it is usable.
    """
    name = resolved(device)
    return cpu_engines() if name == CPU else [engine(name)]


def resolved(device: str) -> str:
    """Returns the device name, with `gpu` replaced by the best GPU engine or else by `cpu`.

    A missing GPU that the user named by its engine is an error later; for `gpu` the fallback to the
    CPU is logged, once.
    """
    if device != GPU:
        return device
    found = best_gpu()
    if found is None:
        _warn_of_no_gpu()
    return found or CPU


def gpu_engine() -> Engine | None:
    """Returns the engine that `gpu` stands for; None if no GPU is usable."""
    found = best_gpu()
    return None if found is None else engine(found)


@cache
def _warn_of_no_gpu() -> None:
    _log.warning("no GPU can be used, so the CPU is used instead: `edgespec devices` says why")


@cache
def _pass_over(level: int, reason: str) -> None:
    """Logs why an engine is not used, once per process."""
    _log.log(level, "%s", reason)


def cpu_engines() -> list[Engine]:
    """Returns the CPU engines whose libraries are installed.

    Raises:
        DeviceError: if no CPU engine is installed.
    """
    engines, missing = [], []
    for name in CPU_ENGINES:
        try:
            engines.append(engine(name))
        except DeviceError as error:
            # Not installed is no reason to warn: OpenVINO has no package for Windows on ARM.
            absent = isinstance(error.__cause__, ModuleNotFoundError)
            _pass_over(logging.INFO if absent else logging.WARNING, str(error))
            missing.append(str(error))
    if not engines:
        raise DeviceError("no engine for the CPU is installed: " + "; ".join(missing))
    return engines
