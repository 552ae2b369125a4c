"""Mixtures and recurrent layers in native graphs: transformers' numbers, the same in any call."""

from __future__ import annotations

import pytest
import torch
from checkpoints import MIXTURES, RECURRENT
from native import NativeText
from nodes import MISSING, same_bits
from parity import PROMPT, SAME, SAME_STATES, distance, made, path_to

from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

TOKENS = PROMPT[:60]
CHAIN = [*range(-1, len(TOKENS) - 1)]
TREE, TREE_PARENTS = (17, 3, 250, 99, 3, 41, 330), (-1, 0, 0, 1, 1, 2, 4)


@pytest.fixture(scope="module", params=[*MIXTURES, *RECURRENT, "gemma4_experts"])
def exported(request, tmp_path_factory):
    """A bundle in float32, and transformers' model."""
    folder = tmp_path_factory.mktemp("native")
    if request.param == "gemma4_experts":
        model = made(folder / "source", "gemma4_text", enable_moe_block=True, num_experts=8,
                     top_k_experts=3, moe_intermediate_size=96, num_kv_shared_layers=0)  # fmt: skip
    else:
        model = made(folder / "source", request.param)
    export_bundle(folder / "source", folder / "bundle", options=ExportOptions("fp32"))
    bundle = bundles.load(folder / "bundle")
    return bundle, model, request.param in RECURRENT


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def text(bundle, **options):
    return NativeText(bundle.path, bundle.manifest.roles["target"], **options)


def test_logits_are_those_of_transformers(exported):
    bundle, model, recurrent = exported
    found = text(bundle).run(TOKENS, CHAIN, len(TOKENS))
    expected = logits_of(model, TOKENS)
    assert distance(found, expected) < (SAME_STATES if recurrent else SAME)


def test_rows_have_the_same_bits_in_chunks_alone_and_in_trees(exported):
    bundle = exported[0]
    whole, alone = text(bundle, threads=2), text(bundle)
    found = whole.run(TOKENS, CHAIN, len(TOKENS))
    for row, token in enumerate(TOKENS):
        same_bits(alone.run([token], [-1], 1)[0], found[row])
    tree = whole.run(TREE, TREE_PARENTS, 1)
    for row in range(len(TREE)):
        path = [TREE[each] for each in path_to(row)]
        other = text(bundle)
        other.run(TOKENS, CHAIN, len(TOKENS))
        logits = [other.run([token], [-1], 1)[0] for token in path]
        same_bits(logits[-1], tree[row])
    whole.accept([1, 4])
    behind = whole.run([5, 6], [-1, 0], 1)
    expected = text(bundle).run([*TOKENS, 17, 3, 3, 5, 6], [*range(-1, len(TOKENS) + 4)])
    same_bits(behind, expected[-2:])


def test_bundles_say_what_recurrent_layers_hold(exported):
    bundle, _, recurrent = exported
    native = bundle.manifest.roles["target"].native
    before = {each.before for each in native.recurrent}
    assert before == ({bundle.target.sublayers[0].recurrent.kernel - 1} if recurrent else set())
