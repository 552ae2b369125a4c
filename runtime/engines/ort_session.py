"""Parts that all ONNX Runtime engines share: sessions, and buffers for the results of calls."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgespec.bundle.caches import TEXT_ROWS
from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import StageFile, StageOutputs, row_count
from edgespec.runtime.engines.optional import Assignment
from edgespec.runtime.shapes import ROW_BUCKETS

# These operators may run on the CPU: they only read a tensor's shape, which is known there.
_SHAPE_ONLY = frozenset({"Shape", "Size"})

ort.disable_telemetry_events()  # another package may have imported it before `telemetry`


def session_options(threads: int) -> Any:
    """Returns the options that all sessions have in common."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Memory patterns would keep a plan for every shape, with memory for all of its tensors at once.
    options.enable_mem_pattern = False
    return options


def open_session(
    graph: Path | bytes, options: Any, providers: Any = None, name: str | None = None
) -> Any:
    """Opens a session.

    Args:
        graph: path of an ONNX file, or its content.
        options: options of the session.
        providers: execution providers, in the order in which they may claim nodes.
        name: the graph's name in messages; None: that of `name_of`.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
    """
    try:
        source = graph if isinstance(graph, bytes) else str(graph)
        # ONNX Runtime's own fallback would print to stdout and use another device.
        return ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions have no narrower base class
        raise DeviceError(
            f"{name or name_of(graph)}: ONNX Runtime {ort.__version__} refused it "
            f"({first_line(error)}): try another --device, or export it again"
        ) from error


def look_for_data_beside(graph: Path, options: Any) -> None:
    """Sets the folder in which a session over a graph in memory finds its external data."""
    folder = str(graph.parent.absolute())
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)


def record_assignment(options: Any) -> None:
    """Lets sessions with these options record where their nodes run, see `assigned`."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def assigned(session: Any, provider: str, places: Collection[str] = ()) -> Assignment:
    """Returns which nodes run with this execution provider; needs `record_assignment`.

    Args:
        session: the session.
        provider: name of the provider.
        places: names of nodes that may run on the CPU, since they only compute where rows are.
    """
    parts = [
        (part.ep_name, node)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    return Assignment(
        here=tuple(node.op_type for name, node in parts if name == provider),
        elsewhere=tuple(
            f"{node.name or 'unnamed'} ({node.op_type})"
            for name, node in parts
            if name != provider and node.op_type not in _SHAPE_ONLY and node.name not in places
        ),
    )


def name_of(graph: Path | bytes) -> str:
    """Returns a graph's name for messages."""
    return "the cache's graph" if isinstance(graph, bytes) else str(graph)


def first_line(error: Exception) -> str:
    """Returns the first line of an exception's message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def result_arrays(stage: StageFile, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Allocates a host array for each of the stage's results except new rows of the cache."""
    return {
        each.name: np.empty((rows, *each.shape), each.dtype)
        for each, rows in zip(stage.results, _result_rows(stage, feeds), strict=True)
    }


def new_kv_shapes(stage: StageFile, feeds: Mapping[str, Array]) -> list[tuple[int, ...]]:
    """Returns the shapes of a call's new rows of each group.

    They are [layers, 2, KV, S, hd], or [layers, 2, T, KV, L, hd] if calls hold several texts.
    """
    *texts, rows = feeds[TEXT_ROWS].shape if stage.several_texts else (row_count(feeds),)
    return [
        (len(group.layers), 2, *texts, group.kv_heads, rows, group.head_dim)
        for group in stage.cache_groups
    ]


class HostRoom:
    """Host memory for the results of calls, shared by calls of all shapes.

    It has the size of the largest call; the system provides memory only when it is written.

    Args:
        stage: the stage whose results it holds.
    """

    def __init__(self, stage: StageFile) -> None:
        most = ROW_BUCKETS[-1]
        self._stage = stage
        self._results = [np.empty((most, *each.shape), each.dtype) for each in stage.results]
        self._places = most
        self._new_kv = self._new_kv_room()
        widths = [shape.width for shape in stage.recurrent.values()]
        self._new_rows = [np.empty((most, width), np.float32) for width in widths]

    def outputs(self, feeds: Mapping[str, Array]) -> StageOutputs:
        """Returns arrays for a call's results."""
        rows = _result_rows(self._stage, feeds)
        parts = zip(self._stage.results, self._results, rows, strict=True)
        shapes = new_kv_shapes(self._stage, feeds)
        places = feeds[TEXT_ROWS].size if self._stage.several_texts else 0
        if places > self._places:
            self._places = places
            self._new_kv = self._new_kv_room()
        new_kv = [
            array[: math.prod(shape)].reshape(shape)
            for array, shape in zip(self._new_kv, shapes, strict=True)
        ]
        results = {each.name: array[:n] for each, array, n in parts}
        new_rows = [each[: row_count(feeds)] for each in self._new_rows]
        return StageOutputs(results, new_kv, new_rows, self._stage.several_texts)

    def _new_kv_room(self) -> list[Array]:
        groups = self._stage.cache_groups
        return [np.empty(self._places * each.width, each.dtype) for each in groups]


def call_shape(feeds: Mapping[str, Array]) -> tuple[int, ...]:
    """Returns what calls of one shape have in common: rows, rows with logits, texts."""
    texts = feeds[TEXT_ROWS].shape if TEXT_ROWS in feeds else ()
    return row_count(feeds), len(feeds.get("logit_rows", ())), *texts


def _result_rows(stage: StageFile, feeds: Mapping[str, Array]) -> list[int]:
    sizes = {"S": row_count(feeds), "R": len(feeds.get("logit_rows", ()))}
    return [sizes[each.rows] for each in stage.results]


def bind_host_input(binding: Any, name: str, array: Array) -> None:
    """Binds an input to this array, which the caller must keep alive."""
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_host_output(binding: Any, name: str, array: Array) -> None:
    """Binds an output to this array, which the caller must keep alive."""
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
