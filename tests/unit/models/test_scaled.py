"""Tensors whose rows are multiplied by factors of a config."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import make_checkpoint
from quantized import Format, quantize

from edgespec.models import load_checkpoint
from edgespec.models.formats.scaled import ScaledTensors
from edgespec.models.formats.tensors import block_weights

Q, K = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qk")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    make_checkpoint(folder, "llama", attention_bias=True)
    return folder


def scaled(tensors, name):
    factors = np.linspace(0.5, 2.0, tensors.shape(name)[0], dtype=np.float32)
    return ScaledTensors(tensors, {name: factors}), factors


@pytest.mark.parametrize("name", [Q, Q.replace("weight", "bias")])
def test_rows_are_multiplied_wherever_they_are_read(plain, name):
    tensors = load_checkpoint(plain).tensors
    found, factors = scaled(tensors, name)
    expected = (tensors.read(name).T * factors).T
    np.testing.assert_array_equal(found.read(name), expected)
    np.testing.assert_array_equal(found.read_rows(name, 5, 19), expected[5:19])
    assert found.shape(name) == tensors.shape(name)
    assert found.encoding(name) is None
    with pytest.raises(ValueError, match="its rows are multiplied"):
        found.read_encoded(name, 0, 1)


def test_other_tensors_stay_as_they_are(plain):
    tensors = load_checkpoint(plain).tensors
    found, _ = scaled(tensors, Q)
    assert found.names == tensors.names
    assert (found.nbytes, found.place(K)) == (tensors.nbytes, tensors.place(K))
    np.testing.assert_array_equal(found.read(K), tensors.read(K))
    assert found.encoding(K) == "f32"
    np.testing.assert_array_equal(found.read_encoded(K, 1, 3), tensors.read_encoded(K, 1, 3))


def test_blocks_keep_their_levels(plain, tmp_path):
    quantize(plain, tmp_path / "made", Format("gptq", 4, 32))
    tensors = load_checkpoint(tmp_path / "made").tensors
    found, factors = scaled(tensors, Q)
    blocks = found.blocks(Q)
    assert blocks == tensors.blocks(Q)
    rows = found.read_blocks(Q, 3, 11)
    np.testing.assert_array_equal(rows.levels, tensors.read_blocks(Q, 3, 11).levels)
    expected = tensors.read_rows(Q, 3, 11) * factors[3:11, None]
    np.testing.assert_allclose(block_weights(rows, blocks), expected, rtol=1e-6)
