"""A P-EAGLE head in PyTorch against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads import HeadReference

from edgespec.training.drafting import TextBatch
from edgespec.training.peagle import PEagle, PEagleShape

LENGTH, DEPTHS = 13, 4
MASK = LENGTH  # the row of the table of embeddings that a mask has


def random_head():
    shape = PEagleShape(
        hidden=16,
        intermediate=24,
        heads=4,
        kv_heads=2,
        head_dim=8,
        taps=(0, 1, 2),
        vocabulary=50,
        draft_vocabulary=20,
        eps=1e-5,
        theta=10_000.0,
        context=64,
        layers=2,
        mask_token=49,
    )
    random = torch.Generator().manual_seed(5)
    head = PEagle(shape, DEPTHS, torch.randn(16, generator=random))
    with torch.no_grad():
        for each in head.parameters():
            each.normal_(0.5 if each.ndim == 1 else 0.0, 0.3, generator=random)
    return head


@pytest.mark.parametrize("random", [None, 1])
def test_rows_of_texts_and_masks_are_those_of_each_draft_alone(random):
    head = random_head()
    draw = torch.Generator().manual_seed(3)
    features = torch.randn(2, LENGTH, 48, generator=draw)
    embedded = torch.randn(2, LENGTH, 16, generator=draw)
    nothing = [torch.zeros(2, LENGTH, dtype=torch.int64)] * 5
    seed = None if random is None else torch.Generator().manual_seed(random)
    with torch.no_grad():
        steps = list(head.unroll(TextBatch(features, embedded, *nothing), seed))
    assert [step.depth for step in steps] == list(range(DEPTHS))
    weights = {name: each.detach() for name, each in head.named_parameters()}
    unused = {"d2t": torch.zeros(1).long(), "lm_head.weight": torch.zeros(1, 16)}
    config = head.shape.layout(DEPTHS, "owner/target")
    masks = torch.arange(MASK, MASK + 1).repeat(DEPTHS - 1)
    compared = 0
    for text in range(2):
        table = torch.cat((embedded[text], dict(head.named_buffers())["_mask"][None]))
        reference = HeadReference({**weights, **unused}, config, table)
        for number, at in enumerate(steps[0].at[text].tolist()):
            rows = torch.arange(at + DEPTHS - 1)
            told = head.mask_hidden[0].expand(DEPTHS - 1, -1)
            hidden = reference.fuse(torch.cat((features[text, :at], told)))
            tokens = torch.cat((torch.arange(1, at + 1), masks))
            with torch.no_grad():
                _, own = reference.step(tokens, hidden, rows, rows[:, None] >= rows)
                expected = reference.norm(own[at - 1 :], "norm")
            for depth, step in enumerate(steps):
                if number < step.rows.shape[1]:
                    assert step.at[text, number] == at + depth < LENGTH
                    found = step.rows[text, number]
                    np.testing.assert_allclose(found, expected[depth], rtol=1e-4, atol=1e-5)
                    compared += 1
    drafts = steps[1].at.shape[1]
    assert compared == 2 * (LENGTH - 1 + (DEPTHS - 1) * drafts)
