"""Parts of stored tensors, by themselves and as families use them."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import edit_json, make_checkpoint

from edgespec.errors import CheckpointError
from edgespec.models import SafetensorsFolder, load_checkpoint
from edgespec.models.formats.parts import Parts, TensorRows, stacked
from edgespec.models.formats.tensors import BlockRows, Blocks


class Arrays:
    """A source of arrays, of which those of integers are in blocks."""

    def __init__(self, **arrays):
        self.arrays = arrays
        self.names = frozenset(arrays)
        self.nbytes = 7

    def place(self, name):
        return f"file of {name}"

    def shape(self, name):
        return self.arrays[name].shape

    def read(self, name):
        return self.arrays[name].copy()

    def read_rows(self, name, start, stop):
        assert 0 <= start < stop <= len(self.arrays[name])
        return self.arrays[name][start:stop].copy()

    def blocks(self, name):
        return Blocks(4, 2) if name == "wide" else None

    def read_blocks(self, name, start, stop):
        rows = self.read_rows(name, start, stop)
        return BlockRows(rows.astype(np.uint8), rows[:, ::2], None)

    def encoding(self, name):
        return "f32" if name == "wide" else None

    def read_encoded(self, name, start, stop):
        return self.read_rows(name, start, stop).view(np.uint8)


@pytest.fixture
def stored():
    wide = np.arange(12 * 4, dtype=np.float32).reshape(12, 4)
    return Arrays(wide=wide, flat=np.arange(6, dtype=np.float32), rest=wide[:3])


ORDER = np.array([0, 2, 4, 1, 3, 5])


@pytest.fixture
def parts(stored):
    pieces = stacked("wide", {"a": 5, "b": 1, "c": 6})
    few = {"few": TensorRows("rest", np.array([2, 0]), 3)}
    return Parts(stored, {**pieces, "flat": TensorRows("flat", ORDER, 6), **few})


def test_each_part_has_its_rows(parts, stored):
    wide = stored.arrays["wide"]
    expected = {
        "a": wide[:5],
        "b": wide[5:6],
        "c": wide[6:],
        "flat": ORDER,
        "few": wide[[2, 0]],
        "rest": wide[:3],
    }
    assert parts.names == expected.keys()
    assert parts.nbytes == 7
    for name, values in expected.items():
        assert parts.shape(name) == values.shape
        np.testing.assert_array_equal(parts.read(name), values)
        for start in range(len(values)):
            for stop in range(start + 1, len(values) + 1):
                np.testing.assert_array_equal(
                    parts.read_rows(name, start, stop), values[start:stop]
                )
    assert parts.place("b") == "file of wide"
    assert parts.place("rest") == "file of rest"


@pytest.mark.parametrize("rows", [[7], [7, 2, 3]])
def test_rows_may_be_a_vector(stored, rows):
    parts = Parts(stored, {"wide": TensorRows("wide", np.array(rows), 12, vector=True)})
    row = stored.arrays["wide"][rows].ravel()
    assert parts.shape("wide") == row.shape
    np.testing.assert_array_equal(parts.read("wide"), row)
    np.testing.assert_array_equal(parts.read_rows("wide", 1, 3), row[1:3])
    assert parts.blocks("wide") is parts.encoding("wide") is None


def test_blocks_of_a_part_are_those_of_its_rows(stored):
    parts = Parts(stored, {"wide": TensorRows("wide", np.array([7, 3, 4, 5]), 12)})
    assert parts.blocks("wide") == Blocks(4, 2)
    assert parts.blocks("rest") is None
    found = parts.read_blocks("wide", 0, 3)
    np.testing.assert_array_equal(found.levels, stored.arrays["wide"][[7, 3, 4]])
    np.testing.assert_array_equal(found.scales, stored.arrays["wide"][[7, 3, 4], ::2])


def test_the_encoding_of_a_part_is_that_of_its_rows(stored):
    wide = stored.arrays["wide"]
    parts = Parts(stored, {"few": TensorRows("wide", np.array([7, 3, 4, 5]), 12)})
    assert parts.encoding("few") == parts.encoding("wide") == "f32"
    assert parts.encoding("flat") is None
    found = parts.read_encoded("few", 1, 4)
    np.testing.assert_array_equal(found.view(np.float32), wide[[3, 4, 5]])
    whole = parts.read_encoded("wide", 2, 4)
    np.testing.assert_array_equal(whole.view(np.float32), wide[2:4])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (0, 7)])
def test_rows_that_a_part_lacks_are_refused(parts, start, stop):
    with pytest.raises(ValueError, match="of c, which has 6"):
        parts.read_rows("c", start, stop)


def test_a_stored_tensor_of_another_size_is_named(stored):
    parts = Parts(stored, stacked("wide", {"a": 5, "b": 8}))
    with pytest.raises(CheckpointError, match=r"file of wide: wide has 12 rows.*asks for 13"):
        parts.shape("a")


QKV = "model.layers.1.self_attn.qkv_proj.weight"


def test_fused_weights_that_contradict_the_config_are_named(tmp_path):
    make_checkpoint(tmp_path, "phi3")
    edit_json(tmp_path / "config.json", num_key_value_heads=2)
    with pytest.raises(CheckpointError, match=r"qkv_proj\.weight has 144 rows.*asks for 192"):
        load_checkpoint(tmp_path)


def test_fused_weights_that_are_missing_are_named(tmp_path):
    make_checkpoint(tmp_path, "phi3")
    edit_json(tmp_path / "config.json", num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"has no tensor model\.layers\.2\..*qkv_proj"):
        load_checkpoint(tmp_path)


def test_heads_are_reordered_alike_in_queries_and_keys(tmp_path):
    """Else scores would differ; values stay as they were."""
    make_checkpoint(tmp_path, "phi3")
    files = SafetensorsFolder(tmp_path)
    tensors = load_checkpoint(tmp_path).tensors
    order = [*range(9), 18, 19, 20, *range(9, 18), 21, 22, 23]
    heads = [head[order] for head in np.split(files.read(QKV)[:120], 5)]
    expected = np.concatenate([*heads, files.read(QKV)[120:]])
    names = [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
    np.testing.assert_array_equal(np.concatenate([tensors.read(name) for name in names]), expected)


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_early_names_of_longrope(tmp_path, kind):
    make_checkpoint(tmp_path, "phi3")
    scaling = {"short_factor": [1.0] * 9, "long_factor": [2.0] * 9}
    ropes = []
    for name in ("longrope", kind):
        edit_json(
            tmp_path / "config.json",
            rope_parameters=None,
            partial_rotary_factor=0.75,
            rope_scaling={"type": name, **scaling},
            original_max_position_embeddings=64,
        )
        ropes.append(load_checkpoint(tmp_path).decoder.ropes["default"])
    np.testing.assert_array_equal(ropes[1].inv_freq, ropes[0].inv_freq)
    assert ropes[1].attention_factor == ropes[0].attention_factor > 1
