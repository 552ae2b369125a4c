"""Heads that draft blocks, in PyTorch, against their definition."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from blocks import MASK, BlockReference

from edgespec.training.dflash import BlockShape, DFlash
from edgespec.training.drafting import TextBatch
from edgespec.training.dspark import DSpark

LENGTH = 14
BLOCK = 4
HIDDEN = 16


def random_head(kind):
    shape = BlockShape(
        hidden=HIDDEN,
        intermediate=24,
        heads=4,
        kv_heads=2,
        head_dim=8,
        taps=(1, 2),
        vocabulary=50,
        draft_vocabulary=20,
        eps=1e-5,
        theta=10_000.0,
        context=64,
        layers=2,
        block=BLOCK,
        mask_token=49,
        markov_rank=3 if kind is DSpark else 0,
    )
    random = torch.Generator().manual_seed(5)
    head = kind(shape, torch.randn(HIDDEN, generator=random))
    with torch.no_grad():
        for each in head.parameters():
            each.normal_(0.5 if each.ndim == 1 else 0.0, 0.3, generator=random)
    return head


def random_batch():
    random = torch.Generator().manual_seed(3)
    features = torch.randn(2, LENGTH, 2 * HIDDEN, generator=random)
    embedded = torch.randn(2, LENGTH, HIDDEN, generator=random)
    tokens = torch.randint(50, (2, LENGTH), generator=random)
    nothing = torch.zeros(2, LENGTH, 1)
    return TextBatch(
        features, embedded, tokens, tokens, nothing.long(), nothing, nothing[..., 0] > 0
    )


def reference_of(head, table):
    """The definition with the weights of a head, which reads rows of a table by token."""
    weights = {name: each.detach() for name, each in head.named_parameters()}
    layer = {
        "num_hidden_layers": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "block_size": BLOCK,
        "architectures": [type(head).__name__],
    }
    embedding = SimpleNamespace(weight=SimpleNamespace(data=table))
    target = SimpleNamespace(get_input_embeddings=lambda: embedding, lm_head=embedding)
    return BlockReference(weights, layer, target)


@pytest.mark.parametrize("kind", [DFlash, DSpark])
def test_blocks_of_a_batch_equal_blocks_alone(kind):
    head = random_head(kind)
    batch = random_batch()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        steps = list(head.unroll(batch, random))
    assert len(steps) == head.depths == BLOCK - kind.first
    for text in range(2):
        table = torch.zeros(MASK + 1, HIDDEN)
        table[:LENGTH], table[MASK] = batch.embedded[text], dict(head.named_buffers())["_mask"]
        reference = reference_of(head, table)
        for draft, anchor in enumerate(steps[0].at[text].tolist()):
            assert 1 <= anchor < LENGTH - head.depths
            with torch.no_grad():
                rows = reference.rows(batch.features[text, :anchor], [*range(LENGTH)], [anchor])
            for depth, step in enumerate(steps):
                assert step.at[text, draft] == anchor + depth
                expected = rows[kind.first + depth]
                np.testing.assert_allclose(step.rows[text, draft], expected, rtol=1e-4, atol=1e-5)
                if kind is DSpark:
                    before = head.markov_head.markov_w1.weight[batch.tokens[text, anchor + depth]]
                    assert torch.equal(step.before[text, draft], before)


def test_confidence_learns_how_often_drafts_are_accepted():
    head = random_head(DSpark)
    batch = random_batch()
    head.start(torch.ones(HIDDEN), seed=0)
    step = next(head.unroll(batch))
    overlaps = torch.full(step.at.shape, 0.25)
    counted = torch.ones_like(overlaps)
    losses = []
    optimizer = torch.optim.Adam(head.confidence_head.parameters(), 0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss = head.further_loss(step, overlaps, counted)
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(2))
    found = head.confidence(step.rows, step.before).sigmoid()
    assert torch.allclose(found, overlaps, atol=0.02)
    assert head.further_loss(step, overlaps, torch.zeros_like(counted)) == 0
