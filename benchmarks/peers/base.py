"""What every peer must offer, and what goes over the pipe to it. The standard library only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

PLAIN, LOOKUP, DRAFT, AUTO = "plain", "lookup", "draft", "auto"
"""No drafts, drafts from the text itself, from a draft model, and edgespec's default."""
PASSES = "passes"
"""No texts: what a pass costs. Not among the `settings`; what is loaded is a `PassTimer`."""


class PeerError(Exception):
    """Why a peer, or one of its settings, could not be run."""


@dataclass(frozen=True)
class Checkpoints:
    """What is converted.

    Attributes:
        target: Folder of the checkpoint whose text is wanted.
        draft: Folder of its draft; None: there is none.
    """

    target: Path
    draft: Path | None


@dataclass(frozen=True)
class Loading:
    """How a peer is loaded.

    Attributes:
        setting: One of its `settings`.
        folder: What its `convert` wrote.
        threads: For its operators.
        context: Tokens of prompt and output together.
        eos_ids: Tokens that end a text.
        device: Device of edgespec's target; the others have one engine each.
    """

    setting: str
    folder: Path
    threads: int
    context: int
    eos_ids: tuple[int, ...]
    device: str = "cpu"


@dataclass(frozen=True)
class Request:
    """One text, as token ids, so that no tokenizer takes part."""

    prompt: tuple[int, ...]
    new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Text:
    """A text that came.

    Attributes:
        tokens: The new ones' ids.
        ttft: Seconds to the first of them.
        whole: Seconds to the last of them.
        first_at: When the first came, by the system's monotonic clock.
    """

    tokens: tuple[int, ...]
    ttft: float
    whole: float
    first_at: float


class Stopwatch:
    """Notes when tokens come; made when the text is asked for."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._begin = self._first = self._last = time.monotonic()

    def take(self, tokens: Iterable[int]) -> None:
        """Some tokens came, at the same time."""
        before = len(self._tokens)
        self._tokens += map(int, tokens)
        if len(self._tokens) > before:
            self._last = time.monotonic()
            if not before:
                self._first = self._last

    def text(self) -> Text:
        """All that came.

        Raises:
            PeerError: It was nothing.
        """
        if not self._tokens:
            raise PeerError("no token came")
        return Text(
            tuple(self._tokens), self._first - self._begin, self._last - self._begin, self._first
        )


class Decoder(Protocol):
    """A loaded setting."""

    def make(self, request: Request) -> Text:
        """A text, as if it were the first: nothing of an earlier one is used."""

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """`yes` where two greedy texts are equal; else `near-tie` or `no`, or `differs`.

        `differs` is the word of a peer that does not tell how near its scores were.
        """


class PassTimer(Protocol):
    """A model whose passes are timed."""

    def seconds(self, rows: int, length: int) -> float:
        """Processor time of one call over rows that are all scored, behind a text of that length.

        The text is read first where the cache holds a shorter one.
        """


class Peer(Protocol):
    """A way to run a checkpoint."""

    @property
    def home(self) -> str:
        """Names its environment and, with the precision, its models: others may share them."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """For pip, the package that versions are told of first; nothing: our own environment."""

    @property
    def build(self) -> Mapping[str, str]:
        """Variables for pip where it builds from source; nothing: it does not, or needs none."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Ways to decode, and how each is set up."""

    @property
    def precision(self) -> str:
        """Of the weights, as the peer calls it."""

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """Write both models in the peer's format into a folder that exists."""

    def load(self, loading: Loading) -> Decoder:
        """Make a setting ready.

        Raises:
            PeerError: It is not there in this version.
        """


class GgufFiles:
    """For peers that read the GGUF files that lie beside the checkpoints, under their names."""

    precision = "gguf"

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`."""
        for role, path in (("target", checkpoints.target), ("draft", checkpoints.draft)):
            if path is not None:
                file = path.with_name(f"{path.name}.gguf")
                if not file.exists():
                    raise PeerError(f"there is no {file}")
                (output / f"{role}.gguf").symlink_to(file.resolve())


class Unjudged:
    """For decoders that give no scores."""

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """See `Decoder`."""
        return "yes" if list(expected) == list(found) else "differs"
