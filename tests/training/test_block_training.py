"""Heads that draft blocks, in PyTorch, against arithmetic that is written a second time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgespec.training.dflash import BlockShape, DFlash
from edgespec.training.drafting import Batch
from edgespec.training.dspark import DSpark

LENGTH, BLOCK, HIDDEN = 14, 4, 16


def random_head(kind):
    shape = BlockShape(
        hidden=HIDDEN, intermediate=24, heads=4, kv_heads=2, head_dim=8, taps=(1, 2),
        vocabulary=50, draft_vocabulary=20, eps=1e-5, theta=10_000.0, context=64, layers=2,
        block=BLOCK, mask_token=49, markov_rank=3 if kind is DSpark else 0,
    )  # fmt: skip
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
    return Batch(features, embedded, tokens, tokens, nothing.long(), nothing, nothing[..., 0] > 0)


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def rotated(x, position):
    half = x.shape[-1] // 2
    angles = position * 10_000.0 ** (-np.arange(half) / half)
    low, high = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def block(head, features, first, mask, position):
    """The rows of one block behind `features`, a head of its own for each query."""
    w = {name: each.detach().double().numpy() for name, each in head.named_parameters()}
    context = [norm(w["fc.weight"] @ row, w["hidden_norm.weight"]) for row in features]
    rows = [first] + [mask] * (BLOCK - 1)
    for number in range(2):
        layer = f"layers.{number}."
        inner = [norm(row, w[f"{layer}input_layernorm.weight"]) for row in rows]
        made = {
            name: [(w[f"{layer}self_attn.{name}_proj.weight"] @ x).reshape(-1, 8) for x in each]
            for name, each in (("q", inner), ("k", context + inner), ("v", context + inner))
        }
        keys = [
            rotated(norm(key, w[f"{layer}self_attn.k_norm.weight"]), at)
            for at, key in enumerate(made["k"])
        ]
        out = []
        for place, row in enumerate(rows):
            turned = norm(made["q"][place], w[f"{layer}self_attn.q_norm.weight"])
            query, mixed = rotated(turned, position + place), []
            for number_of_head in range(4):
                group = number_of_head // 2
                scores = np.array([query[number_of_head] @ key[group] for key in keys]) / np.sqrt(8)
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                mixed.append(sum(s * v[group] for s, v in zip(shares, made["v"], strict=True)))
            x = row + w[f"{layer}self_attn.o_proj.weight"] @ np.concatenate(mixed)
            y = norm(x, w[f"{layer}post_attention_layernorm.weight"])
            gate, up = (w[f"{layer}mlp.{name}_proj.weight"] @ y for name in ("gate", "up"))
            out.append(x + w[f"{layer}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up))
        rows = out
    return [norm(row, w["norm.weight"]) for row in rows]


@pytest.mark.parametrize("kind", [DFlash, DSpark])
def test_blocks_of_a_batch_equal_blocks_alone(kind):
    head, batch = random_head(kind), random_batch()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        steps = list(head.unroll(batch, random))
    assert len(steps) == head.depths == BLOCK - kind.first
    mask = dict(head.named_buffers())["_mask"].double().numpy()
    for text in range(2):
        for draft, anchor in enumerate(steps[0].at[text].tolist()):
            assert 1 <= anchor < LENGTH - head.depths
            rows = block(
                head, batch.features[text, :anchor].double().numpy(),
                batch.embedded[text, anchor].double().numpy(), mask, anchor,
            )  # fmt: skip
            for depth, step in enumerate(steps):
                assert step.at[text, draft] == anchor + depth
                expected = rows[kind.first + depth]
                np.testing.assert_allclose(step.rows[text, draft], expected, rtol=1e-4, atol=1e-5)
                if kind is DSpark:
                    before = head.markov_head.markov_w1.weight[batch.tokens[text, anchor + depth]]
                    assert torch.equal(step.before[text, draft], before)


def test_confidence_learns_how_often_drafts_are_accepted():
    head, batch = random_head(DSpark), random_batch()
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
