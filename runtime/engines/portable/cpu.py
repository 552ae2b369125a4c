"""Portable graphs with ONNX Runtime on the CPU, where our operators are missing."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

from edgespec.runtime.engines.ort_session import open_session, session_options
from edgespec.runtime.engines.portable.graph import GraphFile, Shape
from edgespec.runtime.engines.portable.host import HostSession
from edgespec.system import machine


class Cpu:
    """The processor; calls may have any number of rows."""

    name = "cpu"
    version: str = ort.__version__
    own_bytes = None
    rows = ()
    shape = None
    half = None

    def __init__(self) -> None:
        self.hardware = machine.model_name()

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> HostSession:
        """See `Engine`."""
        options = fixed_options(file, threads, shape)
        # Between passes its threads would take the processor from drafting and sampling.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = open_session(file.path, options, ["CPUExecutionProvider"])
        return HostSession(self.name, session)


def fixed_options(file: GraphFile, threads: int, shape: Shape | None) -> Any:
    """Returns a session's options, with the sizes of symbolic dimensions if shapes are fixed."""
    options = session_options(threads)
    if shape is not None:
        for name, size in file.sizes(shape).items():
            options.add_free_dimension_override_by_name(name, size)
    return options
