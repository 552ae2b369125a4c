"""The loss of all kinds of heads: cross entropy against a target's likeliest tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BYTES = {"cpu": 1 << 25}  # of logits that are in memory at once
_BYTES_ELSEWHERE = 1 << 31


class ProjectedLoss(torch.autograd.Function):
    """Cross entropy through an output projection that stays frozen.

    Logits and their gradient exist for some rows at a time. What a token adds to the logits of the
    next one (a first-order Markov head) is learned.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        projection: Tensor,
        ids: Tensor,
        shares: Tensor,
        before: Tensor | None = None,
        after: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the sum of the losses; each row's likeliest token; and its overlap.

        The overlap is the sum of the smaller of both probabilities over the `ids`: how often drawn
        tokens would be accepted (Leviathan et al., 2023).

        Args:
            ctx: where the gradients are kept.
            rows: [N, H].
            projection: [V, H], in the precision of the products.
            ids: [N, K] tokens of the draft vocabulary.
            shares: [N, K] their probabilities; rows of zeros count nothing.
            before: [N, R] rows of the tokens before.
            after: [V, R] what is multiplied with them and added to the logits.
        """
        form = projection.dtype
        total = rows.new_zeros((), dtype=torch.float32)
        choices = []
        overlaps = []
        of_rows = []
        of_before = []
        of_after = None if after is None else torch.zeros_like(after, dtype=torch.float32)
        step = max(1, _BYTES.get(rows.device.type, _BYTES_ELSEWHERE) // (4 * len(projection)))
        for part in (slice(n, n + step) for n in range(0, len(rows), step)):
            chosen = ids[part]
            share = shares[part]
            mass = shares[part].sum(-1)
            logits = (rows[part].to(form) @ projection.T).float()
            if before is not None and after is not None:
                logits += before[part].to(form) @ after.to(form).T
            peaks, best = logits.max(dim=-1)
            choices.append(best)
            total -= (logits.gather(1, chosen) * share).sum()
            logits.sub_(peaks[:, None]).exp_()
            sums = logits.sum(-1)
            total += (mass * (peaks + sums.log())).sum()
            drafted = logits.gather(1, chosen) / sums[:, None]
            overlaps.append(torch.minimum(drafted, share).sum(-1))
            if not ctx.needs_input_grad[0]:
                continue
            logits.mul_((mass / sums)[:, None]).scatter_add_(1, chosen, -share)
            gradient = logits.to(form)
            of_rows.append((gradient @ projection).float())
            if before is not None and after is not None and of_after is not None:
                of_before.append((gradient @ after.to(form)).float())
                of_after += gradient.T @ before[part].to(form)
        if of_rows:
            learned = [] if of_after is None else [torch.cat(of_before), of_after]
            ctx.save_for_backward(torch.cat(of_rows), *learned)
        found = torch.cat(choices), torch.cat(overlaps)
        ctx.mark_non_differentiable(*found)
        return total, *found

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the rows and of what is added."""
        of_rows, *learned = (each * upstream[0] for each in ctx.saved_tensors)
        return (of_rows, None, None, None, *(learned or (None, None)))
