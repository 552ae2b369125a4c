"""GTE's published form: parity with transformers' own, whose frequencies are changed alike."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from checkpoints import edit_json
from embeddings import ids_of
from encoders import TEXTS, make_encoder, vector_of
from native_llms import with_library

from edgespec import LLM, export
from edgespec.errors import UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint

pytestmark = with_library
FULL_PRECISION = {
    "new-plain": None,
    "new-ntk": {"type": "ntk", "factor": 8.0},
}
THETA = 2000.0


def make_published(folder, scaling):
    """Save a checkpoint in the published form; returns transformers' model without scaling."""
    model = make_encoder(folder, "gte", "cls_token", pad_token_id=1)
    told = json.loads((folder / "config.json").read_text())
    del told["rope_parameters"]
    rope = {"rope_theta": THETA, "rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps({**told, **rope, "model_type": "new"}))
    return model


@pytest.mark.parametrize("name", FULL_PRECISION)
def test_vectors_are_those_of_transformers_with_the_same_frequencies(tmp_path, name):
    """The source of text-embeddings-inference defines how they are scaled."""
    scaling = FULL_PRECISION[name]
    source = tmp_path / "checkpoint"
    model = make_published(source, scaling)
    factor = scaling["factor"] if scaling else 1.0
    size = 2 * len(model.rotary_emb.inv_freq)
    wavelengths = (factor * THETA) ** (torch.arange(0, size, 2) / size)
    model.rotary_emb.inv_freq.copy_(1 / wavelengths / factor ** (2 / size))
    export.make(source, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", threads=1) as llm:
        for text, vector in zip(TEXTS, llm.embed(TEXTS), strict=True):
            expected = vector_of(model, ids_of(source, text), "cls_token")
            assert np.abs(vector - expected).max() < 1e-4


def test_what_is_not_implemented_is_named(tmp_path):
    make_published(tmp_path, {"type": "ntk", "factor": 8.0, "mixed_b": 0.5})
    with pytest.raises(UnsupportedModelError, match=r"mixed_b=0\.5"):
        load_checkpoint(tmp_path)
    edit_json(tmp_path / "config.json", logn_attention_scale=True)
    with pytest.raises(UnsupportedModelError, match="logn_attention_scale=True"):
        load_checkpoint(tmp_path)
