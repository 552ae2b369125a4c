"""What training reads from a bundle: hidden rows, embedding, final norm and projection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from checkpoints import make_checkpoint
from native_llms import with_library

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.export import ExportOptions, copy_with_taps
from edgespec.llm.load.open import load_model
from edgespec.models import load_checkpoint
from edgespec.models.embedded import BUNDLE
from edgespec.models.heads.eagle3 import default_taps
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sampling.truncation import likeliest_tokens
from edgespec.runtime.sequences.model import AFTER, Rows
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.training.reader import TargetReader
from edgespec.training.shape import check_taps, rope_theta
from edgespec.training.target_graph import TargetGraph

TEXT = "def add(a, b):\n    return a + b\n" * 8


@pytest.fixture(scope="module")
def tokens():
    return Tokenizer.from_folder(BUNDLE).encode(TEXT)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """The embedded target, whose passes give what enters three layers."""
    opened = bundles.load(BUNDLE)
    folder = tmp_path_factory.mktemp("tapped")
    copy_with_taps(opened, folder, (0, 3, opened.target.layers))
    return load_model(bundles.load(folder), TARGET, Placement(HOST), 1, features=True)


@with_library
def test_the_tapped_rows_are_embedding_and_what_the_head_multiplies(target, tokens):
    graph = TargetGraph(bundles.load(BUNDLE))
    vocabulary = max(tokens) + 1
    reading = TargetReader(target, vocabulary, 32).read(tokens)
    first, _, last = np.split(reading.features, 3, axis=1)
    np.testing.assert_array_equal(first, graph.embedding.rows(tokens))
    normed = last / np.sqrt((last * last).mean(axis=1, keepdims=True) + graph.eps) * graph.norm
    logits = normed @ graph.projection.rows(np.arange(vocabulary)).T
    # Products round activations to 8 bits.
    error = np.take_along_axis(logits, reading.top_ids, axis=1) - reading.top_logits
    assert np.sqrt((error**2).mean()) < 0.02 * logits.std()
    assert (logits.argmax(axis=1) == reading.top_ids[:, 0]).mean() > 0.95


@pytest.mark.parametrize("architecture", ["gemma2", "granite"])
def test_norm_and_embedding_have_their_factors(tmp_path, architecture):
    """Gemma's norm adds 1 to its weight, and Granite's divides the logits."""
    make_checkpoint(tmp_path / "model", architecture)
    export.make(tmp_path / "model", tmp_path / "bundle", options=ExportOptions("fp32"))
    checkpoint = load_checkpoint(tmp_path / "model")
    graph = TargetGraph(bundles.load(tmp_path / "bundle"))
    norm = checkpoint.decoder.norm
    tensors = checkpoint.tensors
    weight = (tensors.read(norm.weight) + norm.offset) * norm.factor
    np.testing.assert_allclose(graph.norm, weight, rtol=1e-6)
    rows = tensors.read(checkpoint.decoder.embedding) * checkpoint.decoder.embedding_scale
    np.testing.assert_allclose(graph.embedding.rows([3, 7]), rows[[3, 7]], rtol=1e-6)


@with_library
def test_reading_in_any_chunks_gives_what_a_pass_gives(target, tokens):
    count = len(tokens)
    vocabulary = 300
    sequence = target.sequence(tokens)
    rows = Rows(sequence, tokens, [AFTER, *range(count - 1)], list(range(count)))
    [logits] = target.forward([rows])
    rows.accept([])
    ids = likeliest_tokens(logits, vocabulary, 64)
    for size in (32, 7):
        reading = TargetReader(target, vocabulary, size).read(tokens)
        np.testing.assert_array_equal(reading.features, rows.features)
        np.testing.assert_array_equal(reading.top_ids, ids)
        np.testing.assert_array_equal(reading.top_logits, np.take_along_axis(logits, ids, axis=1))
    assert target.pool.used == 0


def test_taps():
    assert default_taps(28) == (2, 14, 25)
    assert default_taps(4) == (1, 2)
    assert default_taps(1) == (0, 1)
    check_taps((0, 8), 8)
    for wrong in ((), (3, 2), (1, 1), (0, 9), (-1, 2)):
        with pytest.raises(InputError, match="ascending layer numbers from 0 to 8"):
            check_taps(wrong, 8)


def test_the_base_of_the_rotation_is_the_targets():
    role = bundles.load(BUNDLE).target
    assert rope_theta(role) == pytest.approx(10_000, rel=1e-3)
    pairs = role.head_dim // 2  # of which half are rotated
    half = 100.0 ** -(np.arange(pairs // 2) / (pairs // 2))
    role = replace(role, inv_freq=(*half.tolist(), *[0.0] * (pairs - pairs // 2)))
    assert rope_theta(role) == pytest.approx(100, rel=1e-9)
