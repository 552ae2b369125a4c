"""Drafts that may propose some tokens only: what their graphs pick, and that texts stay equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pairs import ENGINES, SHORT_PROMPT
from parity import reference

from edgespec import LLM, bundle
from edgespec.bundle import DRAFT
from edgespec.errors import BundleError, InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.components.outputs import CANDIDATES
from edgespec.export.sources.trimming import trimmed
from edgespec.models import load_checkpoint
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.sizes import stage_sizes

IDS = tuple(sorted({*range(0, 331, 2), 1, 5, 7, 329}))
"""Every second token of 331, and some beside one another."""


@pytest.fixture(scope="module")
def twin(pairs):
    return pairs.pair("twin")


@pytest.fixture(scope="module")
def trimmed_bundle(twin, tmp_path_factory):
    folder, source = tmp_path_factory.mktemp("trimmed") / "bundle", twin.path.parent
    options = ExportOptions("fp32", draft_ids=IDS)
    export_bundle(source / "target", folder, source / "draft", options)
    return bundle.load(folder)


@pytest.mark.parametrize("tie", [False, True])
def test_rows_are_those_of_the_whole_projection(saved_checkpoint, tie):
    checkpoint = load_checkpoint(saved_checkpoint("llama", tie_word_embeddings=tie))
    cut = trimmed(checkpoint, np.array(IDS))
    head = cut.decoder.lm_head
    whole = checkpoint.tensors.read(checkpoint.decoder.lm_head.weight)
    assert not cut.decoder.tied
    assert cut.tensors.shape(head.weight) == (len(IDS), 64) == cut.decoder.tensors()[head.weight]
    assert np.array_equal(cut.tensors.read(head.weight), whole[list(IDS)])
    for start, stop in ((0, 3), (2, 9), (len(IDS) - 1, len(IDS))):
        rows = cut.tensors.read_rows(head.weight, start, stop)
        assert np.array_equal(rows, whole[list(IDS[start:stop])])
    embedding = cut.decoder.embedding
    assert np.array_equal(cut.tensors.read(embedding), checkpoint.tensors.read(embedding))


@pytest.mark.parametrize("device", ENGINES)
def test_the_graph_picks_the_likeliest_of_these_tokens_by_their_ids(trimmed_bundle, twin, device):
    model = Model.load(trimmed_bundle, DRAFT, engine(device), 1)
    text = list(range(3, 40))
    results = Runner(model).prefill(text)
    logits = reference(twin.draft, text)[list(IDS)].astype(np.float64)
    order = np.argsort(-logits, kind="stable")[:CANDIDATES]
    assert results["top_ids"][0].tolist() == np.array(IDS)[order].tolist()
    np.testing.assert_allclose(results["top_logits"][0], logits[order], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results["logsumexp"][0], np.logaddexp.reduce(logits), rtol=1e-5)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "seed": 5}], ids=str)
@pytest.mark.parametrize("device", ENGINES)
def test_the_text_is_plain_decodings(trimmed_bundle, device, fields):
    """The draft is the target, but for the tokens that it may not propose."""
    made = {}
    for draft in ("none", "model", "auto"):
        llm = LLM(trimmed_bundle.path, draft=draft, device=device, draft_device=device, threads=1)
        made[draft] = llm.generate(SHORT_PROMPT, max_new_tokens=64, **fields)
    assert made["model"].tokens == made["auto"].tokens == made["none"].tokens
    beyond = sum(token not in IDS for token in made["none"].tokens)
    assert made["model"].accepted > 0
    assert made["model"].rounds >= beyond  # which only the target itself can choose


def test_memory_is_that_of_the_rows_that_are_kept(trimmed_bundle, twin):
    [part], [whole] = (
        stage_sizes(each, DRAFT) for each in (trimmed_bundle, bundle.load(twin.path))
    )
    rows = 331 - len(IDS)
    assert trimmed_bundle.manifest.roles[DRAFT].output_tokens == len(IDS)
    assert part.vocab == len(IDS)
    assert whole.matmul_bytes - part.matmul_bytes == rows * 64 * 4
    assert whole.embedding_bytes == part.embedding_bytes


def test_a_draft_that_may_propose_all_tokens_is_as_it_was(twin, tmp_path):
    source = twin.path.parent
    files = []
    for number, ids in enumerate(((), tuple(range(331)))):
        folder = tmp_path / str(number)
        options = ExportOptions("fp32", draft_ids=ids)
        export_bundle(source / "target", folder, source / "draft", options)
        files.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert files[0] == files[1]


@pytest.mark.parametrize("ids", [(-1, 5), (5, 331)])
def test_ids_beyond_the_vocabulary_are_refused(twin, output, ids):
    source = twin.path.parent
    with pytest.raises(InputError, match="give token ids from 0 to 330"):
        export_bundle(
            source / "target", output, source / "draft", ExportOptions("fp32", draft_ids=ids)
        )
    assert not output.exists()


def test_a_manifest_that_scores_more_tokens_than_there_are_is_refused(trimmed_bundle):
    role = replace(trimmed_bundle.manifest.roles[DRAFT], output_tokens=400)
    roles = {**trimmed_bundle.manifest.roles, DRAFT: role}
    manifest = replace(trimmed_bundle.manifest, roles=roles)
    bundle.save_manifest(trimmed_bundle.path, manifest)
    try:
        with pytest.raises(BundleError, match=r"output_tokens is 400, which is not valid"):
            bundle.load(trimmed_bundle.path)
    finally:
        bundle.save_manifest(trimmed_bundle.path, trimmed_bundle.manifest)
