"""Converts one ONNX stage to OpenVINO's own format: ``python -P openvino_ir.py IN.onnx OUT.xml``.

Runs as a program of its own and imports nothing of the package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import openvino as ov


def convert(graph: Path, output: Path) -> None:
    """Write `output` (.xml and .bin); both appear only when they are complete."""
    partial = output.with_name(f"{output.stem}.partial-{os.getpid()}.xml")
    try:
        ov.save_model(ov.Core().read_model(str(graph)), str(partial), compress_to_fp16=False)
        partial.with_suffix(".bin").replace(output.with_suffix(".bin"))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
        partial.with_suffix(".bin").unlink(missing_ok=True)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
