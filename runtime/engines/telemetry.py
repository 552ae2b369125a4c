"""Keeps the engines' libraries from telling their makers what runs here.

Both do so unasked. ONNX Runtime (from 1.29 on) uploads facts of each process, session and model,
and keeps an identifier of the machine in the user's cache folder. OpenVINO's package reports each
import to Google Analytics, by a copy of the process or, on macOS, by the user's script run anew.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def switch_off() -> None:
    """Have libraries that are imported from now on, here and in processes begun here, be silent."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    modules: dict[str, Any] = sys.modules
    modules.setdefault("openvino_telemetry", None)  # OpenVINO does without where it is not there
