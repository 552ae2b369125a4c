"""Qualcomm NPUs with ONNX Runtime's QNN plug-in, and their emulation on x86."""

from __future__ import annotations

import logging
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgespec.bundle import NPU
from edgespec.errors import DeviceError
from edgespec.runtime.engines.base import Executable, StageFile
from edgespec.runtime.engines.cpu.onnxruntime import OnnxRuntimeExecutable
from edgespec.runtime.engines.distributions import require_one_distribution
from edgespec.runtime.engines.fixed import FixedExecutable
from edgespec.runtime.engines.fixed_graph import open_fixed
from edgespec.runtime.engines.host import MIB, available_bytes
from edgespec.runtime.engines.npu.shared import FewShapes
from edgespec.runtime.engines.npu.socs import EMULATED, Soc
from edgespec.runtime.engines.optional import Assignment
from edgespec.runtime.engines.ort_session import (
    assigned,
    open_session,
    record_assignment,
    session_options,
)
from edgespec.runtime.engines.portable.qnn import plug_in
from edgespec.runtime.engines.stdio import silenced
from edgespec.runtime.shapes import Shape, Shapes

_PACKAGE = "onnxruntime-qnn"
_REGISTRATION = "QNNExecutionProvider"

_log = logging.getLogger(__name__)


class Qnn(FewShapes, ABC):
    """Base of the NPU engine and its emulation; a stage is compiled for a few fixed shapes.

    Args:
        shapes: shapes of calls; None: they are chosen later.
        partly: whether nodes that the NPU does not support may run on the CPU; else they are an
            error.

    Raises:
        DeviceError: if the plug-in or the NPU is missing.
        InputError: if there are too many shapes.
    """

    memory = "cpu"
    variant: str | None = NPU
    keeps_states = False
    several_texts = False
    integer_caches = False
    base: str
    library_bytes: int

    def __init__(self, shapes: Shapes | None = None, partly: bool = False) -> None:
        super().__init__(self.base, shapes, "#partly" if partly else "")
        require_one_distribution()
        self._partly = partly
        self._devices = self._find()
        self.version = f"{ort.__version__}+{version(_PACKAGE)}"
        self.compiler = f"{_PACKAGE} {version(_PACKAGE)}"
        self.hardware = self._describe()

    def available_bytes(self) -> int:
        """See `Engine`."""
        return available_bytes()

    def takes(self, device: str, compiler: str) -> bool:
        """See `Fixable`."""
        return self._takes(device) and compiler == self.compiler

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """See `Engine`. Stages already compiled for this NPU are not compiled again."""
        with silenced(1):  # the emulator prints a greeting, which would spoil JSON on stdout
            return FixedExecutable(stage, self.shapes, partial(self._executable, stage))

    def assignment(self, stage: StageFile) -> Assignment:
        """Compiles a stage for the first of the shapes, and returns where its nodes run.

        Raises:
            DeviceError: if the compiler refuses the stage.
        """
        with silenced(1):
            session = self._compiled(stage, self.shapes.all[0])
        return assigned(session, _REGISTRATION)

    def precompile(self, stage: StageFile, shape: Shape, output: Path) -> None:
        """Compiles a stage for a shape into a file (and others beside it), for later loads.

        Raises:
            DeviceError: if the compiler refuses the stage, or leaves a part of it to the CPU.
        """
        context = {
            "ep.context_enable": "1",
            "ep.context_file_path": str(output),
            "ep.context_embed_mode": "0",
        }
        with silenced(1):
            session = self._compiled(stage, shape, context)
        self._require_whole(stage, session)

    @abstractmethod
    def _find(self) -> list[Any]:
        """Returns ONNX Runtime's devices to run on."""

    @abstractmethod
    def _describe(self) -> str:
        """Returns the product name of the hardware."""

    @abstractmethod
    def _takes(self, device: str) -> bool:
        """Returns whether stages compiled for a device may run on this one."""

    def _settings(self) -> dict[str, str]:
        """Returns the options of the plug-in."""
        return {
            "backend_path": _htp_path(),
            "enable_htp_fp16_precision": "1",
            "offload_graph_io_quantization": "0",  # 1 would move it to the CPU
        }

    def _executable(self, stage: StageFile, shape: Shape) -> OnnxRuntimeExecutable:
        return OnnxRuntimeExecutable(self._session(stage, shape), stage)

    def _session(self, stage: StageFile, shape: Shape) -> Any:
        """Opens a session on an already compiled file, or else compiles the stage now."""
        for each in stage.compiled:
            if each.shape != shape or not self._takes(each.device):
                continue
            if each.compiler != self.compiler:
                reason = f"it was compiled by {each.compiler}, but {self.compiler} is installed"
            else:
                try:
                    return open_session(each.graph, self._options())
                except DeviceError as error:
                    reason = f"the plug-in refused it: {error.__cause__}"
            _log.warning("%s cannot be used (%s): compiling again", each.graph.name, reason)
        session = self._compiled(stage, shape)
        self._require_whole(stage, session)
        return session

    def _compiled(
        self, stage: StageFile, shape: Shape, config: Mapping[str, str] | None = None
    ) -> Any:
        options = self._options()
        record_assignment(options)
        for key, value in (config or {}).items():
            options.add_session_config_entry(key, value)
        return open_fixed(stage, shape, options)

    def _options(self) -> Any:
        options = session_options(threads=1)
        options.log_severity_level = 4  # failures are raised, so no log is needed
        options.add_provider_for_devices(self._devices, self._settings())
        return options

    def _require_whole(self, stage: StageFile, session: Any) -> None:
        """Refuses a session with nodes on the CPU: data would cross to it and back in each call."""
        if self._partly:
            return
        found = assigned(session, _REGISTRATION)
        if found.elsewhere:
            raise DeviceError(
                f"{stage.graph}: {self.name} would leave {found.elsewhere_in_short()} to the CPU: "
                f"see `edgespec inspect --device {self.base}`, or allow it by {self.name}#partly"
            )


class QnnNpu(Qnn):
    """The NPU of a Snapdragon."""

    base = "qnn:npu"
    library_bytes = 64 * MIB  # an estimate, not measured

    def _find(self) -> list[Any]:
        found = [each for each in _devices() if each.device.type.name == "NPU"]
        if not found:
            raise DeviceError(
                f"device {self.base}: no Qualcomm NPU was found: use --device cpu, or "
                "qnn:emulated to try without one"
            )
        return found

    def _describe(self) -> str:
        hardware = self._devices[0].device
        return " ".join(str(hardware.metadata.get("Description") or hardware.vendor).split())

    def _takes(self, device: str) -> bool:
        # The machine does not tell the NPU's model; the plug-in refuses files of another one.
        return device.startswith("qnn:")

    def _settings(self) -> dict[str, str]:
        return super()._settings() | {"htp_performance_mode": "burst"}


class QnnEmulated(Qnn):
    """Compiles for an NPU and emulates it on an x86 processor, which is very slow.

    It shows what an NPU computes, but not its speed.

    Args:
        shapes: shapes of calls; None: they are chosen later.
        partly: see `Qnn`.
        soc: the system on a chip whose NPU is emulated.
    """

    base = "qnn:emulated"
    library_bytes = 300 * MIB

    def __init__(
        self, shapes: Shapes | None = None, partly: bool = False, soc: Soc = EMULATED
    ) -> None:
        self._soc = soc
        super().__init__(shapes, partly)

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """See `Engine`."""
        _warn_of_emulation(self.base)
        return super().compile(stage, threads)

    def _find(self) -> list[Any]:
        if platform.machine().lower() not in ("x86_64", "amd64"):
            raise DeviceError(
                f"device {self.base}: it needs an x86-64 processor, this is {platform.machine()}: "
                "use qnn:npu"
            )
        return _devices()

    def _describe(self) -> str:
        return f"{self._soc.product}'s NPU, emulated on the CPU: slow"

    def _takes(self, device: str) -> bool:
        return device == self._soc.device

    def _settings(self) -> dict[str, str]:
        # Without these two the plug-in silently leaves everything to the CPU.
        soc = {"soc_model": str(self._soc.model), "htp_arch": str(self._soc.arch)}
        return super()._settings() | soc


@cache
def _warn_of_emulation(device: str) -> None:
    _log.warning("%s emulates an NPU on the CPU: results are right, but slow", device)


def _htp_path() -> str:
    """Returns the path of the library that compiles for, and drives or emulates, the NPU."""
    return str(plug_in().get_qnn_htp_path())


def _devices() -> list[Any]:
    plug_in()
    return [each for each in ort.get_ep_devices() if each.ep_name == _REGISTRATION]
