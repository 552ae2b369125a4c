"""Converts one ONNX stage to OpenVINO's own format: ``python -P openvino_ir.py IN.onnx OUT.xml``.

Runs as a program of its own and imports nothing of the package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # see telemetry.py
import openvino as ov  # noqa: E402


def convert(graph: Path, output: Path) -> None:
    """Writes `output` (.xml and .bin); both files appear only when they are complete."""
    partial = output.with_name(f"{output.stem}.partial-{os.getpid()}.xml")
    try:
        model = ov.Core().read_model(str(graph))
        _widen_scales(model)
        ov.save_model(model, str(partial), compress_to_fp16=False)
        partial.with_suffix(".bin").replace(output.with_suffix(".bin"))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
        partial.with_suffix(".bin").unlink(missing_ok=True)


def _widen_scales(model: ov.Model) -> None:
    """Stores the scales of products as float32, so that they are mapped from the file.

    Otherwise each process would widen its own copy when it compiles the stage.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Convert":
            continue
        scales = node.input_value(0).get_node()
        if scales.get_friendly_name().endswith(".scales"):
            wide = ov.opset13.constant(scales.data.astype(np.float32))
            node.output(0).replace(wide.output(0))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
