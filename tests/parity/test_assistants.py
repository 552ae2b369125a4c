"""Gemma 4's assistants in bundles, compared with transformers, and those that are refused."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from assistants import ASSISTANTS, CLUSTERS, VOCABULARY, of_target, rows, write_assistant
from checkpoints import edit_json, make_checkpoint
from gguf_heads import write_gguf_assistant
from head_rows import FORMS, SAME, attached, features_of_target, refused, with_features
from nodes import MISSING, same_bits
from parity import PROMPT, Text, distance
from safetensors.torch import load_file, save_file

from edgespec import LLM, export
from edgespec import bundle as bundles
from edgespec.bundle import OWN_FEATURES, TARGET, TARGET_FEATURES
from edgespec.errors import BundleError, CheckpointError, DeviceError, UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.llm.load.models import load_assistant_draft
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import AFTER, Rows

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

TEXT = [token % VOCABULARY for token in PROMPT[:71]]
N = len(TEXT) - 1
KINDS = {
    "gemma4_text": {"vocab_size_per_layer_input": VOCABULARY},
    "gemma4_unified_text": {},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes targets, and their bundles without a draft; of one, layers share keys and values."""

    @cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind)
        model = make_checkpoint(folder / "it", kind, vocab_size=VOCABULARY, **KINDS[kind])
        export.make(folder / "it", folder / "bundle", None, ExportOptions(precision="fp32"))
        return model, folder / "bundle"

    return make


@pytest.fixture
def target(made):
    return made("gemma4_text")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ASSISTANTS)
def test_an_assistant_computes_what_transformers_does(made, tmp_path, name, kind, form):
    """Of a text longer than the window: a first row, two below it, and one below the second."""
    model, bundle = made(kind)
    changes, text = ASSISTANTS[name]
    assistant = write_assistant(tmp_path / "head", model.config, text=text, **changes)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    assert opened.draft.attends_target
    own, head = loaded(opened, FORMS[form])
    features = features_of_target(opened, TEXT[:N])
    read = Text(own).rows(TEXT[:N])
    own.forward([read])
    read.accept(range(N))
    # Scores are not scaled, so that rounding is seen: the definition is computed in float64.
    model = deepcopy(model).double()
    assistant = assistant.double()
    above, kept = of_target(model, TEXT[:N])
    tokens = [TEXT[N]]
    given = {TARGET_FEATURES: features[-1:]}
    expected_above = above[-1:]
    before = read.sequence.read()
    for level in ([5, 77], [200], []):
        node = Rows(read.sequence, tokens, [AFTER] * len(tokens), [*range(len(tokens))])
        node.reads = given
        [logits] = head.forward([node])
        other = Rows(read.sequence, tokens[-1:], [AFTER], [0])
        other.reads = {name: each[-1:] for name, each in given.items()}
        [[alone]] = head.forward([other])
        assert distance(alone, logits[-1]) < SAME
        if FORMS[form]:
            same_bits(alone, logits[-1])
        wanted, expected = rows(
            assistant, model.get_input_embeddings(), tokens, expected_above, kept, N
        )
        for each, theirs, told, said in zip(logits, wanted, node.features, expected, strict=True):
            assert distance(each, theirs.numpy()) < SAME
            assert distance(told, said.numpy()) < SAME
        tokens = level
        below = [-1] * len(level)
        given = {OWN_FEATURES: node.features[below]}
        expected_above = torch.tensor(node.features[below]).double()
        for each in (node, other):
            own.pool.free(each.slots)
    for pool, array in read.sequence.read().items():
        same_bits(array, before[pool])  # nothing is written


def loaded(opened, native=True):
    """The models of a bundle, of which the second one reads the pool of the first."""
    own = with_features(opened, TARGET, native)
    return own, load_assistant_draft(opened, own, Placement(HOST, native=native), threads=1)


def test_half_and_eight_bits_of_the_targets_pool_are_read(target, tmp_path):
    model, bundle = target
    write_assistant(tmp_path / "head", model.config, **CLUSTERS)
    for kv in ("fp16", "int8"):
        options = ExportOptions(precision="fp32", kv_precision=kv)
        export.make(bundle.parent / "it", tmp_path / kv, None, options)
        attached(tmp_path / kv, tmp_path / f"{kv}-head", tmp_path / "head")
        llm = LLM(tmp_path / f"{kv}-head", draft="head", threads=1, context=256)
        found = llm.generate("a b c", max_new_tokens=24)
        assert found.tokens == llm.generate("a b c", max_new_tokens=24, draft_source="none").tokens


def test_a_target_on_another_device_cannot_be_read(target, tmp_path):
    model, bundle = target
    write_assistant(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    message = "reads keys and values of the target, and cannot run on cpu#16x512 while that runs"
    with pytest.raises(DeviceError, match=message):
        LLM(opened.path, device="cpu", draft_device="cpu#16x512", draft="head")


BAD = [
    ({"backbone_hidden_size": 32}, {}, CheckpointError, "must be the target's, 64"),
    ({}, {"vocab_size": 288}, CheckpointError, "vocab_size=288 must be the target's, 320"),
    ({}, {"sliding_window": 20}, CheckpointError, "of 20 positions, and no layer of the target"),
    ({}, {"head_dim": 32}, CheckpointError, "rope_parameters="),
    ({}, {"num_hidden_layers": 5}, CheckpointError, "layer_types"),
    ({}, {"enable_moe_block": True}, UnsupportedModelError, "enable_moe_block=True"),
    ({}, {"hidden_size_per_layer_input": 8}, UnsupportedModelError, "layer_input=8"),
    ({}, {"use_double_wide_mlp": True}, UnsupportedModelError, "use_double_wide_mlp=True"),
    ({"quantization_config": {"quant_method": "awq"}}, {}, UnsupportedModelError, "quantization"),
    ({"num_centroids": 40}, {}, UnsupportedModelError, "num_centroids=40"),
    ({"num_centroids": 20}, {}, CheckpointError, r"centroids.weight has shape \[10, 32\]"),
    ({"centroid_intermediate_top_k": 11}, {}, CheckpointError, "must be 10 or less"),
    ({}, {"num_key_value_heads": 4}, CheckpointError, "no layer of the target has them"),
    ({"model_type": "gemma5_assistant"}, {}, UnsupportedModelError, "gemma5_assistant"),
    ({}, {"intermediate_size": 32}, CheckpointError, "has shape"),
    ({}, {"rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    }}, CheckpointError, "rope_parameters="),
]  # fmt: skip


@pytest.mark.parametrize(("whole", "text", "kind", "message"), BAD, ids=str)
def test_assistants_of_other_targets_and_formats_are_refused(
    target, tmp_path, whole, text, kind, message
):
    model, bundle = target
    write_assistant(tmp_path / "head", model.config, **CLUSTERS)
    file = tmp_path / "head/config.json"
    config = json.loads(file.read_text())
    edit_json(file, text_config={**config["text_config"], **text}, **whole)
    refused(bundle, tmp_path / "bundle", tmp_path / "head", kind, message)


def test_damaged_assistants_are_refused(target, tmp_path):
    model, bundle = target
    write_assistant(tmp_path / "head", model.config, **CLUSTERS)
    file = tmp_path / "head/model.safetensors"
    whole = load_file(file)
    ordering = whole["masked_embedding.token_ordering"]
    nan = whole["model.norm.weight"].clone()
    nan[3] = float("nan")
    for number, (changes, message) in enumerate(
        (
            (
                {"masked_embedding.token_ordering": ordering.clamp(0, 300)},
                "each token below 320 once",
            ),
            ({"model.norm.weight": nan}, "norm.weight contains infinity or NaN"),
            (
                {"model.layers.0.self_attn.q_proj.weight": None},
                "no tensor model.layers.0.self_attn",
            ),
            ({"model.layers.0.router.weight": torch.ones(2, 2)}, "belongs to no part"),
        )
    ):
        tensors = {name: each for name, each in {**whole, **changes}.items() if each is not None}
        save_file(tensors, file)
        kind = UnsupportedModelError if "no part" in message else CheckpointError
        refused(bundle, tmp_path / f"{number}", tmp_path / "head", kind, message)
    file.write_bytes(file.read_bytes()[:-100])
    refused(bundle, tmp_path / "cut", tmp_path / "head", CheckpointError, "truncated or corrupt")


def test_the_command_refuses_an_assistant_of_another_target_in_a_line(target, tmp_path, cli):
    model, bundle = target
    write_assistant(tmp_path / "head", model.config)
    edit_json(tmp_path / "head/config.json", backbone_hidden_size=128)
    checkpoint = bundle.parent / "it"
    done = cli("export", checkpoint, "--draft", tmp_path / "head", "-o", tmp_path / "out")
    assert done.code == 2
    assert "backbone_hidden_size=128 must be the target's, 64" in done.err
    assert not (tmp_path / "out").exists()


def test_manifests_whose_assistant_reads_no_layer_of_the_target_are_refused(target, tmp_path):
    model, bundle = target
    write_assistant(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    manifest = opened.path / "manifest.json"
    whole = json.loads(manifest.read_text())
    for source in (7, None):
        changed = json.loads(json.dumps(whole))
        changed["roles"]["draft"]["sublayers"][1]["source"] = source
        manifest.write_text(json.dumps(changed))
        with pytest.raises(BundleError):
            bundles.load(opened.path)
    assert np.isfinite(features_of_target(opened, TEXT)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_assistants_in_gguf_files_have_the_bits_of_the_original(made, tmp_path, kind):
    model, bundle = made(kind)
    write_assistant(tmp_path / "head", model.config)
    write_gguf_assistant(tmp_path / "head.gguf", tmp_path / "head")
    found = []
    for path in (tmp_path / "head", tmp_path / "head.gguf"):
        own, head = loaded(attached(bundle, tmp_path / f"bundle-{path.name}", path))
        read = Text(own).rows(TEXT[:N])
        own.forward([read])
        read.accept(range(N))
        node = Rows(read.sequence, [TEXT[N]], [AFTER], [0])
        node.reads = {TARGET_FEATURES: read.features[-1:]}
        found.append((head.forward([node])[0].copy(), node.features))
    same_bits(found[0][0], found[1][0])
    same_bits(found[0][1], found[1][1])


def test_gguf_assistants_of_other_targets_are_refused(target, tmp_path):
    model, bundle = target
    write_assistant(tmp_path / "head", model.config)
    for number, (fields, message) in enumerate(
        (
            ({"embedding_length_out": 32}, "backbone_hidden_size=32 must be the target's, 64"),
            ({"attention.sliding_window": 20}, "of 20 positions, and no layer of the target"),
            ({"embedding_length": 64}, "has shape"),
        )
    ):
        file = tmp_path / f"{number}.gguf"
        write_gguf_assistant(file, tmp_path / "head", **fields)
        refused(bundle, tmp_path / f"{number}", file, CheckpointError, message)
