"""Names of weights, by which heads know their targets."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import make_checkpoint

from edgespec import bundle as bundles
from edgespec import export
from edgespec.export import ExportOptions
from edgespec.export.heads.identity import bundle_weights, checkpoint_weights, weights_name
from edgespec.models import load_checkpoint


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "granite"])  # plain, offset, factor
def test_a_checkpoint_and_its_bundles_have_one_name(tmp_path, architecture):
    make_checkpoint(tmp_path / "model", architecture)
    name = checkpoint_weights(load_checkpoint(tmp_path / "model"))
    for precision in ("fp32", "int4"):
        folder = tmp_path / precision
        export.make(tmp_path / "model", folder, options=ExportOptions(precision))
        assert bundle_weights(bundles.load(folder).target, folder) == name


def test_other_weights_have_another_name():
    norm = np.linspace(0.5, 2, 64, dtype=np.float32)
    assert weights_name(norm) == weights_name(norm.astype(np.float16).astype(np.float32))
    assert weights_name(norm) != weights_name(norm[::-1])
    assert len(weights_name(norm)) == 16
