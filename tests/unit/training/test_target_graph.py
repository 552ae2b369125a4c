"""What training reads from a bundle: embedding, final norm and projection."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import make_checkpoint

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import InputError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint
from edgespec.models.embedded import BUNDLE
from edgespec.models.heads.eagle3 import default_taps
from edgespec.training.shape import check_taps, rope_theta
from edgespec.training.target_graph import TargetGraph


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
    assert rope_theta(role.inv_freq) == pytest.approx(10_000, rel=1e-3)
    pairs = role.head_dim // 2  # of which half are rotated
    half = 100.0 ** -(np.arange(pairs // 2) / (pairs // 2))
    assert rope_theta((*half.tolist(), *[0.0] * (pairs - pairs // 2))) == pytest.approx(
        100, rel=1e-9
    )
