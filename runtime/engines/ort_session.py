"""Parts that all ONNX Runtime engines share: sessions, and buffers for the results of calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array

# These operators may run on the CPU: they only read a tensor's shape, which is known there.
_SHAPE_ONLY = frozenset({"Shape", "Size"})

ort.disable_telemetry_events()  # another package may have imported it before


@dataclass(frozen=True)
class Assignment:
    """Where the nodes of a graph run.

    Attributes:
        here: kinds of nodes that the device runs.
        elsewhere: nodes that are left to the CPU, as `name (kind)`.
    """

    here: tuple[str, ...]
    elsewhere: tuple[str, ...]


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


def bind_host_input(binding: Any, name: str, array: Array) -> None:
    """Binds an input to this array, which the caller must keep alive."""
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_host_output(binding: Any, name: str, array: Array) -> None:
    """Binds an output to this array, which the caller must keep alive."""
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
