"""Tests that the rows of measured calls choose as many experts as those of a text."""

from __future__ import annotations

import numpy as np

from edgespec.bundle import TARGET, load
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.costs.timing import measure
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner


def test_measured_rows_have_different_tokens(saved_checkpoint, tmp_path, monkeypatch):
    source = saved_checkpoint("qwen3_moe")
    export_bundle(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    model = Model.load(load(tmp_path / "bundle"), TARGET, engine("onnxruntime:cpu"), 1)
    verify, seen = Runner.verify, []
    monkeypatch.setattr(
        Runner, "verify", lambda self, rows: seen.append(rows) or verify(self, rows)
    )
    next(measure(model, {256: (1, 8)}))
    widths = {len(rows.tokens): len(np.unique(rows.tokens)) for rows in seen}
    assert widths == {1: 1, 8: 8}
