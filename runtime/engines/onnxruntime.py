"""ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.engines.base import Array, Cache, StageFile, StageOutputs
from edgespec.runtime.engines.host import HostCache


class OnnxRuntimeCpu:
    """The CPU execution provider."""

    name = "onnxruntime:cpu"
    version: str = ort.__version__

    def compile(self, stage: StageFile, threads: int) -> OnnxRuntimeExecutable:
        """See `Engine`."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads spin inside a call, where the next operator is microseconds away, and sleep
        # between calls, where another session or engine wants the cores.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            session = ort.InferenceSession(
                str(stage.graph), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions share no base class but this
            raise DeviceError(
                f"{stage.graph}: ONNX Runtime {ort.__version__} refused it "
                f"({str(error).splitlines()[0]}): try another --device, or export it again"
            ) from error
        return OnnxRuntimeExecutable(session, stage)


class OnnxRuntimeExecutable:
    """A session with its buffers bound once."""

    def __init__(self, session: Any, stage: StageFile) -> None:
        self._session = session
        self._stage = stage
        self._binding = session.io_binding()
        self._bound: dict[str, Array] = {}
        self._views: dict[str, Array] | None = None
        self._outputs: dict[tuple[int, int], StageOutputs] = {}
        self._shape: tuple[int, int] | None = None

    def new_cache(self, capacity: int) -> HostCache:
        """See `Executable`."""
        return HostCache(self._stage, capacity)

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """See `Executable`."""
        for name, array in feeds.items():
            if self._bound.get(name) is not array:
                self._bind(name, array)
        views = cast(HostCache, cache).views
        if views is not self._views:
            for name, array in views.items():
                self._bind(name, array)
            self._views = views
        outputs = self._bind_outputs(len(feeds["logit_rows"]), len(feeds["input_ids"]))
        self._session.run_with_iobinding(self._binding)
        return outputs

    def _bind(self, name: str, array: Array) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self._bound[name] = array

    def _bind_outputs(self, logit_rows: int, rows: int) -> StageOutputs:
        """Output buffers of one shape, allocated once."""
        shape = (logit_rows, rows)
        if shape not in self._outputs:
            layers, pair, heads, width = self._stage.cache_shape
            self._outputs[shape] = StageOutputs(
                {
                    name: np.empty((logit_rows, *rest), dtype)
                    for name, dtype, rest in self._stage.results
                },
                np.empty((layers, pair, heads, rows, width), self._stage.kv_dtype),
            )
        outputs = self._outputs[shape]
        if shape != self._shape:
            for name, array in (*outputs.results.items(), ("new_kv", cast(Array, outputs.new_kv))):
                self._binding.bind_output(
                    name, "cpu", 0, array.dtype, array.shape, array.ctypes.data
                )
            self._shape = shape
        return outputs
