"""Models whose rows see all of their text: parity with transformers."""

from __future__ import annotations

import json
from functools import reduce
from shutil import copytree

import numpy as np
import pytest
import torch
from checkpoints import edit_json
from embeddings import add_dense, ids_of
from encoders import TEXTS, make_encoder, vector_of
from jinas import jina_vector, make_jina
from native_llms import with_library
from safetensors.numpy import load_file, save_file
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from edgespec import LLM, export
from edgespec.errors import (
    CheckpointError,
    ContextLengthError,
    DeviceError,
    InputError,
    UnsupportedModelError,
)
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.models import load_checkpoint
from edgespec.models.layers.distances import BUCKETS, REACH, distance_buckets
from edgespec.tuning.calibrating import TextCalibration

pytestmark = with_library
FULL_PRECISION = {
    "bert-mean": {},
    "bert-first": {"pooling": "cls_token"},
    "camembert-mean": {"pad_token_id": 1},
    "distilbert-mean": {"hidden_dim": 160},
    "embedding_gemma2_text-mean": {
        "head_dim": 16,
        "num_key_value_heads": 2,
        "global_head_dim": 32,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "hidden_size_per_layer_input": 24,
        "embedding_dim": 96,
    },
    "eurobert-mean": {"num_key_value_heads": 2},
    "gte-first": {"pooling": "cls_token", "pad_token_id": 1},
    "gte-mean": {"type_vocab_size": 0},
    "jina_embeddings_v3-mean": {"pad_token_id": 1},
    "modernbert-first": {"pooling": "cls_token", "local_attention": 16},
    "mpnet-mean": {},
    "nomic_bert-mean": {},
    "roberta-mean": {"pad_token_id": 1},
    "xlm-roberta-first": {"pooling": "cls_token", "pad_token_id": 1},
}
PLAIN = {"threads": 1}
NOMICS_FIELDS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}
# Whether a file has the one form or the other depends on transformers.
NOMICS_NAMES = (
    ("encoder.layers", "layers"),
    ("layers.", "encoder.layers."),
    ("embeddings.LayerNorm", "emb_ln"),
    ("self_attn.o_proj", "attn.out_proj"),
    ("self_attn", "attn"),
    ("up_proj", "fc11"),
    ("gate_proj", "fc12"),
    ("down_proj", "fc2"),
    ("post_attention_layernorm", "norm1"),
    ("post_mlp_layernorm", "norm2"),
)


def kind_of(name):
    return name.rpartition("-")[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Checkpoint, transformers' model and fp32 bundle of each name, made at its first use."""
    found = {}

    def make(name):
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            model = make_encoder(folder / "checkpoint", kind_of(name), **FULL_PRECISION[name])
            export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
            found[name] = folder, model
        return found[name]

    return make


@pytest.mark.parametrize("name", FULL_PRECISION)
def test_vectors_are_those_of_transformers(made, name):
    folder, model = made(name)
    with LLM(folder / "bundle", **PLAIN) as llm:
        found = llm.embed(TEXTS)
        assert not inside(llm).engine.target.pool.used
    for text, vector in zip(TEXTS, found, strict=True):
        ids = ids_of(folder / "checkpoint", text)
        expected = vector_of(model, ids, FULL_PRECISION[name].get("pooling", "mean_tokens"))
        assert np.abs(vector - expected).max() < 1e-4


def test_buckets_of_distances_are_those_of_transformers():
    places = torch.arange(-REACH, REACH + 1)
    expected = MPNetEncoder.relative_position_bucket(places, BUCKETS)
    assert distance_buckets().tolist() == expected.tolist()
    farther = MPNetEncoder.relative_position_bucket(torch.tensor([-999, 999]), BUCKETS)
    assert farther.tolist() == [distance_buckets()[0], distance_buckets()[-1]]


def test_company_changes_no_bit(made):
    folder, _ = made("bert-mean")
    with LLM(folder / "bundle", **PLAIN) as llm:
        whole = llm.embed(TEXTS)
        assert np.array_equal(llm.embed(TEXTS[::-1]), whole[::-1])
        for text, vector in zip(TEXTS, whole, strict=True):
            assert np.array_equal(llm.embed(text), [vector])


def test_int4_is_near_the_original(made, tmp_path):
    folder, _ = made("bert-mean")
    export.make(folder / "checkpoint", tmp_path / "bundle", calibration=TextCalibration())
    with LLM(folder / "bundle", **PLAIN) as exact, LLM(tmp_path / "bundle", **PLAIN) as rounded:
        assert (exact.embed(TEXTS) * rounded.embed(TEXTS)).sum(1).min() > 0.97


def test_a_model_without_files_of_sentence_transformers_means_all_rows(made, tmp_path):
    folder, _ = made("bert-mean")
    source = copytree(folder / "checkpoint", tmp_path / "checkpoint")
    (source / "modules.json").unlink()
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLAIN) as told, LLM(tmp_path / "bundle", **PLAIN) as untold:
        found = untold.embed(TEXTS)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        assert np.allclose(found, told.embed(TEXTS), atol=1e-6)


def test_a_text_is_read_whole_and_no_longer_one_is(made):
    folder, _ = made("xlm-roberta-first")
    with LLM(folder / "bundle", **PLAIN) as llm:
        assert llm.context_length == 510  # two rows of the table are of no place
        assert llm.embed([7] * 510).shape == (1, 64)
        with pytest.raises(ContextLengthError, match="it has 511 tokens"):
            llm.embed([7] * 511)


def test_no_text_is_generated(made):
    folder, _ = made("bert-mean")
    with LLM(folder / "bundle", **PLAIN) as llm:
        llm.warm_up()
        with pytest.raises(InputError, match=r"makes embeddings, and no text: use LLM\.embed"):
            llm.chat("hello")


def test_what_has_no_operators_for_it_is_refused(made, monkeypatch):
    folder, _ = made("bert-mean")
    monkeypatch.setattr("edgespec.llm.load.place.library", lambda: None)
    with pytest.raises(DeviceError, match="the rows of a text see each other in its target"):
        LLM(folder / "bundle", **PLAIN)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}},
            "id2label=.* use a model with one label",
        ),
    ],
    ids=str,
)
def test_what_is_not_implemented_is_named(made, tmp_path, fields, reason):
    folder, _ = made("bert-mean")
    source = copytree(folder / "checkpoint", tmp_path / "checkpoint")
    edit_json(source / "config.json", **fields)
    with pytest.raises(UnsupportedModelError, match=reason):
        load_checkpoint(source)


def test_nomics_published_form(made, tmp_path):
    """Its fields and names are of its own, which transformers converts."""
    folder, _ = made("nomic_bert-mean")
    source = copytree(folder / "checkpoint", tmp_path / "checkpoint")
    told = json.loads((source / "config.json").read_text())
    fields = {own: told.pop(usual) for own, usual in NOMICS_FIELDS.items()}
    base = told.pop("rope_parameters")["rope_theta"]
    (source / "config.json").write_text(json.dumps({**told, **fields, "rotary_emb_base": base}))
    file = source / "model.safetensors"
    tensors = {
        f"bert.{reduce(lambda text, pair: text.replace(*pair), NOMICS_NAMES, name)}": tensor
        for name, tensor in load_file(file).items()
    }
    for index in range(3):
        name = f"bert.encoder.layers.{index}.attn"
        parts = [tensors.pop(f"{name}.{each}_proj.weight", None) for each in "qkv"]
        if parts[0] is not None:
            tensors[f"{name}.Wqkv.weight"] = np.concatenate(parts)
    assert "bert.encoder.layers.0.attn.Wqkv.weight" in tensors
    save_file(tensors, file)
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLAIN) as one, LLM(tmp_path / "bundle", **PLAIN) as other:
        assert np.array_equal(one.embed(TEXTS), other.embed(TEXTS))


def make_gemma(folder):
    """Save a checkpoint like EmbeddingGemma's; returns transformers' model and two matrices."""
    model = make_encoder(
        folder,
        "gemma3_text",
        use_bidirectional_attention=True,
        sliding_window=16,
        head_dim=24,
        num_key_value_heads=1,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    return model, add_dense(folder)


def test_jinas_scores_fall_with_distance(tmp_path):
    source = tmp_path / "checkpoint"
    make_jina(source)
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as llm:
        found = llm.embed(TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        assert np.abs(vector - jina_vector(source, ids_of(source, text))).max() < 1e-4
    edit_json(source / "config.json", feed_forward_type="original")
    with pytest.raises(UnsupportedModelError, match="feed_forward_type='original'"):
        load_checkpoint(source)


def test_embeddinggemma_2_of_which_text_alone_is_read(made, tmp_path):
    folder, _ = made("embedding_gemma2_text-mean")
    source = copytree(folder / "checkpoint", tmp_path / "checkpoint")
    told = json.loads((source / "config.json").read_text())
    whole = {"model_type": "embedding_gemma2", "text_config": told}
    (source / "config.json").write_text(json.dumps(whole))
    file = source / "model.safetensors"
    tensors = {f"language_model.{name}": each for name, each in load_file(file).items()}
    save_file({**tensors, "vision_tower.x": np.zeros(1, np.float32)}, file)
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLAIN) as one, LLM(tmp_path / "bundle", **PLAIN) as other:
        assert np.array_equal(one.embed(TEXTS), other.embed(TEXTS))


def test_embeddinggemma(tmp_path):
    model, (first, second) = make_gemma(tmp_path / "checkpoint")
    export.make(tmp_path / "checkpoint", tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as llm:
        for text, vector in zip(TEXTS, llm.embed(TEXTS), strict=True):
            ids = torch.tensor([ids_of(tmp_path / "checkpoint", text)])
            with torch.no_grad():
                row = model(ids).last_hidden_state[0].mean(0).numpy()
            expected = second @ (first @ row)
            expected /= np.linalg.norm(expected)
            assert np.abs(vector - expected).max() < 1e-4


def test_dense_layers_may_have_an_activation_behind_the_row_of_a_token(tmp_path):
    """As LaBSE has one."""
    source = tmp_path / "checkpoint"
    model = make_encoder(source, "bert", "cls_token")
    matrices = add_dense(source, "activation.Tanh")
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as llm:
        for text, vector in zip(TEXTS, llm.embed(TEXTS), strict=True):
            with torch.no_grad():
                row = model(torch.tensor([ids_of(source, text)])).last_hidden_state[0, 0].numpy()
            for matrix in matrices:
                row = np.tanh(matrix @ row)
            assert np.abs(vector - row / np.linalg.norm(row)).max() < 1e-4


@pytest.mark.parametrize("name", ["activation.Tanh", "activation.ReLU"])
def test_activations_of_dense_layers_that_are_not_implemented(tmp_path, name):
    """Behind a mean none is, since rows are what dense layers read here."""
    make_gemma(tmp_path)
    file = tmp_path / "3_Dense" / "config.json"
    edit_json(file, activation_function=f"torch.nn.modules.{name}")
    with pytest.raises(UnsupportedModelError, match="activation_function='torch"):
        load_checkpoint(tmp_path)


def test_vectors_may_be_wider_than_rows(tmp_path):
    model, (first, _) = make_gemma(tmp_path / "checkpoint")
    steps = json.loads((tmp_path / "checkpoint" / "modules.json").read_text())
    (tmp_path / "checkpoint" / "modules.json").write_text(json.dumps([*steps[:3], steps[4]]))
    export.make(tmp_path / "checkpoint", tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as llm:
        found = llm.embed(TEXTS)
        assert found.shape == (len(TEXTS), 96)
        assert llm.bundle.target.vector_size == 96
        assert llm.embed(TEXTS, dimensions=80).shape == (len(TEXTS), 80)
        for text, vector in zip(TEXTS, found, strict=True):
            ids = torch.tensor([ids_of(tmp_path / "checkpoint", text)])
            with torch.no_grad():
                expected = first @ model(ids).last_hidden_state[0].mean(0).numpy()
            assert np.abs(vector - expected / np.linalg.norm(expected)).max() < 1e-4


def test_dense_layers_that_do_not_fit_each_other_are_refused(tmp_path):
    make_gemma(tmp_path)
    steps = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps([*steps[:2], *steps[3:]]))
    with pytest.raises(CheckpointError, match="reads 96 numbers, and rows before it have 64"):
        load_checkpoint(tmp_path)


def test_a_gemma_that_sees_both_ways_writes_no_text(tmp_path):
    make_gemma(tmp_path)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(UnsupportedModelError, match=r"use_bidirectional_attention=True.*modules"):
        load_checkpoint(tmp_path)
