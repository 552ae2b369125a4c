"""OpenVINO on the CPU, and the code that OpenVINO's other engines share with it."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import openvino as ov

from edgespec.bundle.caches import TEXT_ROWS, new_kv_output
from edgespec.bundle.sublayers import recurrent_output
from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import (
    Cache,
    CallSizes,
    Executable,
    Footprint,
    StageFile,
    StageOutputs,
    StageSizes,
    row_count,
)
from edgespec.runtime.engines.fixed import (
    FixedExecutable,
    input_shape,
    is_lengths,
    is_ordered,
    kept_by_input,
    lengths,
)
from edgespec.runtime.engines.host import (
    MIB,
    HostCache,
    HostEngine,
    activation_bytes,
    copied_cache_bytes,
    layer_cache_bytes,
    score_bytes,
)
from edgespec.runtime.engines.openvino_core import core
from edgespec.runtime.engines.seats import HostSeats, SeatedRows
from edgespec.runtime.shapes import ANY_SHAPES, Shape, Shapes
from edgespec.system.cachedir import cache_folder, warn_unwritable
from edgespec.system.interpreter import NO_CONSOLE, interpreter

# From ONNX, quantized weights are copied before they are packed; from OpenVINO's own format they
# are mapped, which spares memory of their size. Below this size (bytes) nobody notices.
_CONVERT_FROM = 16 * MIB

# A call of more rows gives its buffers back where there are other stages, which run by turns with
# this one: reading a prompt and very large trees. Those of other calls are small, and kept.
_KEPT_ROWS = 16

# Measured with benchmarks/memory.py (OpenVINO 2026.4, x86-64).
_GRAPH_BYTES = MIB
_LAYER_BYTES = 11 * MIB // 4
CONVERTER_BYTES = 60 * MIB
"""Memory of the process that converts a stage, besides the weights."""

_SMALL_GROUP = 32

_log = logging.getLogger(__name__)


class OpenVinoCpu(HostEngine):
    """OpenVINO's CPU plug-in, with products in float32."""

    name = "openvino:cpu"
    precision = "f32"  # bfloat16 is the default where the CPU has it, and is not what was exported
    keeps_states = True
    several_texts = True
    integer_caches = True
    version: str = ov.__version__
    library_bytes = 22 * MIB

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """See `Engine`."""
        return compile_for("CPU", stage, self._config(stage, threads), self.shapes)

    def _config(self, stage: StageFile, threads: int) -> dict[str, str]:
        return {
            "INFERENCE_PRECISION_HINT": self.precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(activation_group(stage.block_size)),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            # What is prepared for a shape is kept, up to 5000 times by default: memory grew with
            # the rounds of texts, beyond the plan.
            "CPU_RUNTIME_CACHE_CAPACITY": "64",
        }

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`.

        The file stays mapped, and products read packed copies of their weights, some of them two.
        Half precision is widened and then packed; small quantized stages are read from ONNX, with
        a copy more.
        """
        data = stage.matmul_bytes + (0 if stage.tied else stage.embedding_bytes)
        widened = stage.widening_bytes(stage.matmul_bytes)
        weights, repacked, loading = 0, stage.matmul_bytes + widened, 0
        if stage.block_size and stage.file_bytes >= _CONVERT_FROM:
            loading = CONVERTER_BYTES
        elif stage.block_size:
            weights = repacked
        elif stage.precision == "fp16":
            weights = 2 * (stage.matmul_bytes + stage.embedding_bytes)
            repacked *= 2
        if stage.precision in ("fp16", "fp32"):
            repacked += _packed_twice(stage)
        # Between long calls of a prompt, buffers for those of decoding stay.
        rows = calls.rows if calls.rows <= _KEPT_ROWS else min(calls.logit_rows, _KEPT_ROWS)
        kept = _buffer_bytes(stage, replace(calls, rows=rows))
        return Footprint(
            weights=weights,
            repacked=repacked,
            mapped=data + widened,
            logits=calls.logit_rows * (4 * stage.vocab + stage.result_bytes)
            + calls.rows * stage.passed_bytes,
            workspace=kept + _GRAPH_BYTES + _LAYER_BYTES * stage.layers,
            shared=_buffer_bytes(stage, calls) - kept,
            loading=loading,
        )


class OpenVinoCpuBfloat16(OpenVinoCpu):
    """OpenVINO's CPU plug-in, with what is float32 elsewhere rounded to bfloat16 (8 bits).

    Long prompts are read faster. Texts are those of the rounded model, with and without drafts.

    Raises:
        DeviceError: if the processor has no products of bfloat16.
    """

    name = "openvino:cpu-bf16"
    precision = "bf16"

    def __init__(self, shapes: Shapes = ANY_SHAPES) -> None:
        super().__init__(shapes)
        if "BF16" not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise DeviceError(
                f"device {self.name}: {self.hardware} has no products of bfloat16: use openvino:cpu"
            )


def activation_group(block_size: int) -> int:
    """Returns how many activations are rounded to 8 bits with the same scale; 0: none are rounded.

    The blocks of any matrix must be whole groups, or it is multiplied in floats, slowly. Half as
    large groups lose four tenths less. Blocks of 64 have two, which costs time in long calls only.
    Blocks of 128 have one, since long calls would take longer, and models with such blocks lose
    less. Measured: benchmarks/activations.py.

    Args:
        block_size: least number of weights that share a scale; 0 if none are quantized.
    """
    return _SMALL_GROUP if block_size == 2 * _SMALL_GROUP else block_size


def _packed_twice(stage: StageSizes) -> int:
    """Returns the bytes of MLP gates that are packed twice: for one row and for several rows.

    OpenVINO computes several rows as a convolution if the product is small enough and an activation
    follows it (convolution_1x1_dnnl in fullyconnected_implementations.cpp; with AVX-512).
    """
    width, inner = stage.hidden, stage.intermediate
    gate = 4 * width * inner
    small = 96 <= width <= 4096 and 96 <= inner <= 4 * width and gate < 16 * MIB
    return gate * max(stage.layers, 1) if small else 0


def _buffer_bytes(stage: StageSizes, calls: CallSizes) -> int:
    """Returns the bytes of the buffers that a stage's operators keep for a call of this size."""
    # A layer alone keeps fewer scores than several do.
    scores = (8 if stage.layers == 1 else 17) * score_bytes(stage, calls) // 2
    copied = 3 * layer_cache_bytes(stage, calls) // 4
    copied += copied_cache_bytes(stage, calls)
    return scores + copied + 2 * activation_bytes(stage, calls) // 5


class OpenVinoExecutable:
    """A compiled model with one infer request, whose tensors are set only when they change.

    Args:
        compiled: the compiled model.
        stage: the stage that it was compiled from.
        by_turns: whether to free its buffers after a long call.
    """

    seats_on_device = False

    def __init__(self, compiled: Any, stage: StageFile, by_turns: bool = False) -> None:
        self._compiled = compiled
        self._by_turns = by_turns
        self._request = compiled.create_infer_request()
        self._results = [(each.name, compiled.output(each.name)) for each in stage.results]
        self._new_kv = [
            compiled.output(new_kv_output(number)) for number in range(len(stage.cache_groups))
        ]
        self._new_rows = [compiled.output(recurrent_output(layer)) for layer in stage.recurrent]
        self._stage = stage
        self._bound: dict[str, Array] = {}
        self._views: Mapping[str, Array] | None = None

    def new_cache(self, capacity: int, most: int) -> HostCache:
        """See `Executable`."""
        return HostCache(self._stage, capacity, most)

    def new_seats(self, count: int, capacity: int) -> HostSeats:
        """See `Seating`."""
        return HostSeats(self._stage, count, capacity)

    def run(self, feeds: Mapping[str, Array], cache: Cache | SeatedRows) -> StageOutputs:
        """See `Executable`."""
        for name, array in feeds.items():
            if self._bound.get(name) is not array:
                self._bind(name, array)
        views = cast(HostCache | SeatedRows, cache).views
        if views is not self._views:
            for name, array in views.items():
                self._bind(name, array)
            self._views = views
        self._request.infer()
        if self._by_turns and row_count(feeds) > _KEPT_ROWS:
            self._compiled.release_memory()  # all but the results
        return StageOutputs(
            {name: self._request.get_tensor(port).data for name, port in self._results},
            self._new_rows_of_caches(feeds),
            [self._request.get_tensor(port).data for port in self._new_rows],
            self._stage.several_texts,
        )

    def _new_rows_of_caches(self, feeds: Mapping[str, Array]) -> list[Array]:
        arrays = [self._request.get_tensor(port).data for port in self._new_kv]
        if not self._stage.several_texts:
            return arrays
        # The graph has one dimension for layers, keys or values, and texts.
        texts = len(feeds[TEXT_ROWS])
        return [each.reshape(-1, 2, texts, *each.shape[1:]) for each in arrays]

    def _bind(self, name: str, array: Array) -> None:
        self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        self._bound[name] = array


def compile_for(
    device: str, stage: StageFile, config: dict[str, str], shapes: Shapes = ANY_SHAPES
) -> Executable:
    """Compiles a stage for one of OpenVINO's plug-ins.

    Raises:
        DeviceError: if the plug-in refuses the stage.
    """
    graph = _readable(stage)

    def compiled(shape: Shape | None = None) -> OpenVinoExecutable:
        return _compiled(device, stage, graph, config, shape)

    return FixedExecutable(stage, shapes, compiled) if shapes.capacities else compiled()


def _compiled(
    device: str, stage: StageFile, graph: Path, config: dict[str, str], shape: Shape | None
) -> OpenVinoExecutable:
    try:
        model = str(graph) if shape is None else _fixed(core().read_model(str(graph)), stage, shape)
        compiled = core().compile_model(model, device, config)
    except RuntimeError as error:
        raise DeviceError(
            f"{stage.graph}: OpenVINO {ov.__version__} refused it "
            f"({str(error).strip().splitlines()[-1]}): try another --device"
        ) from error
    # Buffers on a GPU are the driver's business.
    return OpenVinoExecutable(compiled, stage, by_turns=device == "CPU" and not stage.whole)


def _fixed(model: Any, stage: StageFile, shape: Shape) -> Any:
    """A model that was read, with a shape that does not change any more."""
    shapes = {}
    ordered = is_ordered(port.any_name for port in model.inputs)
    kept = kept_by_input(stage.cache_groups, shape.capacity)
    for port in model.inputs:
        name = port.any_name
        own = Shape(shape.rows, kept.get(name, shape.capacity))
        if is_lengths(name):
            constant = ov.opset13.constant(lengths(own, ordered), ov.Type.i64)
            parameter = port.get_node()
            port.replace(constant.output(0))
            model.remove_parameter(parameter)
            continue
        width = [-1 if each.is_dynamic else each.get_length() for each in port.partial_shape]
        shapes[name] = ov.PartialShape(input_shape(name, width, own, ordered))
    model.reshape(shapes)
    return model


def _readable(stage: StageFile) -> Path:
    """Returns the file that takes least memory to load: the ONNX file or a cached conversion."""
    files = [stage.data] if stage.borrowed is None else [stage.data, stage.borrowed]
    large = sum(each.stat().st_size for each in files) >= _CONVERT_FROM
    worth = large and stage.block_size and stage.key is not None
    folder = cache_folder("openvino") if worth else None
    if folder is None:
        return stage.graph
    converted = folder / f"{stage.key}-{ov.__version__.split('-')[0]}.xml"
    if not converted.exists():
        if not os.access(folder, os.W_OK):  # before much is done in vain
            warn_unwritable(folder, PermissionError("write-protected"))
            return stage.graph
        _log.info("converting %s for OpenVINO, once", stage.graph.name)
        failure = _convert(stage.graph, converted)
        # Who converted it at the same time has it open by now, which Windows replaces for nobody.
        if failure is not None and not converted.exists():
            _log.warning("OpenVINO's cache was not made (%s): reading ONNX instead", failure)
            return stage.graph
    return converted


def _convert(graph: Path, converted: Path) -> str | None:
    """Converts a stage for the cache; returns None, or one line that says why it failed.

    It runs in its own process, so that its peak memory is freed when it ends.
    """
    python = interpreter()
    if python is None:
        return "a program with a Python of its own runs no other"
    # -P keeps this folder, whose modules are named after libraries, out of its import path.
    command = [python, "-P", str(Path(__file__).with_name("openvino_ir.py"))]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*command, str(graph), str(converted)],
        capture_output=True, encoding="utf-8", errors="replace", check=False, **NO_CONSOLE,
    )  # fmt: skip
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
