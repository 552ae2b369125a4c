"""Where a training stands, so that the same command goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgespec.errors import InputError
from edgespec.system import records
from edgespec.system.files import replaced

_FILE = "state.safetensors"
_RECORD, _PLAN = "progress", "plan"


@dataclass
class Progress:
    """How far a training has come.

    Attributes:
        epoch: number of times that all texts were read.
        shard: number of shards of this epoch that are done.
        window: number of texts of the next shard that are done.
        steps: steps of the optimizer.
        tokens: tokens trained on.
        seconds: time that it took.
        prepared: of these, seconds in which texts were written and read.
        shards: how many shards there are to train on; 0: more are still written.
        loss: moving average of the loss.
        evaluated: tokens at the last evaluation.
        acceptance: accepted share by depth at the last evaluation.
        best: largest expected number of accepted tokens so far.
        stale: evaluations since then.
        kinds: accepted share by depth, by kind of text.
        history: the tokens and the acceptance of each evaluation.
    """

    epoch: int = 0
    shard: int = 0
    window: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    prepared: float = 0.0
    shards: int = 0
    loss: float = 0.0
    evaluated: int = 0
    acceptance: tuple[float, ...] = field(default=())
    kinds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    best: float = 0.0
    stale: int = 0
    history: tuple[tuple[float, ...], ...] = field(default=())

    @property
    def expected(self) -> float:
        """The expected number of accepted tokens of a chain as deep as was trained for."""
        reached: Iterator[float] = accumulate(self.acceptance, mul)
        return sum(reached)


def store(
    folder: Path, plan: dict[str, object], progress: Progress, tensors: dict[str, Tensor]
) -> None:
    """Writes a checkpoint in place of the last one.

    Args:
        folder: folder of the checkpoint.
        plan: what must be the same for the training to go on.
        progress: how far it has come.
        tensors: weights and the optimizer's state.
    """
    facts = {_RECORD: json.dumps(records.encode(progress)), _PLAN: json.dumps(plan)}
    with replaced(folder / _FILE) as partial:
        save_file(tensors, partial, metadata=facts)


def recall(folder: Path, plan: dict[str, object]) -> tuple[Progress, dict[str, Tensor]] | None:
    """Reads the checkpoint of the same plan; None if there is none.

    Raises:
        InputError: if it is damaged or of another plan.
    """
    file = folder / _FILE
    if not file.is_file():
        return None
    try:
        with safe_open(file, "pt") as stored:
            facts = stored.metadata() or {}
            before = json.loads(facts[_PLAN])
            progress = records.decode(Progress, json.loads(facts[_RECORD]), _RECORD)
            _require_same(folder, before, json.loads(json.dumps(plan)))
            return progress, {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{file} is damaged ({error}): delete {folder} to begin anew") from error


def _require_same(folder: Path, before: dict[str, object], now: dict[str, object]) -> None:
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            raise InputError(
                f"{folder.parent} was begun with {name} {before.get(name)!r:.80}, not "
                f"{now.get(name)!r:.80}: give the same options to go on, or another -o"
            )
