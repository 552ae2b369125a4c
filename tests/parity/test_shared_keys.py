"""Layers that read keys and values of others, and inputs of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copytree

import pytest
from checkpoints import edit_json, make_checkpoint
from nodes import needs_library
from parity import PROMPT, Text, distance, load

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import BundleError, CheckpointError, InputError
from edgespec.export import ExportOptions
from edgespec.llm.load.models import load_part
from edgespec.models import load_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Layers 2 and 3 read keys and values of layers 0 and 1."""
    folder = tmp_path_factory.mktemp("gemma4")
    make_checkpoint(folder, "gemma4_text")
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint, tmp_path_factory):
    output = tmp_path_factory.mktemp("bundles") / "bundle"
    export.make(checkpoint, output, options=ExportOptions("fp32", skip_sets=("2-3",)))
    return bundles.load(output)


@needs_library
def test_a_part_without_readers_of_keys_runs_over_the_targets_pool(bundle):
    target = load(bundle)
    part = load_part(bundle, target, bundle.manifest.skip_sets[0].skipped, 1)
    whole = Text(target).read(PROMPT[:20])
    without = Text(part).read(PROMPT[:20])
    assert distance(without, whole) > 1e-3
    assert [pool.layer for pool in bundle.target.native.pools] == [0, 1]


@pytest.mark.parametrize("skipped", ["1a", "1", "1-2"])
def test_keys_that_are_still_read_are_not_left_out(checkpoint, tmp_path, skipped):
    options = ExportOptions("fp32", skip_sets=(skipped,))
    with pytest.raises(InputError, match=f"skip set {skipped}: 3a reads the keys and values of 1a"):
        export.make(checkpoint, tmp_path / "bundle", options=options)


def test_a_manifest_with_a_source_that_is_none_is_refused(bundle, tmp_path):
    manifest = bundle.manifest
    folder = copytree(bundle.path, tmp_path / "copy")
    for wrong in (2, 3, 9):
        layout = list(manifest.roles["target"].sublayers)
        layout[9] = replace(layout[9], source=wrong)
        target = replace(manifest.roles["target"], sublayers=tuple(layout))
        bundles.save_manifest(folder, replace(manifest, roles={"target": target}))
        with pytest.raises(BundleError, match=rf"sublayers\[9\].source is {wrong}"):
            bundles.load(folder)


def test_a_manifest_whose_skip_set_takes_keys_that_are_read_is_refused(bundle, tmp_path):
    folder = copytree(bundle.path, tmp_path / "copy")
    manifest = replace(bundle.manifest, skip_sets=(bundles.SkipSet((0,)),))
    bundles.save_manifest(folder, manifest)
    with pytest.raises(BundleError, match=r"skip_sets\[0\].skipped is \(0,\)"):
        bundles.load(folder)


def test_only_rows_of_the_table_are_read(bundle):
    role = bundle.target
    assert role.active_parameters == role.parameters - 330 * 4 * 32


def test_a_layout_knows_what_a_set_leaves_without_keys(bundle):
    layout = bundle.target.layout
    assert [each.source for each in layout if each.kind == "attention"] == [None, None, 0, 1]
    assert layout.bereft([0]) == (6,)
    assert layout.bereft([0, 6]) == ()
    assert layout.bereft([0, 3, 6]) == (9,)
    assert layout.bereft([1, 2, 4, 9]) == ()
    assert layout.describe([2, 5, 6, 7, 8]) == "0i,1i,2"


# Configs


def test_published_configs_say_the_same_as_those_that_are_saved(tmp_path):
    """transformers saves heads by layer, and published files have them once for full layers."""
    make_checkpoint(tmp_path, "gemma4_text", attention_k_eq_v=True, num_global_key_value_heads=2)
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
        (
            {"vocab_size_per_layer_input": 300},
            r"embed_tokens_per_layer.weight has shape \[331, 128\], config.json asks for",
        ),
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
