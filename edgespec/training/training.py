"""Trains a draft head: features of a shard of texts are made, then trained on, shard by shard."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgespec.bundle import TARGET, Bundle
from edgespec.errors import InputError
from edgespec.export.heads.identity import weights_name
from edgespec.llm.load.models import load_model
from edgespec.runtime.arrays import Doubles
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import PassCost
from edgespec.system.files import replaced
from edgespec.system.machine import default_threads
from edgespec.training import checkpoints
from edgespec.training.card import CARD, card
from edgespec.training.checkpoints import Progress
from edgespec.training.given_head import GivenHead
from edgespec.training.kinds import module_of, new_head
from edgespec.training.optimizer import Accepted, Target, TrainedHead
from edgespec.training.options import TrainingOptions
from edgespec.training.preparation import FIRST, HELD_OUT, Preparation
from edgespec.training.promise import draft_seconds, promised_speedup
from edgespec.training.shape import save_head
from edgespec.training.shards import TrainingWindow
from edgespec.training.target_model import TorchTarget
from edgespec.training.texts import Windows, shuffled
from edgespec.training.vocabulary import DraftIds, choose, expected_uses

WORK = ".training"
"""Folder in a head's folder with what is needed to go on."""

_EVALUATE_EVERY = 4  # shards
_STORE_EVERY = 120.0  # seconds
_PREPARING = 0.4  # of the time that is given, in which texts are written and read
_SMOOTH = 0.98  # of the moving average of the loss
_MEASURING = 0.6  # seconds to find out what passes of the target cost


@dataclass(frozen=True)
class Status:
    """What a training reports now and then.

    Attributes:
        doing: what it does at the moment.
        progress: how far it has come.
        tokens_per_second: trained tokens per second in this run, the making of features included.
        promised: speed relative to plain decoding that the head promises so far on the CPU of this
            machine; None if unknown.
        share: how much of what was asked for is done; None if there is no limit.
    """

    doing: str
    progress: Progress
    tokens_per_second: float
    promised: float | None
    share: float | None


Report = Callable[[Status], None]


class Training:
    """A training of a head for a target.

    Args:
        target: the target, which gives what the options' taps ask for.
        texts: what to train on.
        options: the options.
        output: folder of the head.
        report: called after each step.
        stopping: whether the user wants the training to stop.

    Attributes:
        progress: how far it has come.

    Raises:
        InputError: if the output was begun with other options, or the options do not fit the
            target.
    """

    def __init__(
        self,
        target: TorchTarget,
        texts: Windows,
        options: TrainingOptions,
        output: Path,
        report: Report = lambda status: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        device = target.device
        self._target = target
        self._texts = texts
        batch = options.batch or device.step_tokens
        self._options = options = replace(options, batch=batch)
        self._output = output
        self._report = report
        self._stopping = stopping
        self.progress = Progress()
        self._began = self._stored = time.monotonic()
        self._trained_tokens = 0
        torch.set_num_threads(options.threads or default_threads())
        self._windows_of_step = max(1, batch // options.window)
        self._cost = _measured(target.bundle, options.threads)
        folder = output / WORK / "shards"
        self._preparation = Preparation(target, texts, options, folder, self._show, stopping)
        self._held_out: list[TrainingWindow] | None = None
        self._trained = self._head()

    def run(self) -> None:
        """Trains until the options' limits are reached, nothing is gained any more, or a stop.

        Raises:
            EdgespecError: if it cannot go on; what was trained so far is kept.
            KeyboardInterrupt: if it was stopped before the first step.
        """
        try:
            if not self._over():  # so that there is time for it
                self._held_out = self._windows(HELD_OUT)
            for windows in self._batches():
                self._step(windows)
                if self.progress.tokens - self.progress.evaluated >= self._between_evaluations:
                    self._evaluate()
                if time.monotonic() - self._stored > _STORE_EVERY:
                    self.store()
                if self._over():
                    break
            if self.progress.evaluated < self.progress.tokens and not self._stopping():
                self._evaluate()
        finally:
            if self.progress.tokens:
                self.store()
            else:
                self._held_out = None  # whose files some systems would not delete meanwhile
                self._preparation.forget_cut()
        if not self.progress.tokens:
            if self._stopping():
                raise KeyboardInterrupt
            raise InputError(
                f"minutes is {self._options.minutes}, which were over before the first step: "
                "give more to go on, or a smaller model"
            )

    def _over(self) -> bool:
        options = self._options
        progress = self.progress
        return (
            self._stopping()
            or (options.tokens is not None and progress.tokens >= options.tokens)
            or (options.minutes is not None and progress.seconds >= options.minutes * 60)
            or progress.stale >= options.patience
        )

    @property
    def _between_evaluations(self) -> int:
        return _EVALUATE_EVERY * self._target.device.shard_tokens

    def _written(self) -> bool:
        """Whether there are texts enough, so that the rest of the time is for training on them."""
        limit = self._options.minutes
        return limit is not None and self.progress.prepared > _PREPARING * limit * 60

    def _batches(self) -> Iterator[list[TrainingWindow]]:
        """Yields texts to train on, from where the training stands."""
        progress = self.progress
        seed = self._options.seed
        size = self._windows_of_step
        while not self._over():
            # The first shard has been read for the draft vocabulary.
            count = progress.shards or self._preparation.count
            order = shuffled(count, seed, progress.epoch) if progress.epoch else range(count)
            while progress.shard < len(order):
                if not progress.epoch and progress.shard and self._written():
                    break
                number = order[progress.shard] + 1
                windows = self._windows(number)
                if windows is None:
                    return
                inner = shuffled(len(windows), seed, progress.epoch, number)
                while progress.window < len(inner):
                    chosen = inner[progress.window : progress.window + size]
                    progress.window += len(chosen)
                    yield [windows[each] for each in chosen]
                progress.shard = progress.shard + 1
                progress.window = 0
            progress.shards = progress.shards or progress.shard
            progress.epoch = progress.epoch + 1
            progress.shard = 0

    def _step(self, windows: Sequence[TrainingWindow]) -> None:
        began = time.monotonic()
        progress = self.progress
        loss = self._trained.step(self._trained.batch(windows))
        tokens = sum(len(window.tokens) for window in windows)
        progress.steps += 1
        kept = min(_SMOOTH, 1 - 1 / progress.steps)
        progress.loss = kept * progress.loss + (1 - kept) * loss
        progress.tokens += tokens
        self._trained_tokens += tokens
        self._spent(began)
        self._show("training")

    def _evaluate(self) -> None:
        began = time.monotonic()
        progress = self.progress
        held_out = self._held_out = self._held_out or self._windows(HELD_OUT)
        if held_out is None:
            return
        by_kind = defaultdict[str, list[TrainingWindow]](list)
        for number, window in zip(self._preparation.numbers(HELD_OUT), held_out, strict=False):
            by_kind[self._texts.kind(number)].append(window)
        counts = {kind: self._accepted(windows) for kind, windows in by_kind.items()}
        progress.kinds = {kind: each.shares for kind, each in sorted(counts.items())}
        progress.acceptance = sum(counts.values(), start=Accepted()).shares
        progress.evaluated = progress.tokens
        progress.history += ((progress.tokens, *(round(each, 4) for each in progress.acceptance)),)
        gained = progress.expected > progress.best
        progress.best = max(progress.best, progress.expected)
        progress.stale = 0 if gained else progress.stale + 1
        self._spent(began)
        self._show("measuring acceptance")

    def _accepted(self, windows: Sequence[TrainingWindow]) -> Accepted:
        size = self._windows_of_step
        parts = (windows[n : n + size] for n in range(0, len(windows), size))
        return self._trained.acceptance(map(self._trained.batch, parts))

    def _windows(self, number: int) -> list[TrainingWindow] | None:
        """Returns a shard, made if it is not there; None if the user wants to stop."""
        seconds = self._allowed(number)
        if (found := self._preparation.found(number, seconds)) is not None:
            return found
        began = time.monotonic()
        made = self._preparation.made(number, seconds)
        self.progress.prepared += time.monotonic() - began
        self._spent(began)
        return made

    def _allowed(self, number: int) -> float:
        """Returns the seconds that new texts of a shard may take; the first leave others some."""
        if self._options.minutes is None:
            return inf
        limit = self._options.minutes * 60
        left = min(_PREPARING * limit - self.progress.prepared, limit - self.progress.seconds)
        return left / 2 if number in (HELD_OUT, FIRST) else left

    def _head(self) -> TrainedHead:
        """Returns the head, new or as the last checkpoint left it."""
        role = self._target.role
        options = self._options
        graph = self._target.graph
        device = self._target.device
        tokenizer = self._target.tokenizer
        if options.init is not None:
            given = GivenHead(Path(options.init), self._target.bundle)
            ids = given.ids
            projection = given.projection(graph)
            head = module_of(options, given.sizes(), graph)
            given.fill(head)
        else:
            first = self._windows(FIRST)
            if first is None:
                raise KeyboardInterrupt
            size = min(options.draft_vocabulary, tokenizer.vocab_size)
            ids = choose(self._texts.tokens, self._expected(first), size, role.eos_ids)
            projection = graph.projection.rows(ids)
            head = new_head(options, role, tokenizer, graph, size)
            head.start(torch.from_numpy(graph.norm), options.seed)
        draft_ids = DraftIds(ids, role.vocab_size, device.device)
        target = Target(self._target.embedded, projection, draft_ids)
        trained = TrainedHead(head, target, device, options.learning_rate, options.seed)
        if (found := checkpoints.recall(self._output / WORK, self._plan())) is not None:
            self.progress, tensors = found
            trained.restore(tensors, self.progress.steps)
        return trained

    def _expected(self, windows: Sequence[TrainingWindow]) -> Doubles:
        """Returns how often the target expects each token in some texts, per row."""
        return expected_uses(
            np.concatenate([window.top_ids for window in windows]).astype(np.int64),
            np.concatenate([window.top_logits for window in windows]).astype(np.float32),
            self._target.tokenizer.vocab_size,
        )

    def _plan(self) -> dict[str, object]:
        """Returns what must stay the same for a training to go on."""
        options = asdict(self._options)
        for name in ("minutes", "tokens", "patience", "disk", "device", "memory", "threads"):
            del options[name]
        text = np.asarray(self._texts.tokens, np.int32)
        return {
            "target": self._target.bundle.digest,
            "text": hashlib.sha256(text.tobytes()).hexdigest()[:16],
            **options,
        }

    def store(self) -> None:
        """Writes the head as it is now, and what is needed to go on."""
        checkpoints.store(self._output / WORK, self._plan(), self.progress, self._trained.state())
        head = self._trained.head
        facts = self.facts()
        config = {**head.shape.layout(head.depths, facts["base_model"]), "edgespec": facts}
        save_head(self._output, config, self._trained.weights())
        with replaced(self._output / CARD) as partial_file:
            partial_file.write_text(card(config), encoding="utf-8")
        self._stored = time.monotonic()

    def facts(self) -> dict[str, Any]:
        """Returns what is known about the training, as JSON values."""
        progress = self.progress
        bundle = self._target.bundle
        return {
            "kind": self._options.kind,
            "base_model": bundle.manifest.provenance[TARGET],
            "weights": weights_name(self._target.graph.norm),
            "license": "other",
            "target": bundle.digest,
            "text": self._texts.about,
            "tokens": progress.tokens,
            "epochs": progress.epoch,
            "minutes": round(progress.seconds / 60, 1),
            "loss": round(progress.loss, 4),
            "acceptance": [round(share, 4) for share in progress.acceptance],
            "acceptance_by_kind": {
                kind: [round(share, 4) for share in shares]
                for kind, shares in progress.kinds.items()
            },
            "expected_accepted": round(progress.expected, 3),
            "promised_speedup": _rounded(self._promised(progress.acceptance)),
            "promised_by_kind": {
                kind: _rounded(self._promised(shares)) for kind, shares in progress.kinds.items()
            },
            "acceptance_by_tokens": [list(each) for each in progress.history],
        }

    def _promised(self, acceptance: Sequence[float]) -> float | None:
        """Returns the speed relative to plain decoding; None if it cannot be told yet."""
        if not acceptance:
            return None
        shape = self._trained.head.shape
        size = self._target.bundle.role_size(TARGET)
        drafting = partial(draft_seconds, shape, size, self._cost.seconds)
        return promised_speedup(acceptance, self._cost.seconds, drafting)

    def _spent(self, began: float) -> None:
        self.progress.seconds += time.monotonic() - began

    def _show(self, doing: str) -> None:
        options = self._options
        progress = self.progress
        speed = self._trained_tokens / (time.monotonic() - self._began)
        done = [0.0]
        if options.minutes is not None:
            done.append(progress.seconds / (options.minutes * 60))
        if options.tokens is not None:
            done.append(progress.tokens / options.tokens)
        share = max(done) if len(done) > 1 else None
        self._report(Status(doing, progress, speed, self._promised(progress.acceptance), share))


def _rounded(speed: float | None) -> float | None:
    return None if speed is None else round(speed, 3)


def _measured(bundle: Bundle, threads: int | None) -> PassCost:
    """Returns what passes cost on the CPU of this machine, where the head is to be used."""
    model = load_model(bundle, TARGET, Placement(HOST), threads)
    try:
        return PassCost.measure(model, _MEASURING)
    finally:
        model.close()
