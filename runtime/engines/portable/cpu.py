"""Portable graphs with ONNX Runtime on the CPU, and what all have whose pools lie in its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array, Floats, grown
from edgespec.runtime.engines.callers import raise_if_callers
from edgespec.runtime.engines.ort_session import CpuSession, first_line, session_options
from edgespec.runtime.engines.portable.graph import GraphFile, Shape
from edgespec.system import machine


class HostPools:
    """Pools in host memory."""

    def resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        """See `Runner`."""
        return grown(old, shape, dtype)

    def _written(
        self, found: Mapping[str, Array], pools: Mapping[str, Array], slots: Array
    ) -> dict[str, Floats]:
        """Writes new keys and values to their slots; returns the other outputs."""
        rest = dict(found)
        for name, pool in pools.items():
            new = rest.pop(name.replace("pool.", "new."), None)
            if new is not None:
                pool[:, :, slots] = new
        return rest


class HostSession(HostPools):
    """A session of ONNX Runtime that reads the host's memory.

    Args:
        device: name of the device.
        session: the session.
    """

    def __init__(self, device: str, session: Any) -> None:
        self._device = device
        self._session = session
        self._outputs = [each.name for each in session.get_outputs()]

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: Array
    ) -> dict[str, Floats]:
        """See `Runner`."""
        try:
            results = self._session.run(None, {**inputs, **pools})
        except Exception as error:  # its exceptions have no narrower base class
            raise_if_callers(error)
            raise failed(self._device, first_line(error)) from error
        return self._written(dict(zip(self._outputs, results, strict=True)), pools, slots)


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

    def __init__(self) -> None:
        self.hardware = machine.processor_name()

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> HostSession:
        """See `Engine`."""
        session = CpuSession(file.path, fixed_options(file, threads, shape))
        return HostSession(self.name, session)


def fixed_options(file: GraphFile, threads: int, shape: Shape | None) -> Any:
    """Returns a session's options, with the sizes of symbolic dimensions if shapes are fixed."""
    options = session_options(threads)
    if shape is not None:
        for name, size in file.sizes(shape).items():
            options.add_free_dimension_override_by_name(name, size)
    return options
