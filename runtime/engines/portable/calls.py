"""Calls of a session whose inputs and outputs stay bound, on the device or on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.engines.ort_session import bind_host_input, bind_host_output
from edgespec.runtime.engines.portable.transfers import Recording

if TYPE_CHECKING:
    from edgespec.runtime.engines.portable.device import Gpu


class BoundCall:
    """Inputs and outputs of calls of one size, which lie at the same places in each call.

    Args:
        gpu: the device.
        session: its session.
    """

    def __init__(self, gpu: Gpu, session: Any) -> None:
        self._gpu = gpu
        self._session = session
        self._handle = session.io_binding()
        self._recording = Recording(gpu)
        self._arrays: dict[str, Array] = {}  # of inputs that are read on the host
        self._values: dict[str, Any] = {}
        self._held: dict[str, Array] = {}  # what those on the device hold
        self._found_arrays: dict[str, Array] = {}
        self._found_values: dict[str, Any] = {}

    def read(self, name: str, array: Array, on_host: bool) -> None:
        """Binds an input to room for such arrays, which each call gives anew."""
        if on_host:
            self._arrays[name] = array.copy()
            bind_host_input(self._handle, name, self._arrays[name])
        else:
            self._values[name] = self._gpu.empty(array.shape, array.dtype)
            self.read_tensor(name, self._values[name])

    def read_tensor(self, name: str, value: Any, shape: Sequence[int] | None = None) -> None:
        """Binds an input to a tensor on the device, float32 if it is read in another shape."""
        if shape is None:
            self._handle.bind_ortvalue_input(name, value)
        else:
            device = (self._gpu.kind, self._gpu.number, np.float32)
            self._handle.bind_input(name, *device, shape, value.data_ptr())

    def change(self, name: str, value: Any) -> None:
        """Binds an input to a tensor on the device, and what follows from it to the same one."""
        self.read_tensor(name, value)
        self.give_tensor(f"{name}.after", value)

    def give(self, name: str, shape: Sequence[int], on_host: bool) -> None:
        """Binds a float32 output to room for it, see `found`."""
        if on_host:
            self._found_arrays[name] = np.empty(shape, np.float32)
            bind_host_output(self._handle, name, self._found_arrays[name])
        else:  # a recorded call copies nothing to the host
            self._found_values[name] = self._gpu.empty(shape, np.dtype(np.float32))
            self.give_tensor(name, self._found_values[name])

    def give_tensor(self, name: str, value: Any) -> None:
        """Binds an output to a tensor on the device."""
        self._handle.bind_ortvalue_output(name, value)

    def run(self, inputs: Mapping[str, Array], wait: bool = True) -> None:
        """Makes a call.

        Args:
            inputs: what is new in it.
            wait: whether it has ended when this returns, not only begun.

        Raises:
            DeviceError: if the device fails.
        """
        for name, held in self._arrays.items():
            held[:] = inputs[name]
        for name, value in self._values.items():
            array = inputs[name]
            if not np.array_equal(self._held.get(name, ()), array):  # each copy is a call
                self._held[name] = np.array(array)
                value.update_inplace(self._held[name])
        self._gpu.run(self._session, self._handle, self._recording.next(wait))

    def found(self) -> dict[str, Floats]:
        """Returns the outputs of the last call that `give` bound."""
        found = {name: value.numpy() for name, value in self._found_values.items()}
        return found | {name: array.copy() for name, array in self._found_arrays.items()}
