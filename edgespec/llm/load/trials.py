"""What is tried when a role is first loaded on a device, and kept in the cache folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from edgespec.errors import InputError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.system import records
from edgespec.system.files import replaced

_ENDINGS = 3  # the first tokens of most vocabularies, whose rows have the largest numbers

_log = logging.getLogger(__name__)


class Trial(Protocol):
    """What a trial found, a dataclass.

    Attributes:
        name: what its file's name ends with.
    """

    name: ClassVar[str]


Kept = TypeVar("Kept", bound=Trial)


def kept_trial(kind: type[Kept], graph: Path) -> Kept | None:
    """Returns what is kept beside the folder of a portable graph; None if there is nothing."""
    try:
        found = json.loads(_file(graph, kind.name).read_text(encoding="utf-8"))
        return records.decode(kind, found, "trial")
    except (OSError, ValueError, RecursionError):
        return None


def keep_trial(graph: Path, trial: Trial) -> None:
    """Keeps what a trial found beside the folder of a portable graph; only warns if it cannot."""
    try:
        with replaced(_file(graph, trial.name)) as partial:
            partial.write_text(json.dumps(records.encode(trial)), encoding="utf-8")
    except InputError as error:
        _log.warning("%s: the model is tried anew each time it is loaded", error)


def logit_distance(
    found: Floats, expected: Floats, of_rows: Callable[[Floats], Any] = np.max
) -> float | None:
    """Returns how far logits are from others, in deviations of these.

    Args:
        found: logits of rows, [n, V].
        expected: likewise.
        of_rows: what is told of the rows' largest differences.

    Returns:
        None: there are none, or no numbers.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        distance = float(of_rows(abs(found - expected).max(-1)) / expected.std())
    return distance if np.isfinite(distance) else None


def trial_logits(model: Model, vocabulary: int, count: int, wanted: Sequence[int]) -> Floats:
    """Reads a text of random tokens in one pass; returns the logits of the rows that are wanted."""
    tokens = np.random.default_rng(0).integers(vocabulary, size=count)
    tokens[:_ENDINGS] = np.arange(_ENDINGS)[:count]
    parents = [AFTER, *range(count - 1)]
    rows = Rows(model.sequence([]), tokens.tolist(), parents, [*wanted])
    found: Floats = np.array(model.forward([rows])[0])
    rows.accept([])
    return found


def _file(graph: Path, name: str) -> Path:
    return graph.parent.with_name(f"{graph.parent.name}.{name}.json")
