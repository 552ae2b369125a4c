"""An EAGLE-3 head in PyTorch against arithmetic that is written a second time, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgespec.training.drafting import Batch
from edgespec.training.eagle3 import Eagle3, Eagle3Shape
from edgespec.training.shape import CONCAT, GATED

LENGTH, DEPTHS = 11, 4


def shape(fusion):
    return Eagle3Shape(
        hidden=16, intermediate=24, heads=4, kv_heads=2, head_dim=8, taps=(0, 1, 2), fusion=fusion,
        vocabulary=50, draft_vocabulary=20, eps=1e-5, theta=10_000.0, context=64,
    )  # fmt: skip


def random_head(fusion):
    head = Eagle3(shape(fusion), DEPTHS)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for each in head.parameters():
            each.normal_(0.5 if each.ndim == 1 else 0.0, 0.3, generator=random)
    return head


class Reference:
    """One text in a head, a token at a time, with a cache of keys and values."""

    def __init__(self, head):
        self.w = {name: each.detach().double().numpy() for name, each in head.named_parameters()}
        self.shape = head.shape
        self.keys, self.values = [], []

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean() + self.shape.eps) * self.w[f"{name}.weight"]

    def rotate(self, x, position):
        half = self.shape.head_dim // 2
        angles = position * self.shape.theta ** (-np.arange(half) / half)
        low, high = x[:, :half], x[:, half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)

    def step(self, embedded, hidden, position):
        w, s = self.w, self.shape
        e = self.norm(embedded, "midlayer.input_layernorm")
        h = self.norm(hidden, "midlayer.hidden_norm")
        x = np.concatenate([e, h])
        if s.fusion == GATED:
            gate = 1 / (1 + np.exp(-w["midlayer.fusion_gate.weight"] @ x))
            x = gate * h + (1 - gate) * e
        q, k, v = (
            (w[f"midlayer.self_attn.{name}_proj.weight"] @ x).reshape(-1, s.head_dim)
            for name in "qkv"
        )
        self.keys.append(self.rotate(k, position))
        self.values.append(v)
        out = []
        for number, query in enumerate(self.rotate(q, position)):
            group = number * s.kv_heads // s.heads
            scores = np.array([query @ key[group] for key in self.keys]) / np.sqrt(s.head_dim)
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            out.append(sum(p * value[group] for p, value in zip(shares, self.values, strict=True)))
        r = hidden + w["midlayer.self_attn.o_proj.weight"] @ np.concatenate(out)
        y = self.norm(r, "midlayer.post_attention_layernorm")
        gate = w["midlayer.mlp.gate_proj.weight"] @ y
        up = w["midlayer.mlp.up_proj.weight"] @ y
        return r + w["midlayer.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)


@pytest.mark.parametrize("fusion", [CONCAT, GATED])
def test_unrolled_depths_equal_decoding_with_a_cache(fusion):
    head = random_head(fusion)
    random = np.random.default_rng(3)
    features = random.normal(size=(2, LENGTH, head.shape.features)).astype(np.float32)
    embedded = random.normal(size=(2, LENGTH, head.shape.hidden)).astype(np.float32)
    rows = torch.from_numpy(features), torch.from_numpy(embedded)
    nothing = [torch.zeros(2, LENGTH, dtype=torch.int64)] * 5
    with torch.no_grad():
        steps = list(head.unroll(Batch(*rows, *nothing)))
    assert [step.depth for step in steps] == list(range(DEPTHS))
    compared = 0
    for text in range(2):
        for last in range(LENGTH - 1):  # the chain that begins behind position `last`
            reference = Reference(head)
            for position in range(last + 1):
                fused = reference.w["fc.weight"] @ features[text, position]
                out = reference.step(embedded[text, position + 1], fused, position)
            for depth, step in enumerate(steps):
                if last + depth + 1 >= LENGTH:
                    break
                if depth:
                    out = reference.step(embedded[text, last + depth + 1], out, last + depth)
                expected = reference.norm(out, "norm")
                np.testing.assert_allclose(step.rows[text, last], expected, rtol=1e-4, atol=1e-5)
                compared += 1
    assert compared == 2 * sum(LENGTH - 1 - depth for depth in range(DEPTHS))


def test_a_new_head_is_the_last_tap_and_nearly_that_alone():
    head = Eagle3(shape(CONCAT), DEPTHS)
    norm = torch.rand(16)
    head.start(norm, seed=1)
    assert torch.equal(head.norm.weight, norm)
    features = torch.randn(1, 3, 48)
    assert torch.allclose(head.fc(features), features[..., 32:], atol=0.2)
    again = Eagle3(shape(CONCAT), DEPTHS)
    again.start(norm, seed=1)
    for one, other in zip(head.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
