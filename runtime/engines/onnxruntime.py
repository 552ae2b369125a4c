"""ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.engines.base import (
    Array,
    Cache,
    CallSizes,
    Footprint,
    StageFile,
    StageOutputs,
    StageSizes,
)
from edgespec.runtime.engines.host import (
    MIB,
    HostCache,
    HostEngine,
    activation_bytes,
    layer_cache_bytes,
    score_bytes,
)

# Measured with benchmarks/memory.py (ONNX Runtime 1.31, x86-64).
_GRAPH_BYTES = MIB
_LAYER_BYTES = 7 * MIB // 10


class OnnxRuntimeCpu(HostEngine):
    """The CPU execution provider."""

    name = "onnxruntime:cpu"
    version: str = ort.__version__
    library_bytes = 8 * MIB

    def compile(self, stage: StageFile, threads: int) -> OnnxRuntimeExecutable:
        """See `Engine`."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # A pattern is planned for every shape and holds room for all of its tensors at once.
        options.enable_mem_pattern = False
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

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`.

        Every weight of a product is packed into memory of its own and the file's pages are let
        go; only the embedding stays mapped. Half precision is widened first, one tensor at a time.
        """
        repacked, widened, loading = stage.matmul_bytes, 0, 0
        if stage.block_size:  # packing adds the float32 sum of each block to its float32 scale
            block = stage.block_size * int(stage.precision[3:]) // 8 + 4
            repacked += 4 * stage.matmul_bytes // block
        elif stage.precision == "fp16":
            repacked *= 2
            widened = 2 * stage.embedding_bytes if stage.tied else 0
            loading = 4 * stage.hidden * max(stage.intermediate, stage.vocab)
        return Footprint(
            weights=widened,
            repacked=repacked,
            mapped=stage.embedding_bytes,
            # Results have a buffer for each bucket, which together have twice the largest's rows.
            logits=calls.logit_rows * (4 * stage.vocab + stage.result_bytes)
            + calls.rows * stage.passed_bytes,
            workspace=3 * score_bytes(stage, calls)
            + layer_cache_bytes(stage, calls) // 2
            + _GRAPH_BYTES
            + _LAYER_BYTES * stage.layers,
            shared=3 * activation_bytes(stage, calls) // 4,
            loading=loading,
        )


class OnnxRuntimeExecutable:
    """A session with a binding for each shape, made when the shape first comes."""

    def __init__(self, session: Any, stage: StageFile) -> None:
        self._session = session
        self._stage = stage
        self._views: dict[str, Array] | None = None
        self._bindings: dict[int, _Binding] = {}

    def new_cache(self, capacity: int, most: int) -> HostCache:
        """See `Executable`."""
        return HostCache(self._stage, capacity, most)

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """See `Executable`."""
        views = cast(HostCache, cache).views
        if views is not self._views:
            self._bindings.clear()  # bindings to another cache would keep it alive
            self._views = views
        binding = self._bindings.get(id(feeds))
        if binding is None:
            binding = _Binding(self._session, self._stage, feeds, views)
            self._bindings[id(feeds)] = binding
        self._session.run_with_iobinding(binding.handle)
        return binding.outputs


class _Binding:
    """Inputs and outputs of one shape, bound in place."""

    def __init__(
        self,
        session: Any,
        stage: StageFile,
        feeds: Mapping[str, Array],
        views: Mapping[str, Array],
    ) -> None:
        self.handle = session.io_binding()
        self._alive = (feeds, views)  # the handle holds addresses only
        layers, pair, heads, width = stage.cache_shape
        sizes = {"S": len(feeds["hidden" if "hidden" in feeds else "input_ids"])}
        if "logit_rows" in feeds:
            sizes["R"] = len(feeds["logit_rows"])
        new_kv = np.empty((layers, pair, heads, sizes["S"], width), stage.kv_dtype)
        results: dict[str, Array] = {
            each.name: np.empty((sizes[each.rows], *each.shape), each.dtype)
            for each in stage.results
        }
        self.outputs = StageOutputs(results, new_kv)
        for name, array in {**feeds, **views}.items():
            self.handle.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        outputs = {**results, "new_kv": new_kv} if layers else results
        for name, array in outputs.items():
            self.handle.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
