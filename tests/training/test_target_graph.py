"""What training reads from a bundle: hidden rows, embedding, final norm and projection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from commandline import PLACE
from parity import made

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.errors import InputError
from edgespec.export import ExportOptions, copy_with_taps, export_bundle
from edgespec.models import load_checkpoint
from edgespec.models.embedded import BUNDLE
from edgespec.models.heads.eagle3 import default_taps
from edgespec.training.reader import TargetReader
from edgespec.training.shape import check_taps, rope_theta
from edgespec.training.target_graph import TargetGraph

TEXT = "def add(a, b):\n    return a + b\n" * 8


@pytest.fixture(scope="module")
def graph():
    return TargetGraph(bundles.load(BUNDLE))


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    opened, folder = bundles.load(BUNDLE), tmp_path_factory.mktemp("tapped")
    copy_with_taps(opened, folder, (0, 3, opened.target.layers))
    with LLM(folder, draft="none", **{k: v for k, v in PLACE.items() if k != "draft_device"}) as it:
        yield it


def test_the_tapped_rows_are_embedding_and_what_the_head_multiplies(graph, llm):
    tokens = llm.tokenizer.encode(TEXT)
    reading = TargetReader(llm.target, llm.tokenizer.vocab_size, 32).read(tokens)
    first, _, last = np.split(reading.features, 3, axis=1)
    np.testing.assert_allclose(first, graph.embedding.rows(tokens), rtol=2e-3, atol=1e-4)
    normed = last / np.sqrt((last * last).mean(axis=1, keepdims=True) + graph.eps) * graph.norm
    rows = graph.projection.rows(np.arange(llm.tokenizer.vocab_size))
    logits = normed @ rows.T
    # Products round activations to 8 bits.
    error = np.take_along_axis(logits, reading.top_ids, axis=1) - reading.top_logits
    assert np.sqrt((error**2).mean()) < 0.02 * logits.std()
    assert (logits.argmax(axis=1) == reading.top_ids[:, 0]).mean() > 0.95


@pytest.mark.parametrize("architecture", ["gemma2", "granite"])
def test_norm_and_embedding_have_their_factors(tmp_path, architecture):
    """Gemma's norm adds 1 to its weight, and Granite's divides the logits."""
    made(tmp_path / "model", architecture)
    export_bundle(tmp_path / "model", tmp_path / "bundle", options=ExportOptions("fp32"))
    checkpoint = load_checkpoint(tmp_path / "model")
    graph = TargetGraph(bundles.load(tmp_path / "bundle"))
    norm, tensors = checkpoint.decoder.norm, checkpoint.tensors
    weight = (tensors.read(norm.weight) + norm.offset) * norm.factor
    np.testing.assert_allclose(graph.norm, weight, rtol=1e-6)
    rows = tensors.read(checkpoint.decoder.embedding) * checkpoint.decoder.embedding_scale
    np.testing.assert_allclose(graph.embedding.rows([3, 7]), rows[[3, 7]], rtol=1e-6)


def test_reading_again_and_in_other_chunks_gives_the_same(llm):
    tokens = llm.tokenizer.encode(TEXT)
    one = TargetReader(llm.target, llm.tokenizer.vocab_size, 32)
    again = one.read(tokens), TargetReader(llm.target, llm.tokenizer.vocab_size, 7).read(tokens)
    first = one.read(tokens)
    for each in again:
        np.testing.assert_array_equal(first.features, each.features)
        np.testing.assert_array_equal(first.top_ids, each.top_ids)


def test_the_text_stays_the_same(llm):
    with LLM(BUNDLE, draft="none", device=PLACE["device"], threads=1) as plain:
        expected = plain.generate("def fibonacci(n):\n", max_new_tokens=24).tokens
    assert llm.generate("def fibonacci(n):\n", max_new_tokens=24).tokens == expected


def test_taps():
    assert default_taps(28) == (2, 14, 25)
    assert default_taps(4) == (1, 2)
    assert default_taps(1) == (0, 1)
    check_taps((0, 8), 8)
    for wrong in ((), (3, 2), (1, 1), (0, 9), (-1, 2)):
        with pytest.raises(InputError, match="ascending layer numbers from 0 to 8"):
            check_taps(wrong, 8)


def test_the_base_of_the_rotation_is_the_targets():
    assert rope_theta(bundles.load(BUNDLE).target) == pytest.approx(10_000, rel=1e-3)


def test_the_base_of_a_rotation_of_a_part_of_each_head():
    role = bundles.load(BUNDLE).target
    pairs = role.head_dim // 2
    half = 100.0 ** -(np.arange(pairs // 2) / (pairs // 2))
    role = replace(role, inv_freq=(*half.tolist(), *[0.0] * (pairs - pairs // 2)))
    assert rope_theta(role) == pytest.approx(100, rel=1e-9)
