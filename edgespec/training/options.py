"""The options of a training."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from edgespec.errors import InputError
from edgespec.system.options import require_count
from edgespec.training.shape import CONCAT, FUSIONS

SHARD_TOKENS = 1 << 13
"""Tokens of a shard: features are made for so many, and then trained on."""


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training.

    Attributes:
        taps: layers whose entering rows the head reads; None for EAGLE-3's.
        fusion: one of `FUSIONS`.
        intermediate_size: width of the head's MLP; None for twice the hidden size.
        draft_vocabulary: number of tokens that the head may propose; all if there are fewer.
        generate: whether the target writes the texts, as continuations of the given ones.
        window: tokens of a text that is read at once.
        batch: tokens of a step of the optimizer.
        steps: depths that each position is trained for.
        learning_rate: AdamW's learning rate.
        hours: longest time; None for no limit.
        tokens: most tokens to train on, repeated ones included; None for no limit.
        patience: evaluations without any gain after which the training ends.
        disk: bytes that features may take on disk.
        seed: seed of the order of texts and of random weights.

    Raises:
        InputError: if a value is out of range.
    """

    taps: tuple[int, ...] | None = None
    fusion: str = CONCAT
    intermediate_size: int | None = None
    draft_vocabulary: int = 16_384
    generate: bool = True
    window: int = 256
    batch: int = 512
    steps: int = 4
    learning_rate: float = 5e-4
    hours: float | None = None
    tokens: int | None = None
    patience: int = 8
    disk: int = 4 << 30
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fusion not in FUSIONS:
            raise InputError(f"fusion is {self.fusion!r}: use one of {', '.join(FUSIONS)}")
        for name, least in (
            ("draft_vocabulary", 2), ("window", 16), ("batch", 16), ("steps", 1), ("patience", 1),
            ("disk", 1), ("seed", 0),
        ):  # fmt: skip
            require_count(name, getattr(self, name), least)
        for name in ("intermediate_size", "tokens"):
            require_count(name, getattr(self, name), 1, optional=True)
        for name in ("hours", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{name} is {value}: give a number above 0")
        if self.steps + 2 > self.window:
            raise InputError(f"window is {self.window}: give more than {self.steps + 1} tokens")


def require_torch() -> None:
    """Checks that PyTorch is installed, without importing it: only training uses it.

    Raises:
        InputError: if it is not.
    """
    if find_spec("torch") is None:
        raise InputError("training needs PyTorch: install edgespec[train]")
