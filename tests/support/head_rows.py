"""Draft heads in bundles, and their rows compared with a definition in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity import distance

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, OWN_FEATURES, TARGET, TARGET_FEATURES
from edgespec.export import attach_head, copy_bundle
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.engines.native import NativeGraph
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.head_runner import HeadRunner
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import finished
from edgespec.runtime.kernels import library
from edgespec.runtime.sequences.model import Model as NativeModel
from edgespec.runtime.sequences.model import Rows as NativeRows
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.rope import Rope
from edgespec.runtime.speculation.head import HeadGraph

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


def native_model(opened, name):
    """Returns a role's native graph, which gives features, with a pool of its own."""
    role, width = opened.manifest.roles[name], len(opened.target.taps) * opened.target.hidden_size
    graph = NativeGraph(opened.path / role.native.graph, library(), 1, features=True)
    if role.is_head:
        graph = HeadGraph(graph, width, role.hidden_size)
    ropes = [Rope(table) for table in role.rope_tables]
    return NativeModel(graph, KVPool(role.native.pools, role.precision.kv), ropes)


def check_native_rows(head, reference, text, features, fused):
    """Compares rows of a text, two behind it and one behind the second of them, with a definition.

    Args:
        head: the head, see `native_model`.
        reference: the definition, with `step`.
        text: n + 1 tokens.
        features: [n, F] that the rows of the text read.
        fused: [n, hidden] that the definition makes of them.
    """
    n = len(text) - 1
    read = NativeRows(head.sequence([]), text[1:], [*range(-1, n - 1)], [*range(n)])
    read.reads = {TARGET_FEATURES: features}
    found = [*head.forward([read])[0]]
    read.accept(range(n))
    nodes, above = NativeRows(read.sequence, [5, 77], [-1, -1], [0, 1]), read.features[[-1, -1]]
    nodes.reads = {OWN_FEATURES: above}
    found += [*head.forward([nodes])[0]]
    last = NativeRows(read.sequence, [200], [-1], [0], nodes.slots[1:])
    last.reads = {OWN_FEATURES: nodes.features[1:]}
    found += [*head.forward([last])[0]]

    tokens, hidden = torch.tensor([*text[1:], 5, 77, 200]), fused
    positions, sees = torch.tensor([*range(n), n, n, n + 1]), torch.ones(n + 3, n + 3).tril().bool()
    sees[n + 1 :, n] = False
    for above, stop in (([n - 1, n - 1], n), ([n + 1], n + 2), ([], n + 3)):
        seen = sees[:stop, :stop]
        with torch.no_grad():
            logits, own = reference.step(tokens[:stop], hidden, positions[:stop], seen)
        hidden = torch.cat([hidden, own[above]])
    assert distance(np.stack(found), logits.numpy()) < SAME


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
