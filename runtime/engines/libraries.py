"""What is seen to before a library of an engine is imported: one ONNX Runtime, and no telemetry."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from edgespec.errors import DeviceError

# All of them install the folder `onnxruntime`.
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-gpu")


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


def require_one_onnxruntime() -> None:
    """Refuses an environment in which distributions have overwritten each other's files.

    Raises:
        DeviceError: if several distributions of ONNX Runtime are installed, or none is left whole.
    """
    found = [name for name in _DISTRIBUTIONS if _is_installed(name)]
    if len(found) > 1:
        raise DeviceError(
            f"{' and '.join(found)} are installed and overwrite each other's files: "
            f"pip uninstall -y {' '.join(found)} && pip install {found[-1]}"
        )
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:  # a folder without files is a namespace
        again = f"pip install --force-reinstall --no-deps {(found or _DISTRIBUTIONS)[0]}"
        raise DeviceError(f"the files of ONNX Runtime are missing: {again}")


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True
