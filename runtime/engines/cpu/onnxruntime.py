"""ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, cast

import onnxruntime as ort

from edgespec.bundle.caches import new_kv_output
from edgespec.bundle.sublayers import recurrent_output
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import (
    Cache,
    CallSizes,
    Executable,
    Footprint,
    StageFile,
    StageOutputs,
    StageSizes,
)
from edgespec.runtime.engines.distributions import require_one_distribution
from edgespec.runtime.engines.fixed import FixedExecutable
from edgespec.runtime.engines.host import (
    MIB,
    HostCache,
    HostEngine,
    activation_bytes,
    copied_cache_bytes,
    layer_cache_bytes,
    score_bytes,
)
from edgespec.runtime.engines.ort_session import (
    HostRoom,
    bind_host_input,
    bind_host_output,
    call_shape,
    open_session,
    session_options,
)
from edgespec.runtime.engines.seats import HostSeats, SeatedRows
from edgespec.runtime.shapes import FINE_SHAPES, Shape, Shapes

# Measured with benchmarks/memory.py (ONNX Runtime 1.31, x86-64).
_GRAPH_BYTES = MIB
_LAYER_BYTES = 7 * MIB // 10


class OnnxRuntimeCpu(HostEngine):
    """ONNX Runtime's CPU execution provider."""

    name = "onnxruntime:cpu"
    keeps_states = True
    several_texts = True
    integer_caches = True
    version: str = ort.__version__
    library_bytes = 8 * MIB

    def __init__(self, shapes: Shapes = FINE_SHAPES) -> None:
        require_one_distribution()
        super().__init__(shapes)

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """See `Engine`."""
        if self.shapes.capacities:
            return FixedExecutable(stage, self.shapes, partial(_compile, stage, threads))
        return _compile(stage, threads)

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`.

        Weights of products are packed into new memory, and the file's pages are released; only the
        embedding stays mapped. Half precision is widened first, and each widened tensor is freed
        when it is packed; widened scales stay.
        """
        workspace = _GRAPH_BYTES + _LAYER_BYTES * stage.layers
        repacked, widened, loading = stage.matmul_bytes, 0, 0
        if stage.block_size:  # packed weights have a float32 scale and sum for each block
            blocks = stage.blocks(stage.matmul_bytes)
            repacked += stage.widening_bytes(stage.matmul_bytes) + 4 * blocks
            widened = 4 * blocks if stage.scale_bytes < 4 else 0
        elif stage.precision == "fp16":
            repacked *= 2
            loading = workspace + 4 * stage.hidden * max(stage.intermediate, stage.vocab)
        return Footprint(
            weights=widened,
            repacked=repacked,
            mapped=stage.embedding_bytes,
            logits=calls.logit_rows * max(4 * stage.vocab, stage.result_bytes)
            + calls.rows * stage.passed_bytes,
            workspace=workspace,
            shared=3 * score_bytes(stage, calls)
            + layer_cache_bytes(stage, calls) // 2
            + 3 * activation_bytes(stage, calls) // 4
            + copied_cache_bytes(stage, calls),
            loading=loading,
        )


@cache
def _share_arena() -> None:
    """Lets all sessions of this process allocate from one arena; only the first call acts.

    With an arena each, sessions would keep the memory of their longest calls, although stages take
    turns.
    """
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    as_usual = ort.OrtArenaCfg(0, -1, -1, -1)
    ort.create_and_register_allocator(memory, as_usual)


class OnnxRuntimeExecutable:
    """A session with a binding for each shape, created at the first call of that shape.

    Results of all shapes use the same memory, so they are valid until the next call.
    """

    seats_on_device = False

    def __init__(self, session: Any, stage: StageFile) -> None:
        self._session = session
        self._stage = stage
        self._views: Mapping[str, Array] | None = None
        self._bindings: dict[tuple[int, ...], _Binding] = {}  # by the shape of calls
        self._room = HostRoom(stage)

    def new_cache(self, capacity: int, most: int) -> HostCache:
        """See `Executable`."""
        return HostCache(self._stage, capacity, most)

    def new_seats(self, count: int, capacity: int) -> HostSeats:
        """See `Seating`."""
        return HostSeats(self._stage, count, capacity)

    def run(self, feeds: Mapping[str, Array], cache: Cache | SeatedRows) -> StageOutputs:
        """See `Executable`."""
        views = cast(HostCache | SeatedRows, cache).views
        if views is not self._views:
            self._bindings.clear()  # bindings to another cache would keep it alive
            self._views = views
        shape = call_shape(feeds)
        binding = self._bindings.get(shape)
        if binding is None or binding.feeds is not feeds:  # new feeds replace the old binding
            binding = _Binding(self._session, feeds, views, self._room.outputs(feeds), self._stage)
            self._bindings[shape] = binding
        self._session.run_with_iobinding(binding.handle)
        return binding.outputs


def _compile(stage: StageFile, threads: int, shape: Shape | None = None) -> OnnxRuntimeExecutable:
    _share_arena()
    options = session_options(threads)
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Threads spin inside a call, where the next operator follows within microseconds, and sleep
    # between calls, when another session or engine needs the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    providers = ["CPUExecutionProvider"]
    if shape is None:
        session = open_session(stage.graph, options, providers)
    else:
        # Imported here since it imports onnx, which other shapes do not need.
        from edgespec.runtime.engines.fixed_graph import open_fixed

        session = open_fixed(stage, shape, options, providers)
    return OnnxRuntimeExecutable(session, stage)


class _Binding:
    """Inputs and outputs of one shape, bound in place."""

    def __init__(
        self,
        session: Any,
        feeds: Mapping[str, Array],
        views: Mapping[str, Array],
        outputs: StageOutputs,
        stage: StageFile,
    ) -> None:
        self.handle = session.io_binding()
        self.outputs = outputs
        self.feeds, self._views = feeds, views  # kept alive: the handle holds only addresses
        for name, array in {**feeds, **views}.items():
            bind_host_input(self.handle, name, array)
        # The graph has one dimension for layers, keys or values, and texts.
        flat = (cast(Array, each) for each in outputs.new_kv)
        flat = (each.reshape(-1, *each.shape[3:]) if stage.several_texts else each for each in flat)
        new_kv = {new_kv_output(n): each for n, each in enumerate(flat)}
        new_rows = dict(zip(map(recurrent_output, stage.recurrent), outputs.new_rows, strict=True))
        for name, array in {**outputs.results, **new_kv, **new_rows}.items():
            bind_host_output(self.handle, name, array)
