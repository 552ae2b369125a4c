"""Quantizes stages for NPUs with ONNX Runtime: 8- or 4-bit weights and 16-bit activations."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

from edgespec.bundle import NPU
from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import Cache, Executable, StageFile, StageOutputs
from edgespec.runtime.engines.cpu.onnxruntime import OnnxRuntimeCpu
from edgespec.runtime.engines.host import HostCache

Calls = list[dict[str, Array]]

_WEIGHTS = {8: QuantType.QInt8, 4: QuantType.QInt4}


class QdqQuantizer(OnnxRuntimeCpu):
    """Runs a variant's stages on the CPU, records their inputs, and quantizes them with these."""

    variant: str | None = NPU
    keeps_states = False
    several_texts = False
    integer_caches = False

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[Path, Calls] = {}

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """See `Engine`."""
        calls = self._calls.setdefault(stage.graph, [])
        return _Noting(super().compile(stage, threads), calls)

    def quantize(self, stage: StageFile, bits: int, output: Path) -> dict[str, float]:
        """Writes a quantized stage with symbolic dimensions.

        Weights get one scale per row. Activations get 16 bits for the range that they had in the
        recorded calls. The embedding stays in half precision.

        Args:
            stage: a stage that this engine has compiled and run.
            bits: bits of a weight, 8 or 4.
            output: the ONNX file to write; its data goes to `output`.data.

        Returns:
            The relative RMS error of each quantized matrix.

        Raises:
            DeviceError: if the quantizer refuses the stage.
        """
        with tempfile.TemporaryDirectory() as folder, _quiet():
            source = Path(folder) / "stage.onnx"
            model = onnx.load(str(stage.graph))
            lookup = _part_from_head(model)
            onnx.save(model, str(source), save_as_external_data=True, location="stage.data")
            settings = get_qnn_qdq_config(
                str(source),
                _Reader(self._calls[stage.graph]),
                activation_type=QuantType.QUInt16,
                weight_type=_WEIGHTS[bits],
                per_channel=True,
            )
            settings.nodes_to_exclude = lookup
            settings.use_external_data_format = True
            made = Path(folder) / output.name
            try:
                quantize(str(source), str(made), settings)
            except Exception as error:  # its exceptions share no base class but this
                raise DeviceError(f"{stage.graph}: it cannot be quantized ({error})") from error
            errors = _errors(onnx.load(str(source)), onnx.load(str(made)))
            for file in (made, made.with_name(f"{made.name}.data")):
                shutil.copyfile(file, output.with_name(file.name))
        return errors


class _Noting:
    """An executable that keeps copies of all its inputs."""

    def __init__(self, real: Executable, calls: Calls) -> None:
        self._real = real
        self._calls = calls

    def new_cache(self, capacity: int, most: int) -> Cache:
        """See `Executable`."""
        return self._real.new_cache(capacity, most)

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """See `Executable`."""
        inputs = {**feeds, **cast(HostCache, cache).views}
        self._calls.append({name: array.copy() for name, array in inputs.items()})
        return self._real.run(feeds, cache)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Gives the recorded calls to the quantizer, one after the other."""

    def __init__(self, calls: Calls) -> None:
        self._rest = iter(calls)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._rest, None)


def _part_from_head(model: Any) -> list[str]:
    """Gives the embedding its own weights, and returns the nodes that must not be quantized.

    A tied output projection is quantized, and the embedding must not read the quantized weights.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = []
    for node in list(model.graph.node):
        if node.op_type != "Gather" or node.input[0] not in weights:
            continue
        rows, looked_up = numpy_helper.to_array(weights[node.input[0]]), node.output[0]
        half = numpy_helper.from_array(rows.astype(np.float16), "embedding.half")
        model.graph.initializer.append(half)
        node.input[0], node.output[0] = half.name, "embedding.rows"
        widen = helper.make_node(
            "Cast", [node.output[0]], [looked_up], name="embedding.widened", to=TensorProto.FLOAT
        )
        model.graph.node.insert(list(model.graph.node).index(node) + 1, widen)
        nodes += [node.name, widen.name]
    used = {name for node in model.graph.node for name in node.input}
    for place in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[place].name not in used:  # ONNX Runtime warns of it
            del model.graph.initializer[place]
    return nodes


def _errors(model: Any, quantized: Any) -> dict[str, float]:
    """Returns the relative RMS error of each quantized matrix."""
    now = {tensor.name: tensor for tensor in quantized.graph.initializer}
    found = {}
    for tensor in model.graph.initializer:
        packed = now.get(f"{tensor.name}_quantized")
        if packed is None or len(tensor.dims) != 2:
            continue
        exact = numpy_helper.to_array(tensor)
        scales = numpy_helper.to_array(now[f"{tensor.name}_scale"]).reshape(-1, 1)
        error = numpy_helper.to_array(packed).astype(np.float32) * scales - exact
        found[tensor.name] = float(np.linalg.norm(error) / np.linalg.norm(exact))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the quantizer's advice, on the root logger, to use an optimization that drops names."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
