"""Adopts a model that another program exported as ONNX, and tries it before it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import DeviceError, ExportError, UnsupportedModelError
from edgespec.export import (
    ExportReport,
    export_by_optimum,
    find_onnx,
    open_onnx,
    source_name,
    write_adopted,
)
from edgespec.runtime.arrays import Floats
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.system.machine import default_threads

_ENGINE = "onnxruntime:cpu"  # it has all operators that such graphs have
_TOKENS = 24  # of the text that the graph is tried with
_LAST = 5  # tokens of it that follow in a second call
_LONGEST_WINDOW = 2048  # tokens; reading more would take minutes
# Difference of logits, relative to their spread. Rounding of activations makes two per cent.
_MOST = 0.05


def adopt(graph: Path | None, model: str, folder: Path) -> ExportReport:
    """Writes the bundle of a model that another program exported, or that optimum exports now.

    Args:
        graph: the ONNX file; None: optimum exports `model` first.
        model: what the user named.
        folder: empty folder to write to; its content is incomplete if this fails.

    Raises:
        CheckpointError: if a file is missing or damaged.
        ExportError: if optimum is not installed, or refuses the model.
        UnsupportedModelError: if the graph is not a decoder with past and present, or does not
            give the same logits for a text that is read in parts.
    """
    with TemporaryDirectory(dir=folder.parent) as made:
        origin = source_name(Path(model)) if Path(model).exists() else model
        if graph is None:
            exported = Path(made) / "model"
            origin = f"{origin} by {export_by_optimum(model, exported)}"
            graph = find_onnx(str(exported))
            if graph is None:
                raise ExportError(f"{model}: optimum wrote no model.onnx: is it a decoder?")
        source = open_onnx(graph)
        report = write_adopted(source, folder, origin)
    _try(folder, graph, source.config.window)
    return report


def _try(folder: Path, graph: Path, window: int) -> None:
    """Reads a random text in calls of different sizes, which must give the same logits.

    Args:
        folder: folder of the bundle.
        graph: the file that it was made from, for messages.
        window: number of positions that some layers see; the text is longer, unless that takes
            minutes.

    Raises:
        UnsupportedModelError: if they do not, or ONNX Runtime refuses the graph.
    """
    bundle = bundles.load(folder)
    role = bundle.target
    longest = min(role.context_length - 1, window + _TOKENS)
    count = longest if window <= _LONGEST_WINDOW else min(longest, _TOKENS)
    text: list[int] = np.random.default_rng(0).integers(0, role.vocab_size, count).tolist()
    try:
        model = Model.load(bundle, TARGET, engine(_ENGINE), default_threads())
        whole = Runner(model).prefill(text)["logits"][0].copy()
        expected = [*_last_logits(model, text, 1), whole]
        found = _last_logits(model, text, _LAST)
        found.append(found[-1])
    except DeviceError as error:
        raise UnsupportedModelError(
            f"{graph} cannot be run ({error}): another export of the model may do"
        ) from error
    difference = float(np.sqrt(np.mean(np.subtract(found, expected) ** 2)) / np.std(expected))
    if not difference <= _MOST:  # also for NaN
        raise UnsupportedModelError(
            f"{graph}: logits of a text that is read in parts differ by {difference:.0%} of their "
            "spread from those of the whole text, so its cache is not understood: another export "
            "of the model may do"
        )


def _last_logits(model: Model, text: Sequence[int], rows: int) -> list[Floats]:
    """Returns the logits of a text's last tokens, which are read in calls of so many rows."""
    runner = Runner(model)
    runner.prefill(text[:1])
    runner.prefill(text[1:-_LAST])
    return [row for each in runner.score(text[-_LAST:], rows) for row in each["logits"].copy()]
