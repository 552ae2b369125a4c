"""Draft heads in bundles, and their rows compared with a definition in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity import distance

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.export import attach_head, copy_bundle
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.head_runner import HeadRunner
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import finished

SAME = 1e-4


def attached(bundle, folder, head, precision="fp32"):
    """Returns a copy of a bundle that has the head."""
    folder.mkdir()
    copy_bundle(bundles.load(bundle), folder)
    attach_head(folder, head, precision, lambda *_: None)
    return bundles.load(folder)


def runners(opened, device=CPU_ENGINES[0]):
    """Returns an empty text in the target and in the head."""
    models = (Model.load(opened, role, engine(device), 1) for role in (TARGET, DRAFT))
    return Runner(next(models)), HeadRunner(next(models))


def check_rows(calls, reference, text, hidden):
    """Compare the rows of a text, and two levels of a tree behind it, with a definition.

    Args:
        calls: calls of the head, with nothing fed.
        reference: the definition, with `step` and `ids`.
        text: n + 1 tokens.
        hidden: [n, hidden], the hidden rows that the rows of the text read.
    """
    n = len(text) - 1
    tokens = torch.tensor(text[1:])
    positions, sees = torch.arange(n), torch.ones(n, n).tril().bool()
    with torch.no_grad():
        logits, following = reference.step(tokens, hidden, positions, sees)
    _check(finished(calls.feed(text)), logits[-1:], reference.ids)

    # Two rows behind the text, and one behind the second of them.
    nodes = [[5, 77], [200]]
    rows = [Rows(nodes[0], [0, 0], np.eye(2, dtype=np.bool_), [START, START]),
            Rows(nodes[1], [1], np.array([[False, True, True]]), [1])]  # fmt: skip
    tokens = torch.cat([tokens, torch.tensor([5, 77])])
    hidden = torch.cat([hidden, following[-1:], following[-1:]])
    positions = torch.cat([positions, torch.tensor([n, n])])
    sees = torch.ones(n + 2, n + 2).tril().bool()
    sees[n + 1, n] = False
    with torch.no_grad():
        logits, first = reference.step(tokens, hidden, positions, sees)
    _check(finished(calls.level(rows[0])), logits[-2:], reference.ids)
    tokens = torch.cat([tokens, torch.tensor([200])])
    hidden = torch.cat([hidden, first[-1:]])
    positions = torch.cat([positions, torch.tensor([n + 1])])
    wider = torch.zeros(n + 3, n + 3, dtype=torch.bool)
    wider[: n + 2, : n + 2] = sees
    wider[n + 2] = True
    wider[n + 2, n] = False
    with torch.no_grad():
        logits, _ = reference.step(tokens, hidden, positions, wider)
    _check(finished(calls.level(rows[1])), logits[-1:], reference.ids)


def _check(candidates, logits, ids):
    for row, expected in enumerate(logits.numpy()):
        found = _ordered(candidates.tokens[row], candidates.logits[row], ids.numpy())
        known = ~np.isnan(found)
        assert known.sum() == min(128, len(ids))
        assert distance(found[known], expected[known]) < SAME
        assert expected[~known].max(initial=-np.inf) <= found[known].min() + SAME
        total = np.log(np.exp(expected - expected.max()).sum()) + expected.max()
        assert candidates.normalizers[row] == pytest.approx(total, abs=SAME)


def _ordered(tokens, logits, ids):
    """Returns logits by the head's outputs, from candidates by the target's ids."""
    found = np.full(len(ids), np.nan, np.float32)
    place = {int(token): number for number, token in enumerate(ids)}
    for token, logit in zip(tokens, logits, strict=True):
        found[place[int(token)]] = logit
    return found
