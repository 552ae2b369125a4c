"""What is common to the kinds of draft heads: what they read, and what they predict."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgespec.training.shape import HeadShape


@dataclass(frozen=True)
class TextBatch:
    """Texts side by side, padded to the longest.

    Attributes:
        features: [B, L, F].
        embedded: [B, L, H].
        tokens: [B, L] int64.
        choices: [B, L] int64, the target's likeliest next token.
        labels: [B, L, K] int64, numbers in the draft vocabulary of the target's likeliest tokens.
        shares: [B, L, K] their probabilities; 0 for padding.
        real: [B, L] whether a row is one of its text.
    """

    features: Tensor
    embedded: Tensor
    tokens: Tensor
    choices: Tensor
    labels: Tensor
    shares: Tensor
    real: Tensor


@dataclass(frozen=True)
class Step:
    """The predictions of one depth.

    Attributes:
        rows: [B, n, H], normalized, ready for the output projection.
        at: [B, n] positions of the tokens before the predicted ones.
        depth: number of tokens between the text that was read and the predicted ones. Row i is of
            the same draft at every depth, as long as there is one.
        before: [B, n, R] rows of the tokens before, for `HeadModule.after`; None without.
    """

    rows: Tensor
    at: Tensor
    depth: int
    before: Tensor | None = None


class HeadModule(nn.Module, ABC):
    """A head without its output projection, which is the target's and stays as it is.

    Args:
        shape: its sizes.

    Attributes:
        depths: number of tokens that it drafts, or is trained to draft.
        decay: weight of a depth's loss, relative to the one before.
        projects: whether the output projection is stored with it.
    """

    decay: ClassVar[float]
    projects: ClassVar[bool] = True

    def __init__(self, shape: HeadShape, depths: int) -> None:
        super().__init__()
        self.shape = shape
        self.depths = depths

    @abstractmethod
    def start(self, norm: Tensor, seed: int) -> None:
        """Sets all weights as they are before the training.

        Args:
            norm: [H] weight of the target's final norm.
            seed: seed of the random weights.
        """

    @abstractmethod
    def unroll(self, batch: TextBatch, random: torch.Generator | None = None) -> Iterator[Step]:
        """Predicts depth by depth.

        Args:
            batch: the texts.
            random: where drafts begin; None: the same places each time.
        """

    @property
    def after(self) -> Tensor | None:
        """What a token adds to the logits of the next one, [V, R] for `Step.before`."""
        return None

    def further_loss(self, step: Step, overlaps: Tensor, counted: Tensor) -> Tensor:
        """Returns what else is learned from a depth, a loss.

        Args:
            step: the predictions.
            overlaps: [B, n] how often the target would accept drawn ones.
            counted: [B, n] which rows count.
        """
        return overlaps.new_zeros(())


class FusingHead(HeadModule):
    """A head that makes one row of those that several layers read.

    Args:
        shape: its sizes.
        depths: see `HeadModule`.
    """

    def __init__(self, shape: HeadShape, depths: int) -> None:
        super().__init__(shape, depths)
        self.fc = nn.Linear(shape.features, shape.hidden, bias=False)

    def start(self, norm: Tensor, seed: int) -> None:
        """See `HeadModule`: with the last tap alone, and the target's own final norm."""
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, each in self.named_parameters():
                if each.ndim > 1:
                    small = 0.1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                    each.normal_(0, small / math.sqrt(each.shape[1]), generator=random)
            self.fc.weight.mul_(0.01)
            self.fc.weight[:, -self.shape.hidden :] += torch.eye(self.shape.hidden)
            self.get_parameter("norm.weight").copy_(norm)
