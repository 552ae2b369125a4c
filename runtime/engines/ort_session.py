"""What the engines of ONNX Runtime share: sessions, and buffers for what calls return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import StageFile, row_count
from edgespec.runtime.engines.optional import Assignment
from edgespec.runtime.shapes import ROW_BUCKETS

# What may be left to the CPU: these read a tensor's shape, which is known there.
_SHAPE_ONLY = frozenset({"Shape", "Size"})

ort.disable_telemetry_events()  # another package may have imported it before `telemetry`


def session_options(threads: int) -> Any:
    """What all sessions have in common."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A pattern is planned for every shape and holds room for all of its tensors at once.
    options.enable_mem_pattern = False
    return options


def open_session(
    graph: Path | bytes, options: Any, providers: Any = None, name: str | None = None
) -> Any:
    """A session over an ONNX file, or one in memory.

    Args:
        graph: the file.
        options: of the session.
        providers: in the order in which they are asked to run nodes.
        name: what messages call it; None: see `name_of`.

    Raises:
        DeviceError: if ONNX Runtime refuses it.
    """
    try:
        source = graph if isinstance(graph, bytes) else str(graph)
        # Its own fallback would print to stdout and go on with another device.
        return ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions share no base class but this
        raise DeviceError(
            f"{name or name_of(graph)}: ONNX Runtime {ort.__version__} refused it "
            f"({first_line(error)}): try another --device, or export it again"
        ) from error


def look_for_data_beside(graph: Path, options: Any) -> None:
    """Have a session over a graph in memory find the data that this file's graph refers to."""
    folder = str(graph.parent.absolute())
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)


def record_assignment(options: Any) -> None:
    """Have a session with these options tell where its nodes run."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")


def assigned(session: Any, provider: str) -> Assignment:
    """Which nodes run with this execution provider; see `record_assignment`."""
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
            if name != provider and node.op_type not in _SHAPE_ONLY
        ),
    )


def name_of(graph: Path | bytes) -> str:
    """What messages call a graph."""
    return "the cache's graph" if isinstance(graph, bytes) else str(graph)


def first_line(error: Exception) -> str:
    """The gist of an exception of ONNX Runtime's."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def result_arrays(stage: StageFile, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """An array on the host for each of the stage's results but `new_kv`."""
    return {
        each.name: np.empty((rows, *each.shape), each.dtype)
        for each, rows in zip(stage.results, _result_rows(stage, feeds), strict=True)
    }


def new_kv_shape(stage: StageFile, feeds: Mapping[str, Array]) -> tuple[int, ...]:
    """[layers, 2, KV, S, hd]."""
    layers, pair, heads, width = stage.cache_shape
    return (layers, pair, heads, row_count(feeds), width)


class HostRoom:
    """Memory for what calls of any shape return, one after the other.

    Room for the largest, since the system gives memory only as it is written.

    Args:
        stage: whose results.
    """

    def __init__(self, stage: StageFile) -> None:
        most = ROW_BUCKETS[-1]
        self._stage = stage
        self._results = [np.empty((most, *each.shape), each.dtype) for each in stage.results]
        self._new_kv = np.empty(most * math.prod(stage.cache_shape), stage.kv_dtype)

    def outputs(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], Array]:
        """Arrays for a call's results but `new_kv`, by name, and one for `new_kv`."""
        rows = _result_rows(self._stage, feeds)
        parts = zip(self._stage.results, self._results, rows, strict=True)
        shape = new_kv_shape(self._stage, feeds)
        new_kv = self._new_kv[: math.prod(shape)].reshape(shape)
        return {each.name: array[:n] for each, array, n in parts}, new_kv


def _result_rows(stage: StageFile, feeds: Mapping[str, Array]) -> list[int]:
    sizes = {"S": row_count(feeds), "R": len(feeds.get("logit_rows", ()))}
    return [sizes[each.rows] for each in stage.results]


def bind_host_input(binding: Any, name: str, array: Array) -> None:
    """Have every call read this array, which the caller keeps alive."""
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_host_output(binding: Any, name: str, array: Array) -> None:
    """Have every call write this array, which the caller keeps alive."""
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
