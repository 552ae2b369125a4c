"""Adopts a model that another program exported as ONNX, and tries it before it is kept."""

from __future__ import annotations

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
from edgespec.llm.load.models import load_model
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import AFTER, Rows

_TOKENS, _LAST = 24, 5  # of the text that the graph is tried with, and those that are compared
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
    """Reads a random text in passes of different sizes, which must give the same logits.

    It is longer than the `window` of positions that some layers see, unless that takes minutes.

    Raises:
        UnsupportedModelError: if they do not, or ONNX Runtime refuses the graph.
    """
    bundle = bundles.load(folder)
    role = bundle.target
    beyond = window if window <= _LONGEST_WINDOW else 0
    count = min(role.context_length - 1, beyond + _TOKENS)
    text: list[int] = np.random.default_rng(0).integers(0, role.vocab_size, count).tolist()
    sizes = [1, count - _LAST - 1]
    try:
        model = load_model(bundle, TARGET, Placement(HOST, native=False))
        logits = []
        for passes in ([count], [*sizes, _LAST], [*sizes, *[1] * _LAST]):
            sequence = model.sequence([])
            found = []
            for size in passes:
                tokens = text[sequence.length : sequence.length + size]
                rows = Rows(sequence, tokens, [AFTER, *range(size - 1)], list(range(size)))
                found += [*model.forward([rows])[0]]
                rows.accept(range(size))
            logits.append(found[-_LAST:])
            sequence.free()
    except DeviceError as error:
        raise UnsupportedModelError(
            f"{graph} cannot be run ({error}): another export of the model may do"
        ) from error
    spread = np.std(logits[-1])
    difference = max(float(np.sqrt(np.mean(np.subtract(a, logits[-1]) ** 2))) for a in logits)
    if not difference <= _MOST * spread:  # also for NaN
        raise UnsupportedModelError(
            f"{graph}: logits of a text that is read in parts differ by {difference / spread:.0%} "
            "of their spread from those of the whole text, so its cache is not understood: another "
            "export of the model may do"
        )
