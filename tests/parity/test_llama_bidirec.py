"""NVIDIA's form of Llama whose rows see both ways: parity with transformers' Llama made so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoints import edit_json
from embeddings import ids_of
from encoders import TEXTS, make_encoder, vector_of
from native_llms import with_library

from edgespec import LLM, export
from edgespec.errors import UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint

pytestmark = with_library
FULL_PRECISION = {"llama_bidirec-mean": {"num_key_value_heads": 2}}


def make_published(folder):
    """Save a checkpoint in the published form; returns transformers' model."""
    options = FULL_PRECISION["llama_bidirec-mean"]
    model = make_encoder(folder, "llama", is_causal=False, **options)
    told = json.loads((folder / "config.json").read_text())
    del told["is_causal"]
    published = {"model_type": "llama_bidirec", "pooling": "avg", "temperature": 0.02}
    (folder / "config.json").write_text(json.dumps({**told, **published}))
    return model


@pytest.mark.parametrize("files", [True, False], ids=["sentence-transformers", "bare"])
def test_vectors_are_those_of_transformers(tmp_path, files):
    source = tmp_path / "checkpoint"
    model = make_published(source)
    if not files:
        (source / "modules.json").unlink()
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", threads=1) as llm:
        found = llm.embed(TEXTS)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    for text, vector in zip(TEXTS, found, strict=True):
        assert np.abs(vector - vector_of(model, ids_of(source, text))).max() < 1e-4


def test_what_is_not_implemented_is_named(tmp_path):
    make_published(tmp_path)
    edit_json(tmp_path / "config.json", pooling="weighted_avg")
    with pytest.raises(UnsupportedModelError, match="pooling='weighted_avg'"):
        load_checkpoint(tmp_path)
    name = "LlamaBidirectionalForSequenceClassification"
    labels = {"architectures": [name], "id2label": {"0": "a"}}
    edit_json(tmp_path / "config.json", pooling="avg", **labels)
    with pytest.raises(UnsupportedModelError, match="use a model that makes embeddings"):
        load_checkpoint(tmp_path)
