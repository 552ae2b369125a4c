"""Makes bundles of quantized ONNX graphs out of checkpoints, without torch; `make` is the entry."""

from __future__ import annotations

from edgespec.bundle.options import ExportOptions
from edgespec.export.adopted.source import export_by_optimum, find_onnx, open_onnx
from edgespec.export.adopted.writer import write_adopted
from edgespec.export.calibration.calibrate import Calibrate, Texts, calibrate, last_rows
from edgespec.export.calibration.damage import CalibrationResult
from edgespec.export.calibration.forward import Open
from edgespec.export.exporter import ExportReport, check_skipped
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.export.heads.draft_head import DraftHead
from edgespec.export.make import NO_DRAFT, PartialBundle, ReadyTarget, make, partial_bundle
from edgespec.export.role import Progress
from edgespec.export.sources.hub import file_sizes, resolve_checkpoint, source_name
from edgespec.export.sources.search import HubRepository, search_hub

__all__ = [
    "NO_DRAFT",
    "Calibrate",
    "CalibrationResult",
    "DraftHead",
    "ExportOptions",
    "ExportReport",
    "HubRepository",
    "Open",
    "PartialBundle",
    "Progress",
    "ReadyTarget",
    "RoundedMatrices",
    "Texts",
    "calibrate",
    "check_skipped",
    "export_by_optimum",
    "file_sizes",
    "find_onnx",
    "last_rows",
    "make",
    "open_onnx",
    "partial_bundle",
    "resolve_checkpoint",
    "search_hub",
    "source_name",
    "write_adopted",
]
