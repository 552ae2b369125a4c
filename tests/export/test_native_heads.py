"""Native graphs of draft heads: the definition, weights stored once, and ids of outputs."""

from __future__ import annotations

from shutil import copytree

import numpy as np
import onnx
import pytest
import torch
from checkpoints import make_checkpoint, write_tokenizer
from head_rows import SAME, attached, check_native_rows, native_model
from heads import HEADS, IDS, HeadReference, features_of, taps_of, write_head
from mtp import MtpReference, write_mtp
from native import NativeText
from nodes import MISSING, same_bits
from parity import PROMPT, SAME_STATES, distance

from edgespec import bundle as bundles
from edgespec.api.llm import LLM
from edgespec.api.loading import LoadOptions
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import BundleError, ExportError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.sequences.model import Rows

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

TEXT = PROMPT[:60]
CHAIN = [*range(-1, len(TEXT) - 1)]
FP32 = ExportOptions(precision="fp32")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target of eight layers, and its bundle without a draft."""
    folder = tmp_path_factory.mktemp("target")
    model = make_checkpoint(folder / "checkpoint", "llama", num_hidden_layers=8)
    write_tokenizer(folder / "checkpoint", 331)
    export_bundle(folder / "checkpoint", folder / "bundle", None, FP32)
    return model, folder / "bundle"


def features_of_graph(opened):
    model = native_model(opened, TARGET)
    rows = Rows(model.sequence([]), TEXT, CHAIN, [])
    model.forward([rows])
    return rows.features


@pytest.mark.parametrize("name", HEADS)
def test_a_head_computes_what_its_definition_says(target, tmp_path, name):
    model, bundle = target
    flat, changes = HEADS[name]
    weights, config = write_head(tmp_path / "head", model.config, flat=flat, **changes)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    features = features_of_graph(opened)
    if 8 not in (taps := taps_of(config, 8)):  # transformers gives those only behind the last norm
        assert distance(features, features_of(model, TEXT, taps).numpy()) < SAME
    reference = HeadReference(weights, config, model.get_input_embeddings().weight.data)
    with torch.no_grad():
        fused = reference.fuse(torch.tensor(features[:-1]))
    check_native_rows(native_model(opened, DRAFT), reference, TEXT, features[:-1], fused)


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_of_a_checkpoint_computes_what_its_definition_says(tmp_path, tied):
    model = make_checkpoint(tmp_path / "checkpoint", "qwen3_5_text", tie_word_embeddings=tied)
    write_tokenizer(tmp_path / "checkpoint", 331)
    weights = write_mtp(tmp_path / "checkpoint", model.config)
    export_bundle(tmp_path / "checkpoint", tmp_path / "b", None, FP32)
    opened = attached(tmp_path / "b", tmp_path / "bundle", tmp_path / "checkpoint")
    text, seen = NativeText(opened.path, opened.target), []
    text.run(TEXT, CHAIN)
    model.model.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
    with torch.no_grad():
        fused = model.model(torch.tensor([TEXT])).last_hidden_state[0, :-1]
    assert distance(text.more[0], seen[0].numpy()) < SAME_STATES
    features = seen[0][:-1].numpy()
    head = native_model(opened, DRAFT)
    check_native_rows(head, MtpReference(weights, model), TEXT, features, fused)
    # Embedding and output projection are the target's.
    assert sum(opened.draft.native.formats.values()) == sum(
        each.numel() for each in weights.values() if each.dim() == 2
    )


def test_the_embedding_is_that_of_the_target(target, tmp_path):
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    own = [each for each in weights.values() if each.dim() == 2]
    assert sum(opened.draft.native.formats.values()) == sum(each.numel() for each in own)
    graph = onnx.load(opened.path / opened.draft.native.graph, load_external_data=False).graph
    places = {
        entry.value
        for each in graph.initializer
        for entry in each.external_data
        if entry.key == "location"
    }
    assert places == {"draft.tiles", "target.tiles"}


def test_nothing_changes_without_a_head(target, tmp_path):
    """The graph with features computes the same bits, and they are fetched for a head alone."""
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    opened, plain = attached(bundle, tmp_path / "bundle", tmp_path / "head"), bundles.load(bundle)
    assert plain.manifest.files["target.tiles"] == opened.manifest.files["target.tiles"]
    found = [NativeText(each.path, each.target).run(TEXT, CHAIN) for each in (plain, opened)]
    same_bits(*found)
    assert plain.target.native == opened.target.native
    plain.verify()  # the copy's new graphs are not links to the old ones
    for source, kept in (("none", 0), ("head", len(TEXT))):
        llm = LLM(opened, LoadOptions(draft=source, threads=1))
        rows = Rows(llm.engine.target.sequence([]), TEXT, CHAIN, [])
        llm.engine.target.forward([rows])
        assert (0 if rows.features is None else len(rows.features)) == kept


def test_a_second_head_replaces_the_first(target, tmp_path):
    model, bundle = target
    write_head(tmp_path / "one", model.config)
    write_head(tmp_path / "other", model.config, **{IDS: [3, 8]})
    first = attached(bundle, tmp_path / "first", tmp_path / "one")
    second = attached(first.path, tmp_path / "second", tmp_path / "other")
    assert features_of_graph(first).shape == (60, 3 * 64)
    assert features_of_graph(second).shape == (60, 2 * 64)


def test_a_native_graph_of_an_older_version_cannot_get_a_head(target, tmp_path):
    model, bundle = target
    write_head(tmp_path / "head", model.config)
    old = copytree(bundle, tmp_path / "old")
    graph = onnx.load(old / "target.native.onnx", load_external_data=False)
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("entering.", "Add_") for name in names]
    (old / "target.native.onnx").write_bytes(graph.SerializeToString())
    manifest = bundles.load(bundle).manifest
    files = bundles.describe_files(old)
    bundles.save_manifest(old, bundles.Manifest(**{**vars(manifest), "files": files}))
    with pytest.raises(ExportError, match="exported by an older edgespec"):
        attached(old, tmp_path / "bundle", tmp_path / "head")


def test_offsets_become_ids(target, tmp_path):
    model, bundle = target
    weights, _ = write_head(tmp_path / "head", model.config)
    opened = attached(bundle, tmp_path / "bundle", tmp_path / "head")
    file = opened.path / opened.draft.native.ids
    expected = weights["d2t"] + torch.arange(96)
    assert np.fromfile(file, "<i4").tolist() == expected.tolist()
    for damage in (lambda ids: ids[:5], lambda ids: ids - 400):
        wrong = copytree(opened.path, tmp_path / "wrong", dirs_exist_ok=True)
        damage(np.fromfile(file, "<i4")).tofile(wrong / file.name)
        bundles.save_manifest(
            wrong,
            bundles.Manifest(**{**vars(opened.manifest), "files": bundles.describe_files(wrong)}),
        )
        with pytest.raises(BundleError, match="must hold 96 tokens below 331"):
            LLM(bundles.load(wrong), LoadOptions(draft="head"))
