"""Portable graphs on the devices of this machine; an engine is imported when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgespec.errors import DeviceError, installing
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.engines.portable.engine import GraphEngine, QueueRunner
from edgespec.runtime.engines.portable.file import GraphFile, Shape, computing_nodes
from edgespec.runtime.engines.portable.graph import PortableGraph
from edgespec.runtime.engines.portable.queue import QueuedGraph

if TYPE_CHECKING:
    from edgespec.runtime.engines.portable.device import Gpu

__all__ = [
    "DEVICES",
    "Device",
    "PortableGraph",
    "accuracy_level",
    "best_gpu",
    "computing_nodes",
    "find_devices",
    "fused_forms",
    "fused_operators",
    "open_graph",
    "open_layers",
]

_CUDA = ("cuda", "Cuda", installing("cuda"))
_WEBGPU = ("webgpu", "WebGpu", installing("webgpu"))
_OPENVINO = ("openvino", "OpenVino", installing("intel"))
_QNN = ("qnn", "Qnn", "pip install --no-deps onnxruntime-qnn")

# By device: module and class, what installs its library, and what the class is made with.
_ENGINES: dict[str, tuple[tuple[str, str, str], tuple[Any, ...]]] = {
    "cpu": (("cpu", "Cpu", installing()), ()),
    "cuda:0": (_CUDA, (0,)),
    "webgpu:0": (_WEBGPU, (0,)),
    "openvino:gpu": (_OPENVINO, ("gpu",)),
    "openvino:npu": (_OPENVINO, ("npu",)),
    "qnn:npu": (_QNN, ("npu",)),
    "qnn:emulated": (_QNN, ("emulated",)),
    "openvino:cpu": (_OPENVINO, ("cpu",)),
}
_SHORT = {"cuda": "cuda:0", "webgpu": "webgpu:0", "qnn": "qnn:npu"}
_PROVEN = ("cpu", "cuda", "openvino:cpu", "qnn:emulated")
_GPUS = ("cuda:0", "webgpu:0", "openvino:gpu")  # the best first
_NAME = re.compile(
    r"(?P<device>[a-z:]+?)(?P<number>:\d{1,4})?(#(?P<rows>\d{1,4})x(?P<slots>\d{1,7}))?"
)

DEVICES = tuple(name for name in _ENGINES if name != "openvino:cpu")
"""Names of devices; that of a second GPU of NVIDIA's is `cuda:1`. Shapes are fixed by a name such
as `openvino:npu#16x1024`: rows of a call, and slots of the pool."""


@dataclass(frozen=True)
class Device:
    """A device that there is an engine for.

    Attributes:
        name: its name.
        hardware: its product's name; None if it cannot be used.
        version: version of the library that runs it.
        own_bytes: free bytes of its own memory; None: it uses the host's.
        reason: why it cannot be used, and what may help; None if it can.
        slots: the slots of its pools if they are fixed.
        rows: the rows of its calls if they are fixed.
        half: see `GraphEngine`.
        halves: whether graphs compute in half precision there where their models allow it.
        layerwise: whether prompts can be read there through layers that lie on the host.
        experimental: whether such a device was never run by us, or in software only.
    """

    name: str
    hardware: str | None = None
    version: str | None = None
    own_bytes: int | None = None
    reason: str | None = None
    slots: int | None = None
    rows: int | None = None
    half: bool | None = None
    halves: bool = False
    layerwise: bool = False
    experimental: bool = False


def open_graph(device: str, graph: Path, threads: int, columns: int | None = None) -> PortableGraph:
    """Opens a portable graph, which also gives its pool memory on the device.

    Args:
        device: one of `DEVICES`, perhaps with a number or a shape.
        graph: ONNX file, beside that of its weights.
        threads: number of threads, on the CPU.
        columns: where the device goes on by itself, it ranks rows by so many first columns of their
            logits, see `QueuedGraph`; None: it ranks none.

    Raises:
        DeviceError: if there is no such device, its library or driver is missing, or it refuses the
            graph.
    """
    engine, shape = _opened(device)
    file = GraphFile(graph, columns if engine.queues else None)
    if shape is not None and shape.rows > (file.most_rows or shape.rows):
        raise DeviceError(
            f"device {device}: calls with recurrent layers have {file.most_rows} rows at most: "
            f"name it {engine.name}#{file.most_rows}x{shape.capacity}"
        )
    runner = engine.open(file, threads, shape)
    name = engine.name if shape is None else f"{engine.name}#{shape.rows}x{shape.capacity}"
    rows = _sizes(engine, file)
    if file.ranked:
        return QueuedGraph(name, file, cast("QueueRunner", runner), rows, shape)
    return PortableGraph(name, file, runner, rows, shape)


def open_layers(
    device: str,
    graphs: Sequence[Path],
    key_scales: Sequence[Array | None],
    entering: Callable[[Mapping[str, Array]], Mapping[str, Floats]],
    told: Sequence[str],
) -> Callable[[Mapping[str, Array]], Mapping[str, Floats]]:
    """Opens portable graphs of a target's first layers, whose weights and pools lie on the host.

    Args:
        device: a device that computes them one after the other, see `Device.layerwise`.
        graphs: the ONNX file of each layer, beside that of its weights.
        key_scales: see `HostLayer`.
        entering: see `LayerwiseGraph`.
        told: likewise.

    Returns:
        What computes them all.

    Raises:
        DeviceError: if the device refuses a graph, or a layer has what it takes not.
    """
    from edgespec.runtime.engines.portable.layerwise import HostLayer, LayerwiseGraph, OneLayerGraph

    engine, _ = _opened(device)
    gpu = cast("Gpu", engine)
    alike = dict[Path | bytes, OneLayerGraph]()
    layers = []
    for number, (path, key_scale) in enumerate(zip(graphs, key_scales, strict=True)):
        file = GraphFile(path, apart=True)
        if file.source not in alike:
            runner = gpu.open(file, 1, None)
            alike[file.source] = OneLayerGraph(engine.name, file, runner, _sizes(engine, file))
        layers.append(HostLayer(number, alike[file.source], file.weights, key_scale))
    return LayerwiseGraph(gpu, entering, layers, told)


def accuracy_level(device: str) -> int:
    """Returns the `accuracy_level` that products in blocks of a device's graph should have."""
    return 4 if device.partition("#")[0] == "cpu" else 0  # 4 rounds activations to 8 bits


def fused_operators(device: str) -> frozenset[str] | None:
    """Returns what fused operators do on a device, see `edgespec.bundle.options.GraphForm`.

    Returns:
        None if its graph has standard operators, as where shapes are fixed.

    Raises:
        DeviceError: as `open_graph`.
    """
    engine, shape = _opened(device)
    return engine.fused if shape is None else None


def fused_forms() -> dict[str, frozenset[str] | None]:
    """Returns what fused operators do on each kind of device, whether or not there is one here."""
    forms = dict[str, frozenset[str] | None]()
    for device, ((module, kind, _), _) in _ENGINES.items():
        with suppress(ImportError):
            forms[device.partition(":")[0]] = _class_of(module, kind).fused
    return forms


def find_devices() -> list[Device]:
    """Returns all devices that there is an engine for, with the reason where one has none."""
    found = [examined(name) for name in DEVICES]
    if next(each for each in found if each.name == "cuda:0").reason is None:
        for number in count(1):
            further = examined(f"cuda:{number}")
            if further.reason is not None:
                break
            found.append(further)
    return found


def best_gpu() -> str | None:
    """Returns the name of the best GPU that can be used; None if there is none."""
    return next((name for name in _GPUS if examined(name).reason is None), None)


def examined(name: str) -> Device:
    """Returns a device, with the reason if it cannot be used."""
    new = not name.startswith(_PROVEN)
    try:
        engine, shape = _opened(name)
    except DeviceError as error:
        reason = re.sub(r"^device [\w:-]+: ", "", str(error))
        return Device(name, reason=reason, experimental=new)
    rows, slots = (None, None) if shape is None else shape
    return Device(
        name,
        engine.hardware,
        engine.version,
        engine.own_bytes,
        slots=slots,
        rows=rows,
        half=engine.half,
        halves=engine.half is None and "halves" in (engine.fused or ()),
        layerwise=engine.queues and shape is None,
        experimental=new,
    )


def _sizes(engine: GraphEngine, file: GraphFile) -> tuple[int, ...]:
    """Returns the numbers of rows of an engine's calls of a graph; none: it may have any."""
    most = [file.most_rows, engine.fused_rows if file.in_order else None]
    least = min((each for each in most if each is not None), default=None)
    return tuple(each for each in engine.rows if least is None or each <= least)


def _class_of(module: str, kind: str) -> Any:
    return getattr(import_module(f"{__name__}.{module}"), kind)


def _opened(device: str) -> tuple[GraphEngine, Shape | None]:
    """Returns the engine of a device, and the shape of calls if it is fixed.

    Raises:
        DeviceError: as `open_graph`.
    """
    parsed = _NAME.fullmatch(device)
    base = parsed["device"] + (parsed["number"] or "") if parsed else ""
    first = re.sub(r":\d+$", ":0", _SHORT.get(base, base))
    if parsed is None or first not in _ENGINES:
        raise DeviceError(f"device {device!r} is not known: use one of {', '.join(DEVICES)}")
    (module, kind, install), arguments = _ENGINES[first]
    if parsed["number"]:
        arguments = (int(parsed["number"][1:]),)
    try:
        made = _class_of(module, kind)
    except ImportError as error:
        raise DeviceError(f"device {base}: {error}: {install}, or use --device cpu") from error
    engine: GraphEngine = made(*arguments)
    if not parsed["rows"]:
        return engine, engine.shape
    shape = Shape(int(parsed["rows"]), int(parsed["slots"]))
    if not 1 <= shape.rows <= shape.capacity:
        raise DeviceError(f"device {device}: give rows and a capacity that holds them, as #16x1024")
    return engine, shape
