"""Files of random bits are models that can be loaded, and their scores are finite."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import import_module

import gguf
import numpy as np
import pytest
from checkout import ROOT

from edgespec import LLM
from edgespec.llm.llm import inside
from edgespec.measuring.perplexity import predictions

WORDS = 512
PROMPT = list(range(30, 46))
LAYERS = {"0.6b": 1, "30b-a3b": 1, "gemma3-1b": 2, "qwen3.5-0.8b": 4}
_OPTIONAL = {"output", "rope_freqs", "blk.0.attn_rot_embd"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield import_module("random_gguf")


@pytest.fixture
def write(command, monkeypatch, tmp_path):
    """Writes a model with few words and layers."""

    def written(name, encoding):
        file = tmp_path / f"{name}.gguf"
        monkeypatch.setitem(command._MODELS, name, replace(command._MODELS[name], words=WORDS))
        options = ["-o", str(file), "--layers", str(LAYERS[name])]
        monkeypatch.setattr("sys.argv", ["random_gguf.py", name, encoding, *options])
        command.main()
        return file

    return written


@pytest.mark.parametrize("name", ["gemma3-1b", "qwen3.5-0.8b"])
def test_scores_are_finite_and_tell_words_apart(write, monkeypatch, tmp_path, name):
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    with LLM(str(write(name, "Q4_K")), draft="none", context=64, threads=1) as llm:
        rows = predictions(inside(llm).engine.target, PROMPT, 0)
        scores = np.array([row.copy() for row in rows])
    assert scores.shape[1] == WORDS
    assert np.isfinite(scores).all()
    assert scores.std(axis=1).min() > 0.1


@pytest.mark.parametrize("name", LAYERS)
def test_tensors_are_those_that_the_architecture_has(write, command, name):
    reader = gguf.GGUFReader(write(name, "Q4_K"))
    model = command._MODELS[name]
    kind = next(k for k, each in gguf.MODEL_ARCH_NAMES.items() if each == model.architecture)
    names = {gguf.TENSOR_NAMES[each].format(bid=0) for each in gguf.MODEL_TENSORS[kind]}
    found = {re.sub(r"blk\.\d+", "blk.0", each.name) for each in reader.tensors}
    stems = {re.sub(r"\.(weight|bias)$", "", each) for each in found}
    assert names - stems <= _OPTIONAL
    assert stems <= names


def test_rows_that_blocks_do_not_fit_are_in_what_llama_cpp_takes(write):
    reader = gguf.GGUFReader(write("gemma3-1b", "Q4_K"))
    kinds = {each.name: each.tensor_type.name for each in reader.tensors}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_q.weight"] == "Q5_0"
    assert kinds["blk.0.attn_output.weight"] == kinds["blk.0.ffn_down.weight"] == "Q4_K"


def test_states_decay(write):
    reader = gguf.GGUFReader(write("qwen3.5-0.8b", "Q8_0"))
    decays = [each.data for each in reader.tensors if each.name.endswith(".ssm_a")]
    assert len(decays) == 3
    assert np.max(decays) < 0
