"""What is seen to before a library of an engine is used: an ONNX Runtime that works, silently."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgespec.errors import DeviceError, reason

OLDEST_ONNXRUNTIME = (1, 30)
"""As pyproject.toml asks of pip."""

REINSTALL = "pip install --upgrade --force-reinstall --no-deps"
"""Before the name of a distribution of ONNX Runtime: brings back files that another replaced."""


def switch_off_telemetry() -> None:
    """Switches off telemetry of libraries that this process or its children import from now on.

    Both libraries send data by default. ONNX Runtime (from 1.29 on) uploads data about each
    process, session and model, and keeps an identifier of the machine in the user's cache folder.
    OpenVINO's package reports each import to Google Analytics, from a copy of the process or, on
    macOS, by running the user's script again.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    modules: dict[str, Any] = sys.modules
    modules.setdefault("openvino_telemetry", None)  # OpenVINO works without this module


def require_onnxruntime() -> None:
    """Imports ONNX Runtime and checks that it can be used.

    All its distributions install the same folder, and other packages may require another one than
    edgespec does. Each brings the whole folder, so the one that was installed last works. What it
    lacks, such as CUDA, is an error of the devices that need it.

    Raises:
        DeviceError: if it is missing, cannot be loaded, or is too old.
    """
    try:
        library = import_module("onnxruntime")
    except (ImportError, OSError) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime"
        why = "is not installed" if absent else f"cannot be loaded ({reason(error)})"
        raise DeviceError(f"ONNX Runtime {why}: {_remedy()}") from error
    there = getattr(library, "__version__", None)
    if there is None:  # a folder that pip has emptied can be imported, too
        raise DeviceError(f"the files of ONNX Runtime are missing: {_remedy()}")
    found = re.match(r"(\d+)\.(\d+)", there)
    if found and (int(found[1]), int(found[2])) < OLDEST_ONNXRUNTIME:
        oldest = ".".join(map(str, OLDEST_ONNXRUNTIME))
        raise DeviceError(
            f"ONNX Runtime {there} is too old: edgespec needs {oldest} or newer: {_remedy()}"
        )


def _remedy() -> str:
    try:
        version("onnxruntime-gpu")
    except PackageNotFoundError:
        return f"{REINSTALL} onnxruntime"
    return f"{REINSTALL} onnxruntime-gpu"
