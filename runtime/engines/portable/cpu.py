"""Portable graphs with ONNX Runtime on the CPU, and what all have whose pools lie in its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnxruntime as ort

from edgespec.bundle.sublayers import pool_parts
from edgespec.errors import DeviceError, first_line
from edgespec.runtime.arrays import Array, Floats, Ids, resized
from edgespec.runtime.engines.callers import raise_if_callers
from edgespec.runtime.engines.ort_session import (
    CpuSession,
    bind_host_input,
    bind_host_output,
    session_options,
)
from edgespec.runtime.engines.portable.engine import CallSlots, Runner
from edgespec.runtime.engines.portable.file import GraphFile, Shape, pool_kind, returned
from edgespec.runtime.engines.portable.places import Cache, cache_tensors
from edgespec.system import machine


class HostPools:
    """Pools in host memory."""

    def resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        """See `Runner`."""
        return resized(old, shape, dtype)

    def _read(
        self, pools: Mapping[str, Array], slots: CallSlots, file: GraphFile
    ) -> dict[str, Array]:
        """Returns what the graph reads of pools: all of them, or some slots."""
        found = dict[str, Array]()
        for name in file.pools.keys() & pools.keys():
            found |= zip(pool_parts(name), np.split(pools[name], 2), strict=True)
        for name, dims in file.recurrent.items():
            held = pools[name][0, 0, slots.read[pool_kind(name)]]
            found[name] = held.reshape(-1, *dims) if len(dims) == 1 else held.reshape(dims)
        return found

    def _written(
        self, found: Mapping[str, Array], pools: Mapping[str, Array], slots: CallSlots
    ) -> dict[str, Floats]:
        """Writes what is kept of a call to its slots; returns the other outputs."""
        rest = dict(found)
        for name, pool in pools.items():
            new = rest.pop(returned(name), None)
            if new is not None:
                own = slots.write[pool_kind(name)]
                pool[:, :, own] = new.reshape(*pool.shape[:2], len(own), pool.shape[3])
        return rest

    def move(self, caches: Sequence[Cache], order: Ids) -> None:
        """See `Runner`."""
        for cache in caches:
            for each in (cache.keys, cache.values):
                each[:] = each[:, :, order]


class HostSession(HostPools):
    """A session of ONNX Runtime that reads the host's memory.

    Args:
        device: name of the device.
        session: the session.
        file: the graph.
    """

    def __init__(self, device: str, session: Any, file: GraphFile) -> None:
        self._device = device
        self._session = session
        self._file = file
        self._outputs = [each.name for each in session.get_outputs()]

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> dict[str, Floats]:
        """See `Runner`."""
        with failures_of(self._device):
            results = self._session.run(None, {**inputs, **self._read(pools, slots, self._file)})
        return self._written(dict(zip(self._outputs, results, strict=True)), pools, slots)


class AppendingSession(HostSession):
    """A session on the processor whose attention appends rows to caches.

    Args:
        device: see `HostSession`.
        session: likewise.
        file: likewise.
    """

    def __init__(self, device: str, session: CpuSession, file: GraphFile) -> None:
        super().__init__(device, session, file)
        self._outputs = [*file.outputs, *map(returned, file.written)]
        self._turns: dict[str, Array] = {}

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> dict[str, Floats]:
        """See `Runner`."""
        own = {name: each for name, each in pools.items() if not isinstance(each, Cache)}
        read = {**inputs, **self._read(own, slots, self._file)}
        given = {name: np.ascontiguousarray(each) for name, each in read.items()}
        in_place = {**self._tables(int(inputs["total"][0])), **cache_tensors(pools)}

        def bind(binding: Any) -> None:
            for name in self._outputs:
                binding.bind_output(name)
            for name, array in (*given.items(), *in_place.items()):
                bind_host_input(binding, name, array)
            for name, array in in_place.items():
                bind_host_output(binding, f"{name}.after", array)

        with failures_of(self._device):
            values = self._session.run_bound(bind).get_outputs()
        found = {n: each.numpy() for n, each in zip(self._outputs, values, strict=False)}
        return self._written(found, own, slots)

    def _tables(self, places: int) -> Mapping[str, Array]:
        """Returns room for cosines and sines by place, of which each call writes its rows'."""
        if any(len(each) != 2 * places for each in self._turns.values()) or not self._turns:
            self._turns = {
                name: np.zeros((2 * places, width), self._file.types[name])
                for name, width in self._file.turns.items()
            }
        return self._turns


@contextmanager
def failures_of(device: str) -> Iterator[None]:
    """Makes a `DeviceError` of what ONNX Runtime raises inside of the context."""
    try:
        yield
    except Exception as error:  # its exceptions have no narrower base class
        raise_if_callers(error)
        raise failed(device, first_line(error)) from error


def failed(device: str, reason: str) -> DeviceError:
    """Returns the error of a pass."""
    return DeviceError(
        f"device {device}: a pass failed ({reason}): use another device, or lower --context"
    )


class Cpu:
    """The processor; calls may have any number of rows."""

    name = "cpu"
    version: str = ort.__version__
    own_bytes = None
    rows = ()
    shape = None
    half = None
    fused = frozenset({"float32", "float16", "sinks", "soft_cap", "recurrence"})
    fused_rows = None
    queues = False

    def __init__(self) -> None:
        self.hardware = machine.processor_name()

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> Runner:
        """See `GraphEngine`."""
        session = CpuSession(file.path, fixed_options(file, threads, shape))
        if file.in_order:
            return AppendingSession(self.name, session, file)
        return HostSession(self.name, session, file)


def fixed_options(file: GraphFile, threads: int, shape: Shape | None) -> Any:
    """Returns a session's options, with the sizes of symbolic dimensions if shapes are fixed."""
    options = session_options(threads)
    if shape is not None:
        for name, size in file.sizes(shape).items():
            options.add_free_dimension_override_by_name(name, size)
    return options
