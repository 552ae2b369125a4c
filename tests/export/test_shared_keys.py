"""Layers that read keys and values of others, and inputs of their own: in stages, and in plans."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from checkpoints import edit_json
from parity import PROMPT, devices, distance, load, made, tree_rows

from edgespec import bundle as bundles
from edgespec.bundle.sublayers import Sublayers
from edgespec.errors import BundleError, CheckpointError, InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.models import load_checkpoint
from edgespec.runtime.execution.sizes import stage_sizes

# Layers 2 and 3 read keys and values of layers 0 and 1.
SETS = ("1m", "2m", "2", "1i,3i", "2-3", "3a", "1-3")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma4")
    made(folder, "gemma4_text")
    return folder


@pytest.fixture(scope="module")
def bundle_of(checkpoint, tmp_path_factory):
    made = {}

    def bundle_of(*skip_sets, **options):
        key = skip_sets, str(options)
        if key not in made:
            output = tmp_path_factory.mktemp("bundles") / "bundle"
            options = ExportOptions(**{"precision": "fp32", **options}, skip_sets=skip_sets)
            export_bundle(checkpoint, output, options=options)
            made[key] = bundles.load(output)
        return made[key]

    return bundle_of


def logits_of(bundle, device):
    """Logits of a prompt of several chunks, then of a tree behind it."""
    runner = load(bundle, device)
    first = runner.prefill(PROMPT[:250])["logits"][0].copy()
    return np.vstack([first, runner.verify(tree_rows())["logits"][:7]])


@devices
@pytest.mark.parametrize("skipped", SETS)
def test_stages_compute_what_the_whole_does(bundle_of, skipped, device):
    bundle = bundle_of(skipped)
    assert len(bundle.target.stages) > 2
    assert distance(logits_of(bundle, device), logits_of(bundle_of(), device)) < 1e-6


def test_a_cache_in_half_precision_is_passed_as_it_is_kept(bundle_of):
    """Else rows of the call would be seen by later stages as they were before rounding."""
    whole, cut = (bundle_of(*sets, kv_precision="fp16") for sets in ((), ("2",)))
    found = [logits_of(bundle, "onnxruntime:cpu") for bundle in (whole, cut)]
    assert distance(*found) < 1e-6
    assert distance(found[0], logits_of(bundle_of(), "onnxruntime:cpu")) > 1e-6


def test_every_border_has_the_same_columns(bundle_of):
    """Stages between two that run can be left out."""
    stages = bundle_of("1i,3i").target.stages
    # Hidden rows; inputs of four layers; keys and values of a head of 24 and of one of 32.
    width = str(64 + 4 * 32 + 2 * (24 + 32))
    read = [each.shape[1] for stage in stages for each in stage.inputs if each.name == "hidden"]
    given = [each.shape[1] for stage in stages for each in stage.results]
    assert read == [width] * 4
    assert given == [width] * 4 + ["331"]


def test_a_stage_has_caches_of_what_it_reads(bundle_of):
    held = [[g.layers for g in stage.cache_groups] for stage in bundle_of("2").target.stages]
    assert held == [[(0,), (1,)], [(0,)], [(1,)]]
    sources = [each.source for each in bundle_of().target.layout if each.kind == "attention"]
    assert sources == [None, None, 0, 1]


@pytest.mark.parametrize("skipped", ["1a", "1", "1-2"])
def test_keys_that_are_still_read_are_not_left_out(checkpoint, tmp_path, skipped):
    options = ExportOptions("fp32", skip_sets=(skipped,))
    with pytest.raises(InputError, match=f"skip set {skipped}: 3a reads the keys and values of 1a"):
        export_bundle(checkpoint, tmp_path / "bundle", options=options)


def test_a_manifest_with_a_source_that_is_none_is_refused(bundle_of, tmp_path):
    manifest = bundle_of().manifest
    for wrong in (2, 3, 9):
        layout = list(manifest.roles["target"].sublayers)
        layout[9] = replace(layout[9], source=wrong)
        target = replace(manifest.roles["target"], sublayers=tuple(layout))
        folder = tmp_path / str(wrong)
        folder.mkdir()
        for file in bundle_of().path.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        bundles.save_manifest(folder, replace(manifest, roles={"target": target}))
        with pytest.raises(BundleError, match=rf"sublayers\[9\].source is {wrong}"):
            bundles.load(folder)


def test_only_rows_of_the_table_are_read(bundle_of):
    """It is mapped like the embedding, and no product packs it."""
    bundle = bundle_of()
    role = bundle.target
    [sizes] = stage_sizes(bundle, "target")
    table, embedding = 331 * 4 * 32 * 4, 331 * 64 * 4
    assert sizes.embedding_bytes == embedding + table
    assert not sizes.tied
    data = bundle.manifest.files[role.stages[0].data].size
    assert sizes.matmul_bytes == data - embedding - table
    assert role.active_parameters == role.parameters - 330 * 4 * 32


def test_a_layout_knows_what_a_set_leaves_without_keys(bundle_of):
    layout = bundle_of().target.layout
    assert isinstance(layout, Sublayers)
    assert layout.bereft([0]) == (6,)
    assert layout.bereft([0, 6]) == ()
    assert layout.bereft([0, 3, 6]) == (9,)
    assert layout.bereft([1, 2, 4, 9]) == ()
    assert layout.describe([2, 5, 6, 7, 8]) == "0i,1i,2"


# Configs


def test_published_configs_say_the_same_as_those_that_are_saved(tmp_path):
    """transformers saves heads by layer, and published files have them once for full layers."""
    made(tmp_path, "gemma4_text", attention_k_eq_v=True, num_global_key_value_heads=2)
    saved = load_checkpoint(tmp_path).decoder
    assert [(each.kv_heads, each.head_dim) for each in saved.attentions[:2]] == [(1, 24), (2, 32)]
    config = json.loads((tmp_path / "config.json").read_text())
    del config["per_layer_config"]
    config |= {"global_head_dim": 32, "num_global_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_checkpoint(tmp_path).decoder.layers == saved.layers


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers=3 leaves no keys and values for lay"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers=-1 must be a positive integer"),
        ({"vocab_size_per_layer_input": 300}, "vocab_size_per_layer_input=300 must be at least vo"),
        ({"per_layer_config": {"3": {"num_key_value_heads": 3}}}, "3: num_key_value_heads=3 must"),
        ({"per_layer_config": {"3": {"head_dim": 33}}}, "3: head_dim=33 must be even"),
        ({"per_layer_config": {"1": {"head_dim": 26}}}, "per_layer_config=.* is not supported: h"),
        ({"per_layer_config": None, "global_head_dim": 31}, "global_head_dim=31 must be even"),
        ({"layer_types": []}, "layer_types=.* must be a list of layers"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all' is not supp"),
    ],
)
def test_what_contradicts_itself_is_refused(checkpoint, tmp_path, changes, words):
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)
