"""Qualcomm's NPUs with ONNX Runtime's QNN plug-in, and their emulation on x86."""

from __future__ import annotations

import platform
import re
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.engines.ort_session import (
    open_session,
    open_wholly,
    session_options,
    silenced,
)
from edgespec.runtime.engines.portable.cpu import HostSession, fixed_options
from edgespec.runtime.engines.portable.file import GraphFile, Shape
from edgespec.system.files import sync_file

_PACKAGE = "onnxruntime-qnn"
# --no-deps, since it requires the distribution `onnxruntime`, which would overwrite the GPU one.
_INSTALL = f"pip install --no-deps {_PACKAGE}"
_REGISTRATION = "QNNExecutionProvider"
_COMPILED = "compiled.onnx"
_X_ELITE = {"soc_model": "60", "htp_arch": "73"}  # without them all is left to the CPU


class Qnn:
    """The NPU of a Snapdragon, or on x86 its slow emulation; it needs fixed shapes.

    Args:
        kind: npu or emulated, which shows what the NPU of a Snapdragon X Elite would compute.

    Raises:
        DeviceError: if the plug-in or the NPU is missing.
    """

    own_bytes = None
    fused = None
    fused_rows = None
    queues = False
    rows = ()
    shape = Shape(16, 1024)
    half = True

    def __init__(self, kind: str) -> None:
        self.name = f"qnn:{kind}"
        htp = str(plug_in().get_qnn_htp_path())
        devices = [each for each in ort.get_ep_devices() if each.ep_name == _REGISTRATION]
        self._settings = {"backend_path": htp, "enable_htp_fp16_precision": "1"}
        # 1 would move it to the CPU.
        self._settings["offload_graph_io_quantization"] = "0"
        if kind == "npu":
            devices = [each for each in devices if each.device.type.name == "NPU"]
            self._settings["htp_performance_mode"] = "burst"
        else:
            self._settings |= _X_ELITE
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        if not devices or (kind == "emulated" and not x86):
            raise DeviceError(f"device {self.name}: no Qualcomm NPU was found: use --device cpu")
        self._devices = devices
        self.version = f"{ort.__version__}+{version(_PACKAGE)}"
        metadata = devices[0].device.metadata
        name = "Snapdragon X Elite's NPU, emulated on the CPU: slow"
        self.hardware = str(metadata.get("Description", "NPU")) if kind == "npu" else name

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> HostSession:
        """See `GraphEngine`; what is compiled stays beside the graph, since it takes minutes."""
        assert shape is not None, "the compiler wants one"
        facts = f"{self.name}-{self.hardware}-{self.version}-{shape.rows}x{shape.capacity}"
        made = file.path.parent / re.sub(r"[^\w.+-]+", "-", facts)
        with silenced(1):  # the emulator prints a greeting, which would spoil JSON on stdout
            if not made.is_dir():
                self._compile(file, shape, made)
            options = session_options(threads=1)
            options.add_provider_for_devices(self._devices, self._settings)
            session = open_session(made / _COMPILED, options)
        return HostSession(self.name, session, file)

    def _compile(self, file: GraphFile, shape: Shape, made: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".edgespec-", dir=made.parent) as folder:
            partial = Path(folder) / "compiled"
            partial.mkdir()
            options = fixed_options(file, 1, shape)
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", str(partial / _COMPILED))
            options.add_session_config_entry("ep.context_embed_mode", "0")  # 1 has 2 GB at most
            options.add_provider_for_devices(self._devices, self._settings)
            open_wholly(file.path, options, None, self.name, _REGISTRATION)
            for each in partial.iterdir():
                sync_file(each)
            with suppress(OSError):  # another process was faster
                partial.rename(made)


@cache
def plug_in() -> Any:
    """Returns the plug-in's package, and registers it; a process may do that only once."""
    try:
        import onnxruntime_qnn as plugin
    except ImportError as error:
        raise DeviceError(f"device qnn: {_PACKAGE} is not installed: {_INSTALL}") from error
    ort.set_default_logger_severity(4)  # failures are raised, so no log is needed
    try:
        ort.register_execution_provider_library(_REGISTRATION, plugin.get_library_path())
    except Exception as error:  # its exceptions share no base class but this
        raise DeviceError(
            f"device qnn: ONNX Runtime {ort.__version__} refused {_PACKAGE} {version(_PACKAGE)} "
            f"({error}): {_INSTALL} --upgrade"
        ) from error
    return plugin
