"""DSpark (DeepSeek, 2026): DFlash with a Markov head and a confidence head.

The token before adds a learned row to the logits of each position, so that a draft's tokens fit
each other, and each position tells how likely the target is to accept it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec.training.dflash import BlockShape, DFlash
from edgespec.training.drafting import Step


class _Markov(nn.Module):
    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(shape.vocabulary, shape.markov_rank)
        self.markov_w2 = nn.Linear(shape.markov_rank, shape.draft_vocabulary, bias=False)


class _Confidence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class DSpark(DFlash):
    """A head that drafts blocks; the newest token's row predicts the token behind it."""

    first = 0

    def __init__(self, shape: BlockShape, mask: Tensor) -> None:
        super().__init__(shape, mask)
        self.markov_head = _Markov(shape)
        self.confidence_head = _Confidence(shape.hidden + shape.markov_rank)

    def start(self, norm: Tensor, seed: int) -> None:
        """See `HeadModule`; no token adds anything yet, and all confidences are one half."""
        super().start(norm, seed)
        nn.init.zeros_(self.markov_head.markov_w2.weight)
        nn.init.zeros_(self.confidence_head.proj.weight)
        nn.init.zeros_(self.confidence_head.proj.bias)

    def _step(self, step: Step, tokens: Tensor) -> Step:
        return replace(step, before=self.markov_head.markov_w1(tokens.gather(1, step.at)))

    @property
    def after(self) -> Tensor:
        """See `HeadModule`."""
        return self.markov_head.markov_w2.weight

    def further_loss(self, step: Step, overlaps: Tensor, counted: Tensor) -> Tensor:
        """See `HeadModule`: the confidence's, against how often drawn tokens are accepted."""
        assert step.before is not None, "each step has them"
        found = self.confidence(step.rows, step.before)
        losses = functional.binary_cross_entropy_with_logits(
            found, overlaps.clamp(0, 1), reduction="none"
        )
        return (losses * counted).sum() / counted.sum().clamp(min=1)

    def confidence(self, rows: Tensor, before: Tensor) -> Tensor:
        """Returns the logits of the probabilities that the target accepts, [...].

        Args:
            rows: [..., H] rows of a block.
            before: [..., R] rows of the tokens before the predicted ones.
        """
        found: Tensor = self.confidence_head.proj(torch.cat((rows, before), -1).float())
        return found.float().squeeze(-1)
