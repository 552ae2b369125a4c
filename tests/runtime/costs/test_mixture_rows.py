"""Tests that the rows of measured calls choose as many experts as those of a text."""

from __future__ import annotations

import json
from shutil import copytree

import pytest

from edgespec.bundle import TARGET, load
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.costs import isolated
from edgespec.runtime.costs.timing import measure, usual_tokens
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(saved_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture") / "bundle"
    export_bundle(saved_checkpoint("qwen3_moe"), folder, options=ExportOptions("fp32"))
    return folder


def test_a_mixture_reads_a_text(folder):
    tokens = usual_tokens(load(folder), TARGET, 32)
    text = Tokenizer.from_folder(folder).decode(tokens)
    assert len(tokens) == 32
    assert text.startswith("When a program starts, it reads")
    # As many as asked for, however short the text is.
    assert usual_tokens(load(folder), TARGET, 1000)[:32] == tokens


def test_a_tokenizer_that_knows_no_word_gives_different_tokens(folder, tmp_path):
    copytree(folder, tmp_path / "bundle")
    words = {"type": "WordLevel", "vocab": {f"t{n}": n for n in range(331)}, "unk_token": "t0"}
    (tmp_path / "bundle" / "tokenizer.json").write_text(json.dumps({"model": words}))
    bundle = load(folder)
    unknowing = type(bundle)(tmp_path / "bundle", bundle.manifest)
    assert len(set(usual_tokens(unknowing, TARGET, 32))) > 20


def test_other_models_need_no_tokenizer(exported, monkeypatch):
    monkeypatch.setattr(Tokenizer, "from_folder", None)
    assert len(set(usual_tokens(load(exported), TARGET, 32))) > 20


def test_measured_rows_have_these_tokens(folder, monkeypatch):
    bundle, seen = load(folder), []
    model = Model.load(bundle, TARGET, engine("onnxruntime:cpu"), 1)
    verify = Runner.verify
    monkeypatch.setattr(
        Runner, "verify", lambda self, rows: seen.append(rows) or verify(self, rows)
    )
    tokens = usual_tokens(bundle, TARGET, 8)
    next(measure(model, {256: (1, 8)}, tokens))
    assert {tuple(rows.tokens) for rows in seen} == {tuple(tokens[:1]), tuple(tokens)}


def test_a_profile_is_measured_with_them(folder, monkeypatch):
    given = []

    def unmeasured(model, points, tokens):
        given.append((max(map(max, points.values())), tokens))
        return iter(())

    monkeypatch.setattr(isolated, "measure", unmeasured)
    job = {
        "bundle": folder, "roles": {TARGET: ["onnxruntime:cpu"]}, "threads": 1, "full": False,
    }  # fmt: skip
    list(isolated._lines(job))
    ((most, tokens),) = given
    assert tokens == usual_tokens(load(folder), TARGET, most)
