"""Switches off the telemetry of the engines' libraries.

Both libraries send data by default. ONNX Runtime (from 1.29 on) uploads data about each process,
session and model, and keeps an identifier of the machine in the user's cache folder. OpenVINO's
package reports each import to Google Analytics, from a copy of the process or, on macOS, by running
the user's script again.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def switch_off() -> None:
    """Switches off telemetry of libraries that this process or its children import from now on."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    modules: dict[str, Any] = sys.modules
    modules.setdefault("openvino_telemetry", None)  # OpenVINO works without this module
