"""Native graphs: operators of our own, in ONNX Runtime on the CPU."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import onnxruntime as ort

from edgespec.bundle import FEATURES
from edgespec.errors import DeviceError, first_line
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.engines.callers import raise_if_callers
from edgespec.runtime.engines.ort_session import (
    CpuSession,
    look_for_data_beside,
    session_options,
)
from edgespec.runtime.kernels import kernel_name, use_threads
from edgespec.system.machine import busy_seconds, extensions, usable_processors
from edgespec.system.processes import listen_for_forks

_SECONDS = 0.25  # between two looks, so that clock ticks of 10 ms are a few per cent of a processor
_STALE = 2.0  # what happened in a longer time says little about now
_ROUND = 0.5  # to the nearest whole processor
_AGAIN = 4.0  # seconds until all threads compete again, to see what others take then


def arithmetic() -> tuple[object, ...]:
    """Returns what the bits of native graphs depend on besides the weights; see its `repr`."""
    return ort.__version__, platform.machine(), extensions(), kernel_name()


class ThreadLimit:
    """Keeps as many threads as there are processors that other programs leave.

    A thread whose processor another program takes is stopped in the midst of its part of a product,
    for milliseconds, and all others wait for it. What others take counts while all threads compete
    with them: many programs take whatever is left to them, those at low priority among them.

    Args:
        use: is told how many threads may compute at once, whenever that changes.
        clock: seconds, of any beginning.
        taken: see `busy_seconds`.
        processors: how many this process may use; None: all of `usable_processors`.
    """

    def __init__(
        self,
        use: Callable[[int], None] = use_threads,
        clock: Callable[[], float] = time.monotonic,
        taken: Callable[[], tuple[float, float]] = busy_seconds,
        processors: int | None = None,
    ) -> None:
        self._use = use
        self._clock = clock
        self._taken = taken
        self._processors = processors or len(usable_processors())
        self._known = -_STALE
        self._before = 0.0, 0.0
        self._threads = self._processors
        self._again = 0.0
        self.after_fork()
        listen_for_forks(self)

    def after_fork(self) -> None:
        """See `ForkListener`."""
        self._lock = threading.RLock()  # other models' threads look, too

    def adapt(self) -> None:
        """Looks how busy other programs are, unless it did so just now."""
        with self._lock:
            self._look(self._clock())

    def _look(self, now: float) -> None:
        passed = now - self._known
        if passed < _SECONDS:
            return
        before = self._before
        self._before = self._taken()
        self._known = now
        if passed > _STALE:
            return
        every, own = (new - old for new, old in zip(self._before, before, strict=True))
        others = max(0.0, every - max(0.0, own)) / passed
        left = max(1, min(self._processors, int(self._processors - others + _ROUND)))
        if self._threads == self._processors or left > self._threads:
            self._let(left, now)
        elif now > self._again:
            self._let(self._processors, now)

    def _let(self, threads: int, now: float) -> None:
        if threads != self._threads:
            self._threads = threads
            self._again = now + _AGAIN
            self._use(threads)


class NativeGraph:
    """A native graph in a session of ONNX Runtime.

    Weights are computed with where the file is mapped, so loading reads nothing but the graph.

    Args:
        graph: ONNX file, beside the file of its weights, or the content of a graph.
        library: library of the operators.
        threads: number of threads.
        features: whether `features` is among the results, where the graph gives them.
        whole: file that the content is a part of, see `parts`; None: it has all weights itself.
        beside: further weights that the graph names, by name.

    Raises:
        DeviceError: if ONNX Runtime refuses the library or the graph.
    """

    def __init__(
        self,
        graph: Path | bytes,
        library: Path,
        threads: int,
        features: bool = False,
        whole: Path | None = None,
        beside: Mapping[str, Array] | None = None,
    ) -> None:
        options = session_options(threads)
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:  # its exceptions have no narrower base class
            raise DeviceError(
                f"{library}: ONNX Runtime refused the operators ({first_line(error)}): install "
                "edgespec again"
            ) from error
        if whole is not None:
            look_for_data_beside(whole, options)
        self._beside = beside  # whose memory the session reads
        if beside:
            values = [ort.OrtValue.ortvalue_from_numpy(each) for each in beside.values()]
            options.add_external_initializers([*beside], values)
        name = None if whole is None else str(whole)
        self._session = CpuSession(graph, options, name)
        self._inputs = [each.name for each in self._session.get_inputs()]
        names = [each.name for each in self._session.get_outputs()]
        self._outputs = [name for name in names if features or name != FEATURES]

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Floats]:
        """Makes a pass.

        Args:
            feeds: inputs by name, among others. Pools must be C-contiguous; the graph writes to
                them.

        Returns:
            Outputs by name, such as `logits` [R, V] float32 of the rows that were asked for.

        Raises:
            DeviceError: if an operator refuses its inputs.
        """
        _LIMIT.adapt()
        try:
            read = {name: feeds[name] for name in self._inputs}
            results = self._session.run(self._outputs, read)
        except Exception as error:
            raise_if_callers(error)
            raise DeviceError(f"a pass failed ({first_line(error)}): please report it") from error
        return dict(zip(self._outputs, results, strict=True))


_LIMIT = ThreadLimit()  # of all graphs of this process
