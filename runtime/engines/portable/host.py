"""Runners whose pools are arrays in host memory: ONNX Runtime's sessions on CPUs and NPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array, Floats, grown
from edgespec.runtime.engines.ort_session import first_line


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
            pool[:, :, slots] = rest.pop(name.replace("pool.", "new."))
        return rest


class HostSession(HostPools):
    """A session of ONNX Runtime that reads the host's memory.

    Args:
        device: name of the device.
        session: the session.
    """

    def __init__(self, device: str, session: Any) -> None:
        self._device, self._session = device, session
        self._outputs = [each.name for each in session.get_outputs()]

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: Array
    ) -> dict[str, Floats]:
        """See `Runner`."""
        try:
            results = self._session.run(None, {**inputs, **pools})
        except Exception as error:  # its exceptions have no narrower base class
            raise failed(self._device, first_line(error)) from error
        return self._written(dict(zip(self._outputs, results, strict=True)), pools, slots)


def failed(device: str, reason: str) -> DeviceError:
    """Returns the error of a pass."""
    return DeviceError(
        f"device {device}: a pass failed ({reason}): use another device, or lower --context"
    )
