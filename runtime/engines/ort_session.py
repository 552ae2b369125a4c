"""What all engines of ONNX Runtime share."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import onnxruntime as ort

from edgespec.errors import DeviceError, first_line
from edgespec.runtime.arrays import Array, Floats
from edgespec.system.processes import listen_for_forks

# These operators may run on the CPU: they only read a tensor's shape, which is known there.
_SHAPE_ONLY = frozenset({"Shape", "Size"})

# What C++ and the system say where memory or threads' stacks cannot be had, as under `ulimit -v`.
_NO_MEMORY = ("bad_alloc", "Cannot allocate memory", "Failed to allocate memory")


class _OpenSessions:
    """The sessions of this process; one that is forked from it keeps them to its end.

    To end one would wait for its threads, which the forked process lacks, forever.
    """

    def __init__(self) -> None:
        self._sessions = WeakSet[ort.InferenceSession]()
        listen_for_forks(self)

    def add(self, session: ort.InferenceSession) -> None:
        """Takes in a session that was opened."""
        self._sessions.add(session)

    def after_fork(self) -> None:
        """See `ForkListener`."""
        for session in list(self._sessions):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


_SESSIONS = _OpenSessions()

ort.disable_telemetry_events()  # another package may have imported it before it was switched off


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
        MemoryError: if memory does not suffice.
    """
    try:
        source = graph if isinstance(graph, bytes) else str(graph)
        # ONNX Runtime's own fallback would print to stdout and use another device.
        session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions have no narrower base class
        if any(each in str(error) for each in _NO_MEMORY):
            raise MemoryError(first_line(error)) from error
        raise DeviceError(
            f"{name or name_of(graph)}: ONNX Runtime {ort.__version__} refused it "
            f"({first_line(error)}): try another --device, or export it again"
        ) from error
    _SESSIONS.add(session)
    return session


class CpuSession:
    """A session on threads of the processor, which a process that was forked opens anew.

    Between passes its threads stop, since they would take the processor from drafting and sampling.

    Args:
        graph: path of an ONNX file, or its content.
        options: options of the session.
        name: the graph's name in messages; None: that of `name_of`.

    Attributes:
        run: makes a pass: takes names of outputs (None: all) and inputs by name, and returns the
            outputs in order.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
    """

    run: Callable[[Sequence[str] | None, Mapping[str, Array]], list[Floats]]

    def __init__(self, graph: Path | bytes, options: Any, name: str | None = None) -> None:
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._open = partial(open_session, graph, options, ["CPUExecutionProvider"], name)
        self._session = self._open()
        self.run = self._session.run
        listen_for_forks(self)

    def get_inputs(self) -> Any:
        """Returns the inputs, with their names and types."""
        return self._session.get_inputs()

    def get_outputs(self) -> Any:
        """Returns the outputs, with their names and types."""
        return self._session.get_outputs()

    def run_bound(self, bind: Callable[[Any], None]) -> Any:
        """Makes a pass whose inputs and outputs a function binds; returns the binding."""
        if self.run == self._run_anew:
            self._renew()
        binding = self._session.io_binding()
        bind(binding)
        self._session.run_with_iobinding(binding)
        return binding

    def after_fork(self) -> None:
        """See `ForkListener`: the threads of the session so far are not here."""
        self.run = self._run_anew

    def _run_anew(self, outputs: Sequence[str] | None, inputs: Mapping[str, Array]) -> list[Floats]:
        self._renew()
        return self.run(outputs, inputs)

    def _renew(self) -> None:
        self._session = self._open()
        self.run = self._session.run


def look_for_data_beside(graph: Path, options: Any) -> None:
    """Sets the folder in which a session over a graph in memory finds its external data."""
    folder = str(graph.parent.absolute())
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)


def open_wholly(
    graph: Path | bytes,
    options: Any,
    providers: Any,
    device: str,
    provider: str,
    places: Collection[str] = (),
) -> Any:
    """Opens a session whose computing nodes all run on a device: data would cross in each pass.

    Args:
        graph: path of an ONNX file, or its content.
        options: options of the session.
        providers: execution providers; None: those of the options.
        device: name of the device.
        provider: name of its execution provider.
        places: names of nodes that may run on the CPU, since they only compute where rows are.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph, or would leave a node to the CPU.
    """
    options.log_severity_level = 4  # failures are raised, so no log is needed
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = open_session(graph, options, providers)
    left = sorted(
        {
            node.op_type
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
            if part.ep_name != provider
            and node.op_type not in _SHAPE_ONLY
            and node.name not in places
        }
    )
    if left:
        raise DeviceError(
            f"{name_of(graph)}: {device} has no {', '.join(left)}, which would be left to the CPU: "
            "use another device"
        )
    return session


def name_of(graph: Path | bytes) -> str:
    """Returns a graph's name for messages."""
    return "the cache's graph" if isinstance(graph, bytes) else str(graph)


def bind_host_input(binding: Any, name: str, array: Array) -> None:
    """Binds an input to this array, which the caller must keep alive."""
    binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_host_output(binding: Any, name: str, array: Array) -> None:
    """Binds an output to this array, which the caller must keep alive."""
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


@contextmanager
def silenced(stream: int) -> Iterator[None]:
    """Discards what this process writes to stdout (1) or stderr (2), from C libraries too."""
    try:
        kept = os.dup(stream)
    except OSError:  # the stream is closed
        yield
        return
    _flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, stream)
        os.close(kept)
        os.close(nowhere)


def _flush() -> None:
    """Flushes Python's and C's buffers to the current streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    with suppress(OSError, AttributeError, TypeError):  # no C library is found this way
        ctypes.CDLL(None).fflush(None)
