"""The tokens that a head may propose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from edgespec.runtime.arrays import Doubles, Floats, Ids, Mask


def expected_uses(ids: Ids, logits: Floats, vocabulary: int) -> Doubles:
    """Returns how often a target expects each token, per row.

    Args:
        ids: [n, K] its likeliest tokens.
        logits: [n, K] their logits.
        vocabulary: number of tokens.
    """
    shares = probabilities(logits)
    uses = np.bincount(ids.ravel(), shares.ravel(), vocabulary)
    return uses / max(len(ids), 1)


def probabilities(logits: Floats) -> Floats:
    """Returns the probabilities of logits [n, K] among themselves."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=1, keepdims=True)
    return shares


def choose(text: Sequence[int], expected: Doubles, size: int, always: Iterable[int]) -> Ids:
    """Chooses the tokens that a text uses and a target expects most, then those with low ids.

    Args:
        text: token ids.
        expected: [V] see `expected_uses`.
        size: number of tokens to choose; all if there are fewer.
        always: tokens to choose in any case.

    Returns:
        Their ids, ascending.
    """
    uses = np.bincount(np.asarray(text, np.int64), minlength=len(expected)) / max(len(text), 1)
    uses = uses[: len(expected)] + expected
    uses[[token for token in always if token < len(uses)]] = np.inf
    order = np.argsort(-uses, kind="stable")
    return np.sort(order[:size])


def offsets(ids: Ids, vocabulary: int) -> tuple[Ids, Mask]:
    """Returns d2t and t2d: what to add to a draft's id, and which tokens it may propose."""
    proposed = np.zeros(vocabulary, np.bool_)
    proposed[ids] = True
    return ids - np.arange(len(ids)), proposed


class DraftIds:
    """Numbers of tokens in a draft vocabulary.

    Args:
        ids: [D] the tokens of the vocabulary, ascending.
        vocabulary: number of the target's tokens.
        device: where tensors are.

    Attributes:
        ids: see above.
        tokens: the same as a tensor.
    """

    def __init__(self, ids: Ids, vocabulary: int, device: torch.device) -> None:
        self.ids = ids
        self.tokens = torch.from_numpy(ids).to(device)
        self._numbers = torch.full((vocabulary,), -1, device=device)
        self._numbers[self.tokens] = torch.arange(len(ids), device=device)

    def labels(self, ids: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns numbers and probabilities of a target's likeliest tokens, [..., K] each.

        Tokens outside have probability 0, and the others' add up to 1; a row without any is all 0.
        """
        numbers = self._numbers[ids]
        shares = logits.float().softmax(-1) * (numbers >= 0)
        total = shares.sum(-1, keepdim=True)
        return numbers.clamp(min=0), shares / torch.where(total > 0, total, 1)
