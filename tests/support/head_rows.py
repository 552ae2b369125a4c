"""Draft heads in bundles, and their rows compared with a definition in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity import Text, distance

from edgespec import bundle as bundles
from edgespec.bundle import OWN_FEATURES, TARGET, TARGET_FEATURES
from edgespec.export.heads.attach import attach_head, copy_bundle
from edgespec.llm.load.graphs import GraphOpener
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import AFTER, Rows

SAME = 1e-4
FORMS = {"native": True, "portable": False}
"""Graphs of heads by name: whether they are native."""


def attached(bundle, folder, head, precision="fp32"):
    """Returns a copy of a bundle that has the head."""
    folder.mkdir()
    copy_bundle(bundles.load(bundle), folder)
    attach_head(folder, head, precision, lambda *_: None)
    return bundles.load(folder)


def refused(bundle, folder, head, kind, message):
    """Checks that a bundle does not get a head, and that a line says why."""
    with pytest.raises(kind, match=message) as error:
        attached(bundle, folder, head)
    assert "\n" not in str(error.value)


def with_features(opened, role, native=True):
    """Returns a role that gives features, of operators of our own or of standard ones."""
    return GraphOpener(opened, role, 1, features=True).model(Placement(HOST, native=native))


def features_of_target(opened, tokens):
    """Returns what a head reads of a text, [n, F]."""
    model = with_features(opened, TARGET)
    rows = Text(model).rows(tokens)
    model.forward([rows])
    return rows.features


def check_rows(head, reference, text, features, fused):
    """Compares rows of a text, two behind it and one behind the second of them, with a definition.

    Args:
        head: the head, see `with_features`.
        reference: the definition, with `step`.
        text: n + 1 tokens.
        features: [n, F] that the rows of the text read.
        fused: [n, hidden] that the definition makes of them.
    """
    n = len(text) - 1
    read = Text(head).rows(text[1:])
    read.reads = {TARGET_FEATURES: features}
    found = [*head.forward([read])[0]]
    read.accept(range(n))
    nodes = Rows(read.sequence, [5, 77], [AFTER, AFTER], [0, 1])
    above = read.features[[-1, -1]]
    nodes.reads = {OWN_FEATURES: above}
    found += [*head.forward([nodes])[0]]
    last = Rows(read.sequence, [200], [AFTER], [0], nodes.slots[1:])
    last.reads = {OWN_FEATURES: nodes.features[1:]}
    found += [*head.forward([last])[0]]

    tokens = torch.tensor([*text[1:], 5, 77, 200])
    hidden = fused
    positions = torch.tensor([*range(n), n, n, n + 1])
    sees = torch.ones(n + 3, n + 3).tril().bool()
    sees[n + 1 :, n] = False
    for above, stop in (([n - 1, n - 1], n), ([n + 1], n + 2), ([], n + 3)):
        seen = sees[:stop, :stop]
        with torch.no_grad():
            logits, own = reference.step(tokens[:stop], hidden, positions[:stop], seen)
        hidden = torch.cat([hidden, own[above]])
    assert distance(np.stack(found), logits.numpy()) < SAME
