"""Exports checkpoints to bundles of quantized ONNX graphs, without torch."""

from __future__ import annotations

from edgespec.bundle.options import ExportOptions
from edgespec.export.adopted.source import export_by_optimum, find_onnx, open_onnx
from edgespec.export.adopted.writer import write_adopted
from edgespec.export.calibration.calibrate import (
    Calibrate,
    CalibrationResult,
    Texts,
    calibrate,
    last_rows,
)
from edgespec.export.calibration.forward import Open
from edgespec.export.destination import replacing
from edgespec.export.exporter import (
    ExportReport,
    attach_model,
    check_skipped,
    export_bundle,
    write_bundle,
)
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.export.heads.attach import attach_head, copy_bundle, copy_with_taps
from edgespec.export.heads.draft_head import DraftHead
from edgespec.export.role import Progress
from edgespec.export.sources.hub import resolve_checkpoint, source_name

__all__ = [
    "Calibrate",
    "CalibrationResult",
    "DraftHead",
    "ExportOptions",
    "ExportReport",
    "Open",
    "Progress",
    "RoundedMatrices",
    "Texts",
    "attach_head",
    "attach_model",
    "calibrate",
    "check_skipped",
    "copy_bundle",
    "copy_with_taps",
    "export_bundle",
    "export_by_optimum",
    "find_onnx",
    "last_rows",
    "open_onnx",
    "replacing",
    "resolve_checkpoint",
    "source_name",
    "write_adopted",
    "write_bundle",
]
