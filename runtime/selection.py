"""Which engine runs a role: the one asked for or, for `cpu`, the faster one by measurement."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgespec.bundle import Bundle
from edgespec.cachedir import cache_folder
from edgespec.errors import DeviceError
from edgespec.runtime.engines import CPU_ENGINES, Engine, engine
from edgespec.runtime.model import Model, Rows, Runner

_CONTEXT = 64  # committed rows during the measurement
_REPEATS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placement:
    """Where a role runs and what it will do there.

    Attributes:
        device: `cpu`, or an engine's full name.
        threads: for the engine's operators.
        work: rows of the calls that a decoding round makes of this role.
    """

    device: str
    threads: int
    work: tuple[int, ...]


def load_model(bundle: Bundle, role: str, placement: Placement) -> Model:
    """Compile a role where `placement` says; the choice for `cpu` is measured once and remembered.

    Raises:
        DeviceError: if the device is not known, or no engine takes the model.
    """
    if placement.device != "cpu":
        return Model.load(bundle, role, engine(placement.device), placement.threads)
    candidates = _installed()
    memory = _memory_file(bundle, role, placement, candidates)
    remembered = _recall(memory)
    for candidate in candidates:
        if candidate.name == remembered:
            try:
                return Model.load(bundle, role, candidate, placement.threads)
            except DeviceError as error:
                _log.warning("%s", error)
    model = _fastest(bundle, role, placement, candidates)
    if memory is not None:
        with suppress(OSError):  # then the next load measures again
            memory.write_text(json.dumps({"engine": model.device}), encoding="utf-8")
    return model


def time_calls(model: Model, work: Sequence[int]) -> float:
    """Median seconds of calls with these numbers of rows, one after the other."""
    runner = Runner(model)
    runner.prefill([0] * _CONTEXT)
    batches = [Rows([0] * n, range(n), np.tri(n, dtype=np.bool_)) for n in work]
    seconds = []
    for repeat in range(_REPEATS + 1):
        begin = time.perf_counter()
        for rows in batches:
            runner.verify(rows)
        if repeat:  # the first one plans for new shapes
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _installed() -> list[Engine]:
    """The CPU engines whose libraries are here."""
    engines = []
    for name in CPU_ENGINES:
        try:
            engines.append(engine(name))
        except DeviceError as error:
            _log.warning("%s", error)
    return engines


def _fastest(
    bundle: Bundle, role: str, placement: Placement, candidates: Sequence[Engine]
) -> Model:
    best: tuple[float, Model] | None = None
    refusals = []
    for candidate in candidates:
        try:
            model = Model.load(bundle, role, candidate, placement.threads)
        except DeviceError as error:
            _log.warning("%s", error)
            refusals.append(str(error))
            continue
        seconds = time_calls(model, placement.work)
        _log.info("%s on %s: %.2f ms", role, candidate.name, seconds * 1e3)
        if best is None or seconds < best[0]:
            best = (seconds, model)
    if best is None:
        raise DeviceError("no engine on this machine takes the model: " + "; ".join(refusals))
    return best[1]


def _memory_file(
    bundle: Bundle, role: str, placement: Placement, candidates: Sequence[Engine]
) -> Path | None:
    folder = cache_folder("engines")
    if folder is None:
        return None
    facts = [
        bundle.digest,
        role,
        placement.threads,
        placement.work,
        [(candidate.name, candidate.version) for candidate in candidates],
        platform.machine(),
        platform.processor(),
        platform.node(),
    ]
    return folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"


def _recall(memory: Path | None) -> str | None:
    try:
        found = json.loads(memory.read_text(encoding="utf-8"))["engine"] if memory else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
