"""From a checkpoint to a bundle of quantized ONNX graphs, without torch."""

from __future__ import annotations

from edgespec.export.calibration import Calibrate, Calibration, Texts, calibrate
from edgespec.export.destination import replacing
from edgespec.export.exporter import (
    BLOCK_SIZES,
    KV_PRECISIONS,
    NPU_PRECISIONS,
    PRECISIONS,
    STORED,
    ExportOptions,
    ExportReport,
    export_bundle,
    write_bundle,
)
from edgespec.export.source import resolve_checkpoint
from edgespec.export.spool import Spool

__all__ = [
    "BLOCK_SIZES",
    "KV_PRECISIONS",
    "NPU_PRECISIONS",
    "PRECISIONS",
    "STORED",
    "Calibrate",
    "Calibration",
    "ExportOptions",
    "ExportReport",
    "Spool",
    "Texts",
    "calibrate",
    "export_bundle",
    "replacing",
    "resolve_checkpoint",
    "write_bundle",
]
