"""Jina's rerankers and its model for code: what their published definitions compute."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from checkpoints import edit_json
from embeddings import ids_of, write_modules
from encoders import TEXTS, make_ranker
from jinas import jina_score, jina_vector, make_jina, make_jina_ranker
from native_llms import with_library
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from edgespec import LLM, export
from edgespec.bundle import LAST_TOKEN
from edgespec.errors import InputError, UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint

pytestmark = with_library
PLAIN = {"threads": 1}
QUERY = "what is a tree"
# Names of XLM-RoBERTa, and those of `jinaai/xlm-roberta-flash-implementation`.
FLASH_NAMES = (
    (r"embeddings\.LayerNorm\.", "emb_ln."),
    (r"encoder\.layer\.", "encoder.layers."),
    (r"attention\.output\.dense\.", "mixer.out_proj."),
    (r"attention\.output\.LayerNorm\.", "norm1."),
    (r"intermediate\.dense\.", "mlp.fc1."),
    (r"output\.dense\.", "mlp.fc2."),
    (r"output\.LayerNorm\.", "norm2."),
)


def made(source, bundle):
    export.make(source, bundle, options=ExportOptions("fp32"))
    return LLM(bundle, **PLAIN)


def write_flash(source, folder):
    """Write a checkpoint of XLM-RoBERTa as jina-reranker-v2 is stored, without its `model_type`."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    del config["model_type"]
    auto = {"AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig"}
    flash = {"position_embedding_type": "absolute", "emb_pooler": None, "use_flash_attn": True}
    (folder / "config.json").write_text(json.dumps({**config, **flash, "auto_map": auto}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((source / name).read_text())
    tensors = load_file(source / "model.safetensors")
    for index in range(config["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            name = f"roberta.encoder.layer.{index}.attention.self"
            parts = [tensors.pop(f"{name}.{each}.{kind}") for each in ("query", "key", "value")]
            fused = f"roberta.encoder.layers.{index}.mixer.Wqkv.{kind}"
            tensors[fused] = np.concatenate(parts)
    renamed = {}
    for name, tensor in tensors.items():
        own = name
        for pattern, text in FLASH_NAMES:
            own = re.sub(pattern, text, own)
        renamed[own] = tensor
    save_file(renamed, folder / "model.safetensors")


@pytest.fixture(scope="module")
def of_code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    make_jina(folder / "checkpoint", code=True)
    return folder / "checkpoint"


def test_vectors_of_the_model_for_code(of_code, tmp_path):
    with made(of_code, tmp_path / "bundle") as llm:
        found = llm.embed(TEXTS)
        assert np.array_equal(llm.embed(TEXTS[::-1]), found[::-1])
    for text, vector in zip(TEXTS, found, strict=True):
        assert np.abs(vector - jina_vector(of_code, ids_of(of_code, text))).max() < 1e-4


def test_int4_of_the_model_for_code_is_near_the_original(of_code, tmp_path):
    export.make(of_code, tmp_path / "rounded")
    with made(of_code, tmp_path / "bundle") as exact, LLM(tmp_path / "rounded", **PLAIN) as rounded:
        assert (exact.embed(TEXTS) * rounded.embed(TEXTS)).sum(1).min() > 0.9


def test_scores_of_the_first_rerankers_are_those_of_their_definition(tmp_path):
    source = tmp_path / "checkpoint"
    make_jina_ranker(source)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    with made(source, tmp_path / "bundle") as llm:
        found = {each.index: each.score for each in llm.rerank(QUERY, TEXTS)}
        with pytest.raises(InputError, match="makes scores of texts, and no embeddings"):
            llm.embed("a")
    for index, text in enumerate(TEXTS):
        read = tokenizer.encode(QUERY, text)
        expected = jina_score(source, read.ids, read.type_ids)
        assert found[index] == pytest.approx(expected, abs=1e-5)


def test_the_second_reranker_scores_as_the_same_xlm_roberta(tmp_path):
    make_ranker(tmp_path / "usual", "xlm-roberta", pad_token_id=1)
    write_flash(tmp_path / "usual", tmp_path / "flash")
    with (
        made(tmp_path / "usual", tmp_path / "a") as one,
        made(tmp_path / "flash", tmp_path / "b") as other,
    ):
        assert other.rerank(QUERY, TEXTS) == one.rerank(QUERY, TEXTS)


@pytest.mark.parametrize("rows", [1, 3])
def test_labels_that_a_config_leaves_out_are_counted(tmp_path, rows):
    make_ranker(tmp_path, "bert")
    edit_json(tmp_path / "config.json", id2label=None)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = np.repeat(tensors[name], rows, axis=0)
    save_file(tensors, file)
    if rows == 1:
        assert load_checkpoint(tmp_path).ranking is not None
        return
    with pytest.raises(UnsupportedModelError, match=r"id2label=.* use a model with one label"):
        load_checkpoint(tmp_path)


def test_a_model_with_several_classes_and_no_head_by_its_config_makes_vectors(tmp_path):
    make_ranker(tmp_path, "bert", num_labels=3)
    edit_json(tmp_path / "config.json", architectures=["BertModel"])
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.ranking is None
    assert checkpoint.embedding is not None


def test_a_row_of_scores_beside_the_files_of_an_embedding_model_ranks_nothing(tmp_path):
    make_jina_ranker(tmp_path / "checkpoint")
    write_modules(tmp_path / "checkpoint")
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.ranking is None
    assert checkpoint.embedding.pooling == LAST_TOKEN


def test_places_of_another_kind_of_the_second_rerankers_class_are_refused(tmp_path):
    make_ranker(tmp_path / "usual", "xlm-roberta", pad_token_id=1)
    write_flash(tmp_path / "usual", tmp_path / "flash")
    edit_json(tmp_path / "flash" / "config.json", position_embedding_type="rotary")
    with pytest.raises(UnsupportedModelError, match="position_embedding_type='rotary'"):
        load_checkpoint(tmp_path / "flash")
