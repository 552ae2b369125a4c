"""Native graphs: operators of our own, in ONNX Runtime on the CPU."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

import onnxruntime as ort

from edgespec.bundle import FEATURES
from edgespec.errors import DeviceError, first_line
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.engines.callers import raise_if_callers
from edgespec.runtime.engines.ort_session import (
    CpuSession,
    look_for_data_beside,
    session_options,
)
from edgespec.runtime.kernels import kernel_name
from edgespec.system.machine import extensions


def arithmetic() -> tuple[object, ...]:
    """Returns what the bits of native graphs depend on besides the weights; see its `repr`."""
    return ort.__version__, platform.machine(), extensions(), kernel_name()


class NativeGraph:
    """A native graph in a session of ONNX Runtime.

    Weights are computed with where the file is mapped, so loading reads nothing but the graph.

    Args:
        graph: ONNX file, beside the file of its weights, or the content of a graph.
        library: library of the operators.
        threads: number of threads.
        features: whether `features` is among the results, where the graph gives them.
        whole: file that the content is a part of, see `parts`; None: it has all weights itself.
        beside: further weights that the graph names, by name.

    Raises:
        DeviceError: if ONNX Runtime refuses the library or the graph.
    """

    def __init__(
        self,
        graph: Path | bytes,
        library: Path,
        threads: int,
        features: bool = False,
        whole: Path | None = None,
        beside: Mapping[str, Array] | None = None,
    ) -> None:
        options = session_options(threads)
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:  # its exceptions have no narrower base class
            raise DeviceError(
                f"{library}: ONNX Runtime refused the operators ({first_line(error)}): install "
                "edgespec again"
            ) from error
        if whole is not None:
            look_for_data_beside(whole, options)
        self._beside = beside  # whose memory the session reads
        if beside:
            values = [ort.OrtValue.ortvalue_from_numpy(each) for each in beside.values()]
            options.add_external_initializers([*beside], values)
        name = None if whole is None else str(whole)
        self._session = CpuSession(graph, options, name)
        self._inputs = [each.name for each in self._session.get_inputs()]
        names = [each.name for each in self._session.get_outputs()]
        self._outputs = [name for name in names if features or name != FEATURES]

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Floats]:
        """Makes a pass.

        Args:
            feeds: inputs by name, among others. Pools must be C-contiguous; the graph writes to
                them.

        Returns:
            Outputs by name, such as `logits` [R, V] float32 of the rows that were asked for.

        Raises:
            DeviceError: if an operator refuses its inputs.
        """
        try:
            read = {name: feeds[name] for name in self._inputs}
            results = self._session.run(self._outputs, read)
        except Exception as error:
            raise_if_callers(error)
            raise DeviceError(f"a pass failed ({first_line(error)}): please report it") from error
        return dict(zip(self._outputs, results, strict=True))
