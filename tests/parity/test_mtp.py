"""Heads in checkpoints: their definition, what the command exports, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoints import edit_json, make_checkpoint
from commandline import fails
from ggufs import write_gguf
from head_rows import FORMS, SAME, attached, check_rows, features_of_target, with_features
from mtp import MtpReference, NextnReference, add_tensors, normed_rows, write_mtp
from nodes import needs_library
from numpy.testing import assert_allclose
from parity import PROMPT, distance
from safetensors.torch import load_file, save_file

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import DRAFT
from edgespec.errors import CheckpointError, UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint
from edgespec.models.heads.checkpoint import TargetSizes
from edgespec.models.heads.mtp import checkpoint_with_head
from edgespec.models.heads.opening import load_head

FAMILY = "qwen3_5_text"
TEXT = PROMPT[:60]


def checkpoint(folder, family=FAMILY, **changes):
    model = make_checkpoint(folder, family, **changes)
    return model, write_mtp(folder, model.config)


def head_of(folder):
    decoder = load_checkpoint(folder).decoder
    freq = tuple(next(iter(decoder.ropes.values())).inv_freq)
    sizes = TargetSizes(len(decoder.layers), decoder.hidden_size, decoder.vocab_size, 331, freq)
    return load_head(folder, sizes)


@needs_library
@pytest.mark.parametrize(
    ("family", "tied"), [(FAMILY, False), (FAMILY, True), ("qwen3_5_moe_text", False)]
)
def test_the_head_computes_what_its_definition_says(tmp_path, family, tied):
    """Rows of the text read the target's rows, and two levels of a tree the head's own."""
    model, weights = checkpoint(tmp_path / "checkpoint", family, tie_word_embeddings=tied)
    export.make(tmp_path / "checkpoint", tmp_path / "b", "none", ExportOptions(precision="fp32"))
    opened = attached(tmp_path / "b", tmp_path / "bundle", tmp_path / "checkpoint")
    fused = normed_rows(model, TEXT[:-1])
    features = features_of_target(opened, TEXT)[:-1]
    raw = torch.tensor(features)
    assert distance(model.model.norm(raw).detach().numpy(), fused.numpy()) < SAME
    for native in FORMS.values():
        head = with_features(opened, DRAFT, native)
        check_rows(head, MtpReference(weights, model), TEXT, features, fused)
    # Embedding and output projection are the target's.
    own = sum(each.numel() for each in weights.values() if each.dim() > 1)
    assert sum(opened.draft.native.formats.values()) == own


@needs_library
@pytest.mark.parametrize(("family", "tied"), [("glm4_moe_lite", True), ("glm4_moe", False)])
def test_a_head_behind_the_last_layer_computes_what_transformers_does(tmp_path, family, tied):
    source = tmp_path / "checkpoint"
    model = make_checkpoint(source, family, tie_word_embeddings=tied)
    reference = NextnReference(source, model)
    export.make(source, tmp_path / "b", "none", ExportOptions(precision="fp32"))
    opened = attached(tmp_path / "b", tmp_path / "bundle", source)
    fused = normed_rows(model, TEXT[:-1])
    features = features_of_target(opened, TEXT)[:-1]
    for native in FORMS.values():
        check_rows(with_features(opened, DRAFT, native), reference, TEXT, features, fused)


def test_a_head_behind_the_last_layer_is_read_from_gguf_files(tmp_path, caplog):
    source = tmp_path / "folder"
    file = tmp_path / "file.gguf"
    model = make_checkpoint(source, "glm4_moe")
    assert checkpoint_with_head(source) is None
    NextnReference(source, model)
    drafting = {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    write_gguf(source, file, **drafting)
    caplog.clear()
    expected = head_of(source)
    found = head_of(file)
    assert checkpoint_with_head(source) is not None
    assert checkpoint_with_head(file) is not None
    assert not caplog.records  # its tensors are not unused, nor are the model's in it
    assert found.head == expected.head
    for name in expected.head.tensors():
        assert_allclose(found.tensors.read(name), expected.tensors.read(name), atol=3e-7)
    edit_json(source / "config.json", num_nextn_predict_layers=2)
    with pytest.raises(UnsupportedModelError, match=r"num_nextn_predict_layers=2.*one layer"):
        head_of(source)


def test_the_command_finds_the_head_of_a_checkpoint(tmp_path, cli):
    source = tmp_path / "checkpoint"
    checkpoint(source)
    fast = ("--precision", "fp32")
    done = cli("export", source, *fast, "-o", tmp_path / "own")
    assert "draft head: the checkpoint's own (MTP), proposes 331 tokens" in done.out
    assert not done.err  # its tensors are not unused
    draft = bundles.load(tmp_path / "own").draft
    assert draft.is_head
    assert (draft.architecture, draft.precision.weights) == ("mtp", "int8")
    assert "mtp head" in cli("inspect", tmp_path / "own").out
    done = cli("export", source, *fast, "--draft", "none", "-o", tmp_path / "none")
    assert "draft head" not in done.out
    assert bundles.load(tmp_path / "none").draft is None
    precision = ("--draft-precision", "int4")
    done = cli("export", tmp_path / "none", "--draft", source, *precision, "-o", tmp_path / "later")
    assert bundles.load(tmp_path / "later").draft.precision.weights == "int4"
    wrong = (*fast, *precision, "--draft", "none")
    fails(cli("export", source, *wrong, "-o", tmp_path / "no"), "--draft-precision does nothing")


def test_a_smaller_model_with_a_head_drafts_itself(tmp_path, cli):
    checkpoint(tmp_path / "target")
    layers = ["linear_attention", "full_attention"]
    checkpoint(tmp_path / "small", num_hidden_layers=2, layer_types=layers)
    words = ["--draft", tmp_path / "small", "--precision", "fp32", "-o", tmp_path / "bundle"]
    done = cli("export", tmp_path / "target", *words)
    draft = bundles.load(tmp_path / "bundle").draft
    assert (done.code, draft.is_head, draft.layers) == (0, False, 2)


def test_a_checkpoint_without_a_head_is_exported_as_before(tmp_path, cli):
    source = tmp_path / "checkpoint"
    model = make_checkpoint(source, FAMILY)
    edit_json(source / "config.json", mtp_num_hidden_layers=1)  # tools leave the tensors out only
    done = cli("export", source, "--precision", "fp32", "-o", tmp_path / "bundle")
    assert done.code == 0
    assert bundles.load(tmp_path / "bundle").draft is None
    with pytest.raises(CheckpointError, match=r"no tensors mtp.*download the original checkpoint"):
        head_of(source)
    write_mtp(source, model.config)
    assert head_of(source).head.taps == (3,)


def test_the_head_of_a_model_that_reads_pictures_is_read(tmp_path):
    text_only = tmp_path / "text"
    whole = tmp_path / "whole"
    checkpoint(text_only)
    whole.mkdir()
    config = json.loads((text_only / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": config}))
    named = {
        name.replace("model.", "model.language_model."): each
        for name, each in load_file(text_only / "model.safetensors").items()
    }
    named["model.visual.patch_embed"] = torch.zeros(3)
    save_file(named, whole / "model.safetensors", {"format": "pt"})
    expected = head_of(text_only)
    found = head_of(whole)
    assert found.head == expected.head
    for name in expected.head.tensors():
        assert (found.tensors.read(name) == expected.tensors.read(name)).all()


@pytest.mark.parametrize("family", [FAMILY, "qwen3_5_moe_text"])
def test_the_head_of_a_gguf_file_is_read(tmp_path, family):
    checkpoint(tmp_path / "folder", family)
    file = tmp_path / "file.gguf"
    place = "qwen35" if family == FAMILY else "qwen35moe"
    drafting = {f"{place}.block_count": 4, f"{place}.nextn_predict_layers": 1}
    write_gguf(tmp_path / "folder", file, **drafting)
    expected = head_of(tmp_path / "folder")
    found = head_of(file)
    assert checkpoint_with_head(file) is not None
    assert found.head == expected.head
    for name in expected.head.tensors():
        assert_allclose(found.tensors.read(name), expected.tensors.read(name), atol=3e-7)
    write_gguf(
        tmp_path / "folder",
        file,
        **{**drafting, f"{place}.block_count": 5, f"{place}.nextn_predict_layers": 2},
    )
    with pytest.raises(UnsupportedModelError, match=r"mtp_num_hidden_layers=2.*one layer"):
        head_of(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers=2.*one layer.*--draft none"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings=True.*embedding"),
    ],
)
def test_heads_of_other_shapes_are_refused(tmp_path, changes, message):
    checkpoint(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        head_of(tmp_path)


def test_tensors_of_a_head_that_do_not_belong_are_refused(tmp_path):
    checkpoint(tmp_path)
    extra = "mtp.layers.1.mlp.up_proj.weight"
    add_tensors(tmp_path, {extra: torch.zeros(160, 64)})
    with pytest.raises(UnsupportedModelError, match=f"{extra} belongs to no part"):
        head_of(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(extra)
    missing = tensors.pop("mtp.fc.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight"):
        head_of(tmp_path)
    add_tensors(tmp_path, {"mtp.fc.weight": missing[:, :64]})
    with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight has shape \[64, 64\]"):
        head_of(tmp_path)


def test_the_head_of_another_model_is_refused(tmp_path):
    checkpoint(tmp_path)
    freq = (1.0,) * 12
    for sizes, field in (
        (TargetSizes(4, 64, 331, 331, freq), "num_hidden_layers"),
        (TargetSizes(3, 32, 331, 331, freq), "hidden_size"),
        (TargetSizes(3, 64, 400, 331, freq), "vocab_size"),
        (TargetSizes(3, 64, 331, 331, freq[:8]), "head_dim"),
    ):
        with pytest.raises(CheckpointError, match=f"{field}.*another's"):
            load_head(tmp_path, sizes)
