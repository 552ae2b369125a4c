"""What a head learns from, made shard by shard: texts are written, and read by the target."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil, inf
from pathlib import Path

from edgespec.training.options import TrainingOptions
from edgespec.training.shards import Shards, TrainingWindow
from edgespec.training.target_model import TorchTarget
from edgespec.training.target_texts import TargetReader
from edgespec.training.texts import Windows, shuffled

HELD_OUT = 0
"""Number of the shard that nothing is trained on."""
FIRST = 1
"""Number of the first shard that is trained on."""

_HELD_OUT_SHARE = 10  # at most one text in so many is held out
_PARTS = 16  # of a shard, which are read one after the other
_WRITING = 0.6  # of a shard's time, after which it is only read
_WARMING = 16  # tokens of a pass before one that is timed
_TIMED = 8  # parts of a step's tokens, of which that one has one


class Preparation:
    """The shards of a training, made when they are first asked for.

    Args:
        target: the target, which writes and reads the texts.
        texts: the texts.
        options: the options.
        folder: folder of the shards.
        show: told what is done at the moment.
        stopping: whether the user wants to stop.

    Attributes:
        count: number of shards to train on.
    """

    def __init__(
        self,
        target: TorchTarget,
        texts: Windows,
        options: TrainingOptions,
        folder: Path,
        show: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        device = target.device
        self._texts = texts
        self._show = show
        self._stopping = stopping
        self._reader = TargetReader(target)
        self._window = options.window
        self._generate = options.generate
        self._timed = list(texts.tokens[: max(device.step_tokens // _TIMED, _WARMING)])
        # a number of bytes by now
        self._shards = Shards(folder, int(options.disk))
        order = shuffled(texts.count, options.seed)
        each = max(1, device.shard_tokens // options.window)
        held_out = max(1, min(texts.count // _HELD_OUT_SHARE, each // 2))
        rest = order[held_out:]
        self._numbers = [order[:held_out]]
        self._numbers += [rest[n : n + each] for n in range(0, len(rest), each)]
        self.count = len(self._numbers) - 1
        at_once = device.texts_at_once(target.text_bytes(options.window))
        self._at_once = ceil(each / ceil(each / at_once))  # all about as many
        self._read_at_once = min(self._at_once, ceil(each / _PARTS))
        self._reading: float | None = None

    def numbers(self, number: int) -> Sequence[int]:
        """Returns the numbers of a shard's texts; a shard that took too long has the first ones."""
        return self._numbers[number]

    def found(self, number: int, seconds: float) -> list[TrainingWindow] | None:
        """Returns a shard that is there; None if it must be made, or completed in the time."""
        found = self._shards.get(number)
        if found is None or (number == HELD_OUT and self._wants(number, len(found), seconds)):
            return None
        return found

    def forget_cut(self) -> None:
        """Deletes the shards that time cut short before anything was trained on them."""
        for number in (HELD_OUT, FIRST):
            texts, _ = self._shards.texts(number)
            if len(texts) < len(self._numbers[number]):
                self._shards.delete(number)

    def made(self, number: int, seconds: float) -> list[TrainingWindow] | None:
        """Makes a shard, or completes the held-out one.

        Args:
            number: its number.
            seconds: after these it ends with what was written and read, behind what was read once.

        Returns:
            The shard; None if the user wants to stop.
        """
        began = time.monotonic()
        texts, read = self._shards.texts(number)
        # What was read may have been trained on, and stays as it is.
        if (number == HELD_OUT or not read) and self._wants(number, len(texts), seconds):
            new = self._new_texts(number, len(texts), began, seconds)
            if new is None:
                return None
            texts += new
            self._shards.put_texts(number, texts, read)
        made = list[TrainingWindow]()
        for start in range(0, len(texts), self._read_at_once):
            made += self._reader.read(texts[start : start + self._read_at_once])
            if self._stopping():
                return None
            self._show(f"reading {len(made)}/{len(texts)}")
            if len(made) >= read and time.monotonic() - began > seconds:
                break
        if len(made) > read:
            self._shards.put_texts(number, texts[: len(made)], len(made))
        self._shards.put(number, made)
        return made

    def _wants(self, number: int, count: int, seconds: float) -> bool:
        """Whether a shard of so many texts is to get more of them in the time."""
        return count < len(self._numbers[number]) and (seconds > 0 or not count)

    def _new_texts(
        self, number: int, known: int, began: float, seconds: float
    ) -> list[list[int]] | None:
        """Returns a shard's texts behind known ones; None if the user wants to stop."""
        numbers = self._numbers[number][known:]
        texts = list[list[int]]()
        self._show(f"writing texts 0/{len(numbers)}")
        late = began + _WRITING * seconds

        def enough() -> bool:
            return self._stopping() or time.monotonic() > late

        for some in self._texts.windows(numbers, self._beside(seconds), enough):
            texts += some
            if self._stopping():
                return None
            self._show(f"writing texts {len(texts)}/{len(numbers)}")
            if enough():
                break
        return texts

    def _beside(self, seconds: float) -> int:
        """Returns how many texts are written side by side, no more than are read in the time."""
        if seconds == inf or not self._generate:
            return self._at_once
        if self._reading is None:
            self._reader.read([self._timed[:_WARMING]])
            began = time.monotonic()
            self._reader.read([self._timed])
            passed = time.monotonic() - began
            self._reading = passed * self._window / len(self._timed)
        readable = (1 - _WRITING) * seconds / max(self._reading, 1e-9)
        return max(1, min(self._at_once, int(readable)))
