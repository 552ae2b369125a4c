"""Trains a draft head: features of a shard of texts are made, then trained on, shard by shard."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from edgespec.bundle import TARGET, Bundle
from edgespec.errors import InputError
from edgespec.llm.llm import LLM
from edgespec.llm.load.open import load_model
from edgespec.runtime.sequences.model import PassCost
from edgespec.system.machine import default_threads
from edgespec.training import checkpoints
from edgespec.training.checkpoints import Progress
from edgespec.training.kinds import new_head
from edgespec.training.optimizer import Target, TrainedHead
from edgespec.training.options import SHARD_TOKENS, TrainingOptions
from edgespec.training.promise import draft_seconds, promised_speedup
from edgespec.training.reader import TOP, TargetReader
from edgespec.training.shape import save_head
from edgespec.training.shards import Shards, TrainingWindow, token_bytes
from edgespec.training.target_graph import TargetGraph
from edgespec.training.texts import Windows, shuffled
from edgespec.training.vocabulary import DraftIds, choose, expected_uses

WORK = ".training"
"""Folder in a head's folder with what is needed to go on."""

_HELD_OUT = 0  # number of the shard that nothing is trained on
_HELD_OUT_TOKENS = 4096
_HELD_OUT_SHARE = 10  # at most one text in so many is held out
_EVALUATE_EVERY = 32_768  # tokens
_STORE_EVERY = 240.0  # seconds
_SMOOTH = 0.98  # of the moving average of the loss
_MEASURING = 0.6  # seconds to find out what passes of the target cost


@dataclass(frozen=True)
class Status:
    """What a training reports now and then.

    Attributes:
        doing: what it does at the moment.
        progress: how far it has come.
        tokens_per_second: trained tokens per second in this run, the making of features included.
        promised: speed relative to plain decoding that the head promises so far; None if unknown.
    """

    doing: str
    progress: Progress
    tokens_per_second: float
    promised: float | None


Report = Callable[[Status], None]


class Training:
    """A training of a head for a target.

    Args:
        llm: the target, loaded from a bundle whose graph returns features.
        bundle: the bundle itself, which the head is for.
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
        llm: LLM,
        bundle: Bundle,
        texts: Windows,
        options: TrainingOptions,
        output: Path,
        report: Report = lambda status: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._llm = llm
        self._bundle = bundle
        self._texts = texts
        self._options = options
        self._output = output
        self._report = report
        self._stopping = stopping
        self.progress = Progress()
        self._began = self._stored = time.monotonic()
        self._trained_tokens = 0
        torch.set_num_threads(llm.options.threads or default_threads())
        vocabulary = llm.tokenizer.vocab_size
        # a number of bytes by now
        taps = options.taps or ()
        disk = int(options.disk)
        per_token = token_bytes(len(taps) * bundle.target.hidden_size, min(TOP, vocabulary))
        # The held-out shard, the one that is trained on, and the one that is made.
        self._shard_tokens = min(SHARD_TOKENS, disk // (3 * per_token))
        if self._shard_tokens < 2 * options.window:
            raise InputError(
                f"disk is {disk} bytes: a token takes {per_token}, so give at least "
                f"{6 * options.window * per_token}"
            )
        self._shards = Shards(output / WORK / "shards", disk)
        # The same weights as the loaded target's, which gives no features.
        place = llm.plan.roles[TARGET]
        model = load_model(llm.bundle, TARGET, place, llm.options.threads, features=True)
        self._reader = TargetReader(model, vocabulary)
        self._cost = PassCost.measure(model, _MEASURING)
        order = shuffled(texts.count, options.seed)
        held_out = max(1, min(texts.count // _HELD_OUT_SHARE, _HELD_OUT_TOKENS // options.window))
        each = max(1, self._shard_tokens // options.window)
        rest = order[held_out:]
        self._numbers = [order[:held_out]]
        self._numbers += [rest[n : n + each] for n in range(0, len(rest), each)]
        self._trained = self._head()

    def run(self) -> None:
        """Trains until the options' limits are reached, nothing is gained any more, or a stop.

        Raises:
            EdgespecError: if it cannot go on; what was trained so far is kept.
        """
        try:
            for windows in self._batches():
                self._step(windows)
                if self.progress.tokens - self.progress.evaluated >= _EVALUATE_EVERY:
                    self._evaluate()
                if time.monotonic() - self._stored > _STORE_EVERY:
                    self.store()
                if self._over():
                    break
            if self.progress.evaluated < self.progress.tokens and not self._stopping():
                self._evaluate()
        finally:
            self.store()

    def _over(self) -> bool:
        options = self._options
        progress = self.progress
        return (
            self._stopping()
            or (options.tokens is not None and progress.tokens >= options.tokens)
            or (options.hours is not None and progress.seconds >= options.hours * 3600)
            or progress.stale >= options.patience
        )

    def _batches(self) -> Iterator[list[TrainingWindow]]:
        """Yields texts to train on, from where the training stands."""
        progress = self.progress
        seed = self._options.seed
        size = max(1, self._options.batch // self._options.window)
        while not self._over():
            order = shuffled(len(self._numbers) - 1, seed, progress.epoch, 0)
            if progress.epoch == 0:
                order.sort()  # the first shard has been read for the draft vocabulary
            while progress.shard < len(order):
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
        held_out = self._windows(_HELD_OUT)
        if held_out is None:
            return
        size = max(1, self._options.batch // self._options.window)
        parts = (held_out[n : n + size] for n in range(0, len(held_out), size))
        progress.acceptance = tuple(self._trained.acceptance(map(self._trained.batch, parts)))
        progress.evaluated = progress.tokens
        progress.history += ((progress.tokens, *(round(each, 4) for each in progress.acceptance)),)
        gained = progress.expected > progress.best
        progress.best = max(progress.best, progress.expected)
        progress.stale = 0 if gained else progress.stale + 1
        self._spent(began)
        self._show("measuring acceptance")

    def _windows(self, number: int) -> list[TrainingWindow] | None:
        """Returns a shard, made if it is not there; None if the user wants to stop."""
        if (found := self._shards.get(number)) is not None:
            return found
        began = time.monotonic()
        made = list[TrainingWindow]()
        texts = self._shards.texts(number)
        if texts is None:
            numbers = self._numbers[number]
            written = dict[int, list[int]]()
            with closing(self._texts.windows(numbers)) as windows:
                for window, text in windows:
                    written[window] = text
                    if self._stopping():
                        return None
                    self._show(f"writing texts {len(written)}/{len(numbers)}")
            texts = [written[window] for window in numbers]
            self._shards.put_texts(number, texts)
        # A text needs a token for each depth, or nothing can be learned from it.
        for text in texts:
            if self._stopping():
                return None
            if len(text) > self._options.depths + 2:
                made.append(TrainingWindow.of(text, self._reader.read(text)))
            self._show(f"reading {len(made)}/{len(texts)}")
        self._shards.put(number, made)
        self._spent(began)
        return self._shards.get(number)

    def _head(self) -> TrainedHead:
        """Returns the head, new or as the last checkpoint left it."""
        role = self._bundle.target
        options = self._options
        graph = TargetGraph(self._bundle)
        vocabulary = self._llm.tokenizer.vocab_size
        first = self._windows(1)
        if first is None:
            raise KeyboardInterrupt
        expected = expected_uses(
            np.concatenate([window.top_ids for window in first]).astype(np.int64),
            np.concatenate([window.top_logits for window in first]).astype(np.float32),
            vocabulary,
        )
        size = min(options.draft_vocabulary, vocabulary)
        ids = choose(self._texts.tokens, expected, size, role.eos_ids)
        target = Target(
            graph.embedding, graph.projection.rows(ids), graph.norm, DraftIds(ids, role.vocab_size)
        )
        head = new_head(options, role, self._llm.tokenizer, graph, size)
        head.start(torch.from_numpy(target.norm), options.seed)
        trained = TrainedHead(head, target, options.learning_rate, options.seed)
        if (found := checkpoints.recall(self._output / WORK, self._plan())) is not None:
            self.progress, tensors = found
            trained.restore(tensors, self.progress.steps)
        return trained

    def _plan(self) -> dict[str, object]:
        """Returns what must stay the same for a training to go on."""
        options = asdict(self._options)
        for name in ("hours", "tokens", "patience", "disk"):
            del options[name]
        text = np.asarray(self._texts.tokens, np.int32)
        return {
            "target": self._bundle.digest,
            "text": hashlib.sha256(text.tobytes()).hexdigest()[:16],
            **options,
        }

    def store(self) -> None:
        """Writes the head as it is now, and what is needed to go on."""
        checkpoints.store(self._output / WORK, self._plan(), self.progress, self._trained.state())
        config = {**self._trained.head.shape.layout(), "edgespec": self.facts()}
        save_head(self._output, config, self._trained.weights())
        self._stored = time.monotonic()

    def facts(self) -> dict[str, object]:
        """Returns what is known about the training, as JSON values."""
        progress = self.progress
        promised = self._promised()
        return {
            "target": self._bundle.digest,
            "tokens": progress.tokens,
            "epochs": progress.epoch,
            "hours": round(progress.seconds / 3600, 3),
            "loss": round(progress.loss, 4),
            "acceptance": [round(share, 4) for share in progress.acceptance],
            "expected_accepted": round(progress.expected, 3),
            "promised_speedup": None if promised is None else round(promised, 3),
            "acceptance_by_tokens": [list(each) for each in progress.history],
        }

    def _promised(self) -> float | None:
        """Returns the speed relative to plain decoding; None if it cannot be told yet."""
        if not self.progress.acceptance:
            return None
        shape = self._trained.head.shape
        size = self._bundle.role_size(TARGET)
        drafting = partial(draft_seconds, shape, size, self._cost.seconds)
        return promised_speedup(self.progress.acceptance, self._cost.seconds, drafting)

    def _spent(self, began: float) -> None:
        self.progress.seconds += time.monotonic() - began

    def _show(self, doing: str) -> None:
        speed = self._trained_tokens / (time.monotonic() - self._began)
        self._report(Status(doing, self.progress, speed, self._promised()))
