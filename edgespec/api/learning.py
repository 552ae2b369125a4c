"""Learning between texts: never during a round, and never for more than a few milliseconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.bundle import DRAFT, Bundle
from edgespec.errors import InputError
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.drafters.learner import Learner

# Seconds of learning behind a text: enough for some 200 new tokens. What is left is learned behind
# the next text, or at the end.
_BREAK = 0.004
_SAVE_EVERY = 60.0  # seconds

_log = logging.getLogger(__name__)


class Learning:
    """Teaches a draft model between the texts of a loaded bundle, and keeps what it learned.

    Args:
        bundle: the bundle.
        path: file that keeps it; need not exist.
        lock: lock that is held during each round of a text.

    Attributes:
        learner: what was learned, which texts that begin now use.
        texts: number of texts in progress.

    Raises:
        InputError: if the bundle has no draft model, or the file cannot be used.
    """

    def __init__(self, bundle: Bundle, path: Path, lock: FairLock) -> None:
        if DRAFT not in bundle.manifest.roles:
            raise InputError(
                f"learn is given, but {bundle.path} has no draft model that could learn: export it "
                "with --draft, or leave learn out"
            )
        self._path, self._digest, self._lock = path, bundle.digest, lock
        self._counting = threading.Lock()
        self.texts = 0
        self.learner = self._loaded()
        self._kept = True  # whether the file is to be written
        self._written, self._saved = self.learner.trained, time.monotonic()
        self._writing = threading.Lock()

    @property
    def in_use(self) -> int:
        """Number of tokens that the correction in use was learned from; 0 if none is in use."""
        return self.learner.trained if self.learner.helps else 0

    @contextmanager
    def text(self) -> Iterator[None]:
        """A text that is in progress."""
        with self._counting:
            self.texts += 1
        try:
            yield
        finally:
            with self._counting:
                self.texts -= 1

    def between_texts(self) -> None:
        """Learns for a moment, unless a text is in progress or begins meanwhile."""
        end = time.perf_counter() + _BREAK
        while time.perf_counter() < end:
            with self._lock:  # a step is shorter than a round, and no round can begin in it
                if self.texts or not self.learner.step():
                    break
        if time.monotonic() > self._saved + _SAVE_EVERY:
            self._saved = time.monotonic()
            # The file is waited for on a thread, not by the next text.
            threading.Thread(target=self._save, name="edgespec-learned").start()

    def forget(self) -> None:
        """Discards what was learned since the file was written; writes it no more."""
        self.learner, self._kept = self._loaded(), False

    def finish(self) -> None:
        """Learns what is left, and writes the file if there was anything. No text may be made."""
        while self.learner.step():
            pass
        self._save()

    def _loaded(self) -> Learner:
        if not self._path.exists():
            return Learner()
        return Learner.load(self._path, self._digest)

    def _save(self) -> None:
        with self._writing:
            if not self._kept or self.learner.trained == self._written:
                return
            try:
                trained = self.learner.trained
                self.learner.save(self._path, self._digest)
                self._written = trained
            except InputError as error:
                _log.warning("what the draft model learned is not kept: %s", error)
                self._kept = False  # and says so once
