"""The loss in parts against that of whole logits."""

from __future__ import annotations

import pytest
import torch

from edgespec.training import loss
from edgespec.training.loss import ProjectedLoss


@pytest.mark.parametrize("learned", [False, True])
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(monkeypatch, learned):
    monkeypatch.setattr(loss, "_BYTES", {"cpu": 4 * 20 * 256})  # several parts
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 16, generator=random, requires_grad=True)
    projection = torch.randn(20, 16, generator=random)
    ids = torch.stack([torch.randperm(20, generator=random)[:5] for _ in range(600)])
    shares = torch.rand(600, 5, generator=random).softmax(-1)
    shares[7] = 0  # a row whose likeliest tokens are all outside
    before = torch.randn(600, 4, generator=random, requires_grad=True) if learned else None
    after = torch.randn(20, 4, generator=random, requires_grad=True) if learned else None
    total, choices, overlaps = ProjectedLoss.apply(rows, projection, ids, shares, before, after)
    (3 * total).backward()
    inputs = [each for each in (rows, before, after) if each is not None]
    found = [each.grad.clone() for each in inputs]
    for each in inputs:
        each.grad = None
    logits = rows @ projection.T
    if learned:
        logits = logits + before @ after.T
    expected = -(logits.log_softmax(-1).gather(1, ids) * shares).sum()
    (3 * expected).backward()
    assert torch.allclose(total, expected, rtol=1e-5)
    for each, gradient in zip(inputs, found, strict=True):
        assert torch.allclose(gradient, each.grad, atol=1e-4)
    assert torch.equal(choices, logits.argmax(-1))
    least = torch.minimum(logits.softmax(-1).gather(1, ids), shares).sum(-1)
    assert torch.allclose(overlaps, least, atol=1e-6)
