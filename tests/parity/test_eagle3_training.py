"""An EAGLE-3 head in PyTorch against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads import HeadReference

from edgespec.training.drafting import TextBatch
from edgespec.training.eagle3 import Eagle3, Eagle3Shape

LENGTH, DEPTHS = 11, 4


def shape(gated):
    return Eagle3Shape(
        hidden=16,
        intermediate=24,
        heads=4,
        kv_heads=2,
        head_dim=8,
        taps=(0, 1, 2),
        gated=gated,
        vocabulary=50,
        draft_vocabulary=20,
        eps=1e-5,
        theta=10_000.0,
        context=64,
    )


def random_head(gated):
    head = Eagle3(shape(gated), DEPTHS)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for each in head.parameters():
            each.normal_(0.5 if each.ndim == 1 else 0.0, 0.3, generator=random)
    return head


def reference_of(head, table):
    """The definition with the weights of a head, which reads rows of a table by token."""
    weights = {name: each.detach() for name, each in head.named_parameters()}
    config = head.shape.layout(DEPTHS, "owner/target")
    if head.shape.gated:  # our own, in the flat layout
        weights = {name.replace("layers.0", "midlayer"): each for name, each in weights.items()}
    nothing = {"d2t": torch.zeros(1).long(), "lm_head.weight": torch.zeros(1, 16)}
    return HeadReference({**weights, **nothing}, config, table)


@pytest.mark.parametrize("gated", [False, True])
def test_unrolled_depths_equal_decoding_with_a_cache(gated):
    head = random_head(gated)
    random = np.random.default_rng(3)
    features = torch.from_numpy(random.normal(size=(2, LENGTH, head.shape.features))).float()
    embedded = torch.from_numpy(random.normal(size=(2, LENGTH, head.shape.hidden))).float()
    nothing = [torch.zeros(2, LENGTH, dtype=torch.int64)] * 5
    with torch.no_grad():
        steps = list(head.unroll(TextBatch(features, embedded, *nothing)))
    assert [step.depth for step in steps] == list(range(DEPTHS))
    compared = 0
    for text in range(2):
        reference = reference_of(head, embedded[text])
        for last in range(LENGTH - 1):  # the chain that begins behind position `last`
            hidden = reference.fuse(features[text, : last + 1])
            for depth, step in enumerate(steps[: LENGTH - 1 - last]):
                rows = torch.arange(last + depth + 1)
                with torch.no_grad():
                    _, own = reference.step(rows + 1, hidden, rows, rows[:, None] >= rows)
                    hidden = torch.cat([hidden, own[-1:]])
                    expected = reference.norm(own[-1], "norm")
                np.testing.assert_allclose(step.rows[text, last], expected, rtol=1e-4, atol=1e-5)
                compared += 1
    assert compared == 2 * sum(LENGTH - 1 - depth for depth in range(DEPTHS))


def test_a_new_head_is_the_last_tap_and_nearly_that_alone():
    head = Eagle3(shape(gated=False), DEPTHS)
    norm = torch.rand(16)
    head.start(norm, seed=1)
    assert torch.equal(head.norm.weight, norm)
    features = torch.randn(1, 3, 48)
    assert torch.allclose(head.fc(features), features[..., 32:], atol=0.2)
    again = Eagle3(shape(gated=False), DEPTHS)
    again.start(norm, seed=1)
    for one, other in zip(head.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
