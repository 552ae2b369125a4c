"""Checkpoints that read pictures: what is read of their files, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoints import edit_json
from safetensors.numpy import load_file, save_file
from towers import SIZE, TEMPLATE, save_pictured

from edgespec import export
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint

SETTINGS = "preprocessor_config.json"


def edit(folder, place, changes):
    """Changes fields of a file of a checkpoint, or of a group of its config."""
    if place.endswith(".json"):
        edit_json(folder / place, **changes)
    else:
        group = json.loads((folder / "config.json").read_text())[place]
        edit_json(folder / "config.json", **{place: {**group, **changes}})


@pytest.fixture
def folder(tmp_path):
    save_pictured(tmp_path)
    return tmp_path


def test_newer_checkpoints_say_in_their_processors_file_what_becomes_of_pictures(folder):
    before = load_checkpoint(folder).tower.pixels
    settings = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert load_checkpoint(folder).tower.pixels == before


def test_without_such_a_file_texts_alone_are_read(folder, caplog):
    (folder / SETTINGS).unlink()
    assert load_checkpoint(folder).tower is None
    assert "reads texts alone" in caplog.text


def test_older_checkpoints_have_the_chat_template_in_json(folder):
    (folder / "chat_template.jinja").unlink()
    assert load_checkpoint(folder).chat_template is None
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    assert load_checkpoint(folder).chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        (SETTINGS, {"do_normalize": False}, "do_normalize=False is not supported"),
        (SETTINGS, {"rescale_factor": 1.0}, "rescale_factor=1.0 is not supported"),
        (SETTINGS, {"resample": 9}, "resample=9 must be"),
        (SETTINGS, {"image_mean": [0.5]}, "image_mean"),
        (
            SETTINGS,
            {"size": {"longest_edge": 1 << 20}},
            "longest_edge=1048576 must be 4096 or less",
        ),
        (SETTINGS, {"max_image_size": {"longest_edge": 64}}, "use pieces of 64 pixels"),
        ("config.json", {"scale_factor": 4}, "scale_factor=4 must divide the 6 patches"),
        ("config.json", {"image_token_id": None}, "image_token_id"),
        ("config.json", {"image_token_id": 338}, "image_token_id=338 must be 337 or less"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_named(folder, file, changes, words):
    edit_json(folder / file, **changes)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_act", "relu"), ("num_attention_heads", 5), ("patch_size", 2 * SIZE)],
)
def test_sizes_and_activations_of_the_tower_are_checked(folder, field, value):
    config = json.loads((folder / "config.json").read_text())
    edit_json(folder / "config.json", vision_config={**config["vision_config"], field: value})
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        (SETTINGS, {"do_pan_and_scan": True}, "do_pan_and_scan=True is not supported"),
        (SETTINGS, {"size": {"height": SIZE, "width": 8}}, "width=8 is not supported"),
        ("config.json", {"mm_tokens_per_image": 8}, "contradicts 6 patches"),
        ("config.json", {"boi_token_index": 338}, "boi_token_index=338 must be 337 or less"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_gemma_3_is_named(tmp_path, file, changes, words):
    save_pictured(tmp_path, "gemma3")
    edit_json(tmp_path / file, **changes)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        (SETTINGS, {"patch_size": 5}, "patch_size=5 contradicts patch_size=4 of the config"),
        (SETTINGS, {"max_soft_tokens": 2000}, "max_soft_tokens=2000 must be 1120 or less"),
        (SETTINGS, {"max_soft_tokens": 140}, "position_embedding_size=256 must be 420 or more"),
        (SETTINGS, {"do_rescale": False}, "do_rescale=False is not supported"),
        (SETTINGS, {"do_normalize": True}, "image_mean"),
        (SETTINGS, {"resample": 3.0}, "resample=3.0 must be"),
        ("config.json", {"image_token_id": 338}, "image_token_id=338 must be 337 or less"),
        ("vision_config", {"num_key_value_heads": 1}, "num_key_value_heads=1 is not supported"),
        ("vision_config", {"head_dim": 18}, "head_dim=18 is not supported"),
        ("vision_config", {"hidden_activation": "relu"}, "hidden_activation='relu'"),
        ("vision_config", {"use_clipped_linears": False, "hidden_size": 40}, "has shape"),
        ("vision_config", {"standardize": True}, "model.vision_tower.std_bias"),
        ("vision_config", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn'"),
        ("vision_config", {"pooling_kernel_size": 64}, "contradicts pooling_kernel_size=64"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_gemma_4_is_named(tmp_path, file, changes, words):
    save_pictured(tmp_path, "gemma4-causal")
    if file == "vision_config":
        own = json.loads((tmp_path / "config.json").read_text())[file]
        file, changes = "config.json", {file: {**own, **changes}}
    edit_json(tmp_path / file, **changes)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("text_config", {"sliding_window": 69}, "max_soft_tokens=70 is not supported"),
        ("vision_config", {"mm_posemb_size": 69}, "mm_posemb_size=69 must be 70 or more"),
        ("vision_config", {"mm_embed_dim": 32}, "has shape"),
        ("vision_config", {"patch_size": 8}, "patch_size=4 contradicts patch_size=8"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_gemma_4_without_a_vit_is_named(tmp_path, part, changes, words):
    save_pictured(tmp_path, "gemma4_unified")
    own = json.loads((tmp_path / "config.json").read_text())[part]
    edit_json(tmp_path / "config.json", **{part: {**own, **changes}})
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


def test_bounds_of_gemma_4_that_are_no_numbers_are_refused(tmp_path):
    save_pictured(tmp_path, "gemma4-causal")
    file = tmp_path / "model.safetensors"
    name = "model.vision_tower.encoder.layers.1.mlp.up_proj"
    tensors = load_file(file)
    tensors[f"{name}.input_max"][...] = np.nan
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{name}.input_max is NaN"):
        export.make(tmp_path, tmp_path / "bundle", None, ExportOptions(precision="fp32"))


def test_gemma_4_without_a_tower_reads_texts_alone(tmp_path):
    save_pictured(tmp_path, "gemma4")
    edit_json(tmp_path / "config.json", vision_config=None)
    assert load_checkpoint(tmp_path).tower is None


@pytest.mark.parametrize("before", ["model.", ""])
def test_names_of_gemma_3_in_files_and_in_memory_are_read(tmp_path, before):
    save_pictured(tmp_path, "gemma3")
    file = tmp_path / "model.safetensors"
    parts = ("vision_tower.", "multi_modal_projector.")
    named = {
        before + name.removeprefix("model.") if any(p in name for p in parts) else name: each
        for name, each in load_file(file).items()
    }
    save_file(named, file, {"format": "pt"})
    assert load_checkpoint(tmp_path).tower.projection.weight in named


def test_a_tensor_that_is_missing_is_named(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.connector.modality_projection.proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model.connector.modality_projection.proj.weight"):
        load_checkpoint(folder)


REFUSED = [
    (SETTINGS, {"patch_size": 14}, "patch_size=14 is not supported: use 5, as the tower has"),
    (SETTINGS, {"merge_size": 1}, "merge_size=1 is not supported: use 2"),
    (SETTINGS, {"temporal_patch_size": None}, "temporal_patch_size=.* use 2"),
    (SETTINGS, {"size": {"shortest_edge": 9, "longest_edge": 5}}, "shortest_edge=9 must be 5 or"),
    (SETTINGS, {"size": {"height": 9, "width": 5}}, "shortest_edge=.absent. must be a positive"),
    (SETTINGS, {"max_pixels": "many"}, "max_pixels='many' must be a positive integer"),
    (SETTINGS, {"do_rescale": False}, "do_rescale=False is not supported"),
    ("vision_config", {"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
    ("vision_config", {"num_heads": 5}, "num_heads=5 must divide hidden_size=48"),
    ("vision_config", {"num_heads": 8}, "num_heads=8 must divide hidden_size=48"),
    ("vision_config", {"num_position_embeddings": 15}, "num_position_embeddings=15 is not"),
    ("vision_config", {"out_hidden_size": 32}, "out_hidden_size=32 must be 64"),
    ("vision_config", {"spatial_merge_size": 0}, "spatial_merge_size=0 must be"),
    (SETTINGS, {"size": {"shortest_edge": 9, "longest_edge": 99}}, "patch_size=5 is not supported"),
    ("vision_config", {"depth": 1 << 40}, "depth=.* must be"),
    ("vision_config", {"deepstack_visual_indexes": [3]}, "deepstack_visual_indexes=.3. must be a"),
    ("vision_config", {"deepstack_visual_indexes": "all"}, "deepstack_visual_indexes='all' must"),
    ("vision_config", {"deepstack_visual_indexes": [2, 0]}, "use ascending numbers"),
    ("vision_config", {"deepstack_visual_indexes": [0, 1, 2]}, "no more than layers of text"),
    ("vision_config", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn' is not"),
    ("text_config", {"rope_parameters": {"mrope_section": [1, -2, 3]}}, "mrope_section=.* must be"),
    ("text_config", {"rope_parameters": {"mrope_interleaved": False}}, "mrope_interleaved=False"),
    ("config.json", {"image_token_id": 1 << 30}, "image_token_id=1073741824 must be 337 or less"),
]


@pytest.mark.parametrize(("place", "changes", "words"), REFUSED, ids=str)
def test_what_cannot_be_read_of_pictures_of_any_size_is_named(tmp_path, place, changes, words):
    save_pictured(tmp_path, "qwen3_vl")
    edit(tmp_path, place, changes)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


REFUSED_IN_WINDOWS = [
    ("vision_config", {"window_size": 9}, "window_size=9 must be 10 or more"),
    ("vision_config", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported: use silu"),
    ("vision_config", {"fullatt_block_indexes": [3]}, "fullatt_block_indexes=.3. must be a list"),
    ("vision_config", {"fullatt_block_indexes": [1, 0]}, "use ascending numbers"),
    ("text_config", {"rope_parameters": {"mrope_section": [1, 2, 3]}}, "must add up to 8"),
    ("text_config", {"rope_parameters": {"mrope_interleaved": True}}, "parts one behind the other"),
]


@pytest.mark.parametrize(("group", "changes", "words"), REFUSED_IN_WINDOWS, ids=str)
def test_what_cannot_be_read_of_pictures_in_windows_is_named(tmp_path, group, changes, words):
    save_pictured(tmp_path, "qwen2_5_vl")
    own = json.loads((tmp_path / "config.json").read_text())[group]
    edit_json(tmp_path / "config.json", **{group: {**own, **changes}})
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("place", "changes", "words"),
    [
        (SETTINGS, {"size": {"height": 20, "width": 9}}, "width=9 is not supported: use 20"),
        (SETTINGS, {"max_patches": 99}, "max_patches=99 must be 64 or less"),
        (SETTINGS, {"min_patches": 5}, "min_patches=5 must be 4 or less"),
        ("config.json", {"downsample_ratio": 0.3}, "downsample_ratio=0.3 must divide the 4"),
        ("config.json", {"vision_feature_layer": -2}, "vision_feature_layer=-2 is not supported"),
        ("vision_config", {"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ("vision_config", {"num_attention_heads": 5}, "num_attention_heads=5 must divide"),
        ("vision_config", {"use_qk_norm": True}, "has no tensor .*q_norm"),
        ("vision_config", {"image_size": 30}, "height=20 is not supported: use 30"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_internvl_is_named(tmp_path, place, changes, words):
    save_pictured(tmp_path, "internvl")
    edit(tmp_path, place, changes)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("place", "changes", "words"),
    [
        (SETTINGS, {"encoder_patch_size": 16}, "encoder_patch_size=16 is not supported: use 5"),
        (SETTINGS, {"use_thumbnail": False}, "use_thumbnail=False is not supported: use true"),
        (SETTINGS, {"tile_size": 25}, "tile_size=25 must be a multiple of 10"),
        (SETTINGS, {"min_image_tokens": 13}, "min_image_tokens=13 must be 12 or less"),
        (SETTINGS, {"max_tiles": 99}, "max_tiles=99 must be 64 or less"),
        ("config.json", {"downsample_factor": 3}, "downsample_factor=2 is not supported: use 3"),
        ("config.json", {"projector_hidden_size": 64}, "has shape"),
        ("vision_config", {"num_patches": 15}, "num_patches=15 is not supported: use a square"),
        ("vision_config", {"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ("vision_config", {"num_attention_heads": 5}, "num_attention_heads=5 must divide"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_lfm2_vl_is_named(tmp_path, place, changes, words):
    save_pictured(tmp_path, "lfm2_vl")
    edit(tmp_path, place, changes)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)


def test_published_configs_have_the_text_part_s_fields_beside_the_tower_s(tmp_path):
    save_pictured(tmp_path, "qwen2_5_vl")
    expected = load_checkpoint(tmp_path).tower
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    scaling = {"type": "mrope", "mrope_section": [4, 2, 2]}
    flat = {**text, **config, "rope_parameters": None, "rope_theta": 1e6, "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    found = load_checkpoint(tmp_path).tower
    assert (found.grid, found.token) == (expected.grid, expected.token)
    assert found.tensors() == expected.tensors()


def test_larger_pictures_are_scaled_to_what_a_processor_reads_in_time(tmp_path):
    save_pictured(tmp_path, "qwen3_vl", size={"shortest_edge": 65536, "longest_edge": 1 << 24})
    tower = load_checkpoint(tmp_path).tower
    assert (tower.grid.least, tower.grid.most) == (65536, 4096 * 5**2)
    assert tower.rows == 656  # of 10 pixels a side


def test_a_checkpoint_without_its_tower_reads_texts_alone(tmp_path, caplog):
    save_pictured(tmp_path, "qwen3_vl")
    file = tmp_path / "model.safetensors"
    tensors = {name: each for name, each in load_file(file).items() if "visual" not in name}
    save_file(tensors, file, {"format": "pt"})
    assert load_checkpoint(tmp_path).tower is None
    assert "reads texts alone" in caplog.text
