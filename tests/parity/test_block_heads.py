"""Block drafters in bundles: their definition, both layouts, and drafters that are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from blocks import BLOCKS, OUTPUTS, BlockReference, taps_of, write_block
from gguf_heads import write_gguf_block
from head_parts import features_of, save
from head_rows import FORMS, SAME, attached, features_of_target, refused, with_features
from heads import write_target
from nodes import MISSING, same_bits
from parity import PROMPT, distance

from edgespec.bundle import DRAFT, SIGHT, TARGET_FEATURES
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.runtime.drafters.block_head import Pairs
from edgespec.runtime.sequences.model import AFTER, Rows

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

TEXT = PROMPT[:70]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


def block_rows(head, role, features, anchor, sequence=None, begin=0):
    """Rows that read features behind a sequence, and a block behind them."""
    n = len(features)
    size = role.block.rows
    masks = [role.mask_token] * (size - 1)
    first = n + size - (size if role.block.from_anchor else size - 1)
    sight = np.concatenate([np.full(n, -1), np.arange(size)[::-1]]).astype(np.int32)
    return Rows(
        head.sequence([]) if sequence is None else sequence,
        [*[0] * n, anchor, *masks],
        [AFTER, *range(n + size - 1)],
        list(range(first, n + size)),
        reads={TARGET_FEATURES: features, SIGHT: sight},
        certain=n,
    )


def near(found, expected):
    assert distance(found, expected) < SAME


@pytest.mark.parametrize("form_of_graph", FORMS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_computes_what_its_definition_says(target, tmp_path, name, form_of_graph):
    """In one call, in two, and beside another sequence, with the same bits."""
    model, bundle = target
    form, flat, changes = BLOCKS[name]
    weights, config = write_block(tmp_path / "head", model.config, form, flat, **changes)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    role = opened.draft
    features = features_of_target(opened, TEXT)
    taps = taps_of(config)
    assert distance(features, features_of(model, TEXT, taps).numpy()) < SAME
    same = same_bits if FORMS[form_of_graph] else near
    head = with_features(opened, DRAFT, FORMS[form_of_graph])
    both = [block_rows(head, role, features[:n], TEXT[n]) for n in (40, 60)]
    found = head.forward(both)
    trust = [rows.features for rows in both]
    reference = BlockReference(weights, config, model)
    for n, logits, rows in zip((40, 60), found, both, strict=True):
        with torch.no_grad():
            expected = reference.rows(torch.tensor(features[:n]), TEXT, [n])
            assert distance(logits, reference.logits(expected).numpy()) < SAME
            if form == "dflash2":
                pairs = Pairs.read(opened.path / role.block.pairs, 331, None)
                factors = rows.features[rows.wanted]
                given = logits + (factors * pairs.previous(7)) @ pairs.following(np.arange(331)).T
                assert distance(given, reference.selected(expected, 7).numpy()) < SAME
            elif rows.features is not None:
                _, wanted = reference.behind(expected, torch.zeros(len(logits)).long())
                own = weights["markov_head.markov_w1.weight"][0]
                told = weights["confidence_head.proj.weight"][0, 64:]
                wanted = wanted - (own @ told if len(told) else 0)
                given = rows.features[rows.wanted, 0]
                assert np.abs(given - wanted.numpy()).max() < SAME
    both[0].accept(range(40))
    later = block_rows(head, role, features[40:60], TEXT[60], both[0].sequence)
    same(head.forward([later])[0], found[1])
    if trust[1] is not None:
        same(later.features[later.wanted], trust[1][both[1].wanted])


def test_rows_without_a_block_are_read_alone(target, tmp_path):
    model, bundle = target
    write_block(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    head = with_features(opened, DRAFT)
    role = opened.draft
    features = features_of_target(opened, TEXT)
    whole = head.forward([block_rows(head, role, features[:50], TEXT[50])])[0].copy()
    sequence = head.sequence([])
    reads = {TARGET_FEATURES: features[:30], SIGHT: np.full(30, -1, np.int32)}
    first = Rows(sequence, [0] * 30, [AFTER, *range(29)], [], reads=reads, certain=30)
    head.forward([first])
    first.accept(range(30))
    same_bits(head.forward([block_rows(head, role, features[30:50], TEXT[50], sequence)])[0], whole)


def test_pairs_of_tokens_are_written(target, tmp_path):
    model, bundle = target
    for own in ({}, {"draft_vocab_size": OUTPUTS}):
        weights, _ = write_block(tmp_path / f"{own}", model.config, "dspark", False, **own)
        opened = attached(bundle, tmp_path / f"bundle{own}", tmp_path / f"{own}")
        table = np.load(opened.path / opened.draft.block.pairs)
        tables = [weights[f"markov_head.markov_w{n}.weight"] for n in (1, 2)]
        assert np.array_equal(table[:-1], torch.cat(tables).numpy())
        assert np.array_equal(table[-1], weights["confidence_head.proj.weight"][0, 64:].numpy())


BAD_CONFIGS = [
    ({"architectures": ["DFlash3DraftModel"]}, UnsupportedModelError, "DFlash3DraftModel"),
    ({"architectures": ["DFlashLagunaForCausalLM"]}, UnsupportedModelError, "architectures="),
    ({"vocab_size": 332}, CheckpointError, "vocab_size=332 must be the target's, 331"),
    ({"hidden_size": 32}, CheckpointError, "hidden_size=32 must be the target's, 64"),
    ({"num_target_layers": 9}, CheckpointError, "num_target_layers=9 must be the target's, 8"),
    ({"block_size": None}, CheckpointError, r"block_size=\(absent\) must be a positive integer"),
    ({"block_size": 65}, CheckpointError, "block_size=65 must be 64 or less"),
    ({"num_hidden_layers": 3}, CheckpointError, "no tensor layers.2"),
    ({"num_hidden_layers": 1}, UnsupportedModelError, r"layers\.1.* belongs to no part"),
    ({"conv_kernel_size": 2}, UnsupportedModelError, "conv_kernel_size=2"),
    ({"selector_rank": 16}, UnsupportedModelError, "selector_rank=16"),
    ({"projector_type": "domino"}, UnsupportedModelError, "projector_type='domino'"),
    ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act='relu'"),
    ({"layer_types": ["conv", "full_attention"]}, UnsupportedModelError, "layer_types="),
    ({"rms_norm_eps": -1}, CheckpointError, "rms_norm_eps=-1"),
    ({"dflash_config": {"target_layer_ids": [1, 4, 5]}}, CheckpointError, "mask_token_id="),
    ({"dflash_config": {"mask_token_id": 331, "target_layer_ids": [1, 4, 5]}}, CheckpointError,
     "mask_token_id=331 must be a token id from 0 to 330"),
    ({"dflash_config": {"mask_token_id": 330}}, CheckpointError, "target_layer_ids="),
    ({"dflash_config": {"mask_token_id": 330, "target_layer_ids": [1, 4, 7]}}, CheckpointError,
     "must be layers of the target from 0 to 6"),
    ({"dflash_config": {"mask_token_id": 330, "target_layer_ids": [4, 1, 5]}}, CheckpointError,
     "must be layers of the target"),
    ({"dflash_config": {"mask_token_id": 330, "target_layer_ids": [1, 4]}}, CheckpointError,
     "fc.weight has shape"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "message"), BAD_CONFIGS, ids=lambda f: str(f)[:60])
def test_drafters_of_other_targets_and_formats_are_refused(target, tmp_path, fields, kind, message):
    model, bundle = target
    write_block(tmp_path / "head", model.config)
    file = tmp_path / "head/config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    refused(bundle, tmp_path / "bundle", tmp_path / "head", kind, message)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"markov_head_type": "rnn"}, UnsupportedModelError, "markov_head_type='rnn'"),
        ({"markov_rank": 9}, CheckpointError, "markov_w1.weight has shape"),
        ({"enable_confidence_head": False}, UnsupportedModelError, "confidence_head.*no part"),
        ({"speculators_model_type": "dspark2"}, UnsupportedModelError, "model_type='dspark2'"),
        ({"aux_hidden_state_layer_ids": [2, 5, 9]}, CheckpointError, "from 0 to 8"),
    ],
    ids=str,
)
def test_dspark_drafters_that_are_not_implemented_are_refused(
    target, tmp_path, fields, kind, message
):
    model, bundle = target
    write_block(tmp_path / "head", model.config, "dspark", False)
    file = tmp_path / "head/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    refused(bundle, tmp_path / "bundle", tmp_path / "head", kind, message)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"conv_kernel_size": None}, CheckpointError, r"conv_kernel_size=\(absent\) must be"),
        ({"conv_kernel_size": 9}, CheckpointError, "conv_kernel_size=9 must be 8 or less"),
        ({"conv_group_size": 24}, CheckpointError, "conv_group_size=24 must divide hidden_size=64"),
        ({"conv_group_size": 8}, CheckpointError, "kernel_projection.weight has shape"),
        ({"selector_rank": 4}, CheckpointError, "codebook has shape"),
        ({"selector_top_k": 0}, CheckpointError, "selector_top_k=0 must be a positive integer"),
        ({"draft_vocab_size": 96}, UnsupportedModelError, "draft_vocab_size=96"),
        ({"speculators_model_type": "dflash"}, UnsupportedModelError, "conv_kernel_size=2"),
        ({"speculators_model_type": "dflash3"}, UnsupportedModelError, "model_type='dflash3'"),
    ],
    ids=str,
)
def test_dflash2_drafters_that_contradict_themselves_are_refused(
    target, tmp_path, fields, kind, message
):
    model, bundle = target
    write_block(tmp_path / "head", model.config, "dflash2", False)
    file = tmp_path / "head/config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    refused(bundle, tmp_path / "bundle", tmp_path / "head", kind, message)


@pytest.mark.parametrize("name", ["fc.weight", "markov_head.markov_w2.weight", "norm.weight"])
def test_weights_that_are_not_finite_are_refused(target, tmp_path, name):
    model, bundle = target
    weights, _ = write_block(tmp_path / "head", model.config, "dspark", False)
    weights[name].view(-1)[3] = float("nan")
    save(tmp_path / "head", weights)
    message = f"{name} contains infinity or NaN"
    refused(bundle, tmp_path / "bundle", tmp_path / "head", CheckpointError, message)


GGUFS = {
    "dflash": ("dflash", {}),
    "windows": ("dflash", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}),
    "dflash2": ("dflash2", {"block_size": 5}),
    "dspark": ("dspark", {}),
    "own tokens": ("dspark", {"draft_vocab_size": OUTPUTS}),
}


@pytest.mark.parametrize("name", GGUFS)
def test_drafters_in_gguf_files_have_the_bits_of_the_original(target, tmp_path, name):
    model, bundle = target
    form, changes = GGUFS[name]
    weights, config = write_block(tmp_path / "head", model.config, form, True, **changes)
    write_gguf_block(tmp_path / "head.gguf", weights, config)
    found = []
    for path in (tmp_path / "head", tmp_path / "head.gguf"):
        opened = attached(bundle, tmp_path / f"bundle-{path.name}", path)
        role = opened.draft
        features = features_of_target(opened, TEXT)
        head = with_features(opened, DRAFT)
        rows = block_rows(head, role, features[:50], TEXT[50])
        [logits] = head.forward([rows])
        found.append((logits.copy(), rows.features, role.block, role.architecture, role.taps))
    (logits, told, *first), (others, say, *second) = found
    same_bits(logits, others)
    assert first == second
    if told is not None:
        same_bits(told, say)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"target_layers": None}, CheckpointError, r"dflash.target_layers=\(absent\) must be"),
        ({"target_layers": [2, 5, 9]}, CheckpointError, "must be layers of the target"),
        ({"embedding_length": 32}, CheckpointError, "hidden_size=32 must be the target's, 64"),
        ({"block_count": 1}, UnsupportedModelError, "belongs to no part"),
        ({"block_count": 3}, CheckpointError, r"no tensor layers\.2"),
        ({"logit_scale": 0.5}, UnsupportedModelError, "dflash.logit_scale=0.5"),
        ({"block_size": None}, CheckpointError, r"block_size=\(absent\)"),
    ],
    ids=str,
)
def test_gguf_drafters_of_other_targets_and_formats_are_refused(
    target, tmp_path, fields, kind, message
):
    model, bundle = target
    weights, config = write_block(tmp_path / "head", model.config)
    write_gguf_block(tmp_path / "head.gguf", weights, config, **fields)
    refused(bundle, tmp_path / "bundle", tmp_path / "head.gguf", kind, message)


def test_truncated_gguf_drafters_are_refused(target, tmp_path, cli):
    model, bundle = target
    weights, config = write_block(tmp_path / "head", model.config)
    file = tmp_path / "head.gguf"
    write_gguf_block(file, weights, config)
    file.write_bytes(file.read_bytes()[:-100])
    done = cli("export", bundle, "--draft", file, "-o", tmp_path / "out")
    assert (done.code, "truncated or corrupt" in done.err) == (2, True)
