"""Weights from anywhere: what is asked of a source, and that export needs nothing else of it."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec import export
from edgespec.errors import CheckpointError
from edgespec.export import ExportOptions
from edgespec.models import SafetensorsFolder, checkpoint
from edgespec.models.formats.tensors import check_shapes, equal_tensors


class InMemory:
    """A source of arrays, with no more than the protocol has."""

    def __init__(self, arrays):
        self._arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
        self.names = frozenset(arrays)
        self.nbytes = sum(array.nbytes for array in self._arrays.values())

    def place(self, name):
        return f"memory of {name}"

    def shape(self, name):
        return self._arrays[name].shape

    def read(self, name):
        return self._arrays[name].copy()

    def read_rows(self, name, start, stop):
        return self._arrays[name][start:stop].copy()

    def blocks(self, name):
        return None

    def encoding(self, name):
        return None


@pytest.mark.parametrize("precision", ["int4", "fp16"])
def test_an_export_from_another_source_has_the_same_files(
    saved_checkpoint, tmp_path, monkeypatch, precision
):
    source = saved_checkpoint("llama")

    def exported(name):
        folder = tmp_path / name
        export.make(source, folder, options=ExportOptions(precision=precision))
        return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}

    expected = exported("files")

    def in_memory(*place):
        files = SafetensorsFolder(*place)
        return InMemory({name: files.read(name) for name in files.names})

    monkeypatch.setattr(checkpoint, "SafetensorsFolder", in_memory)
    assert exported("memory") == expected


def test_shapes_are_checked():
    tensors = InMemory({"a": np.ones((3, 2)), "b": np.ones(2)})
    check_shapes(tensors, {"a": (3, 2), "b": (2,)})
    with pytest.raises(CheckpointError, match=r"memory of a: a has shape \[3, 2\].*\[2, 3\]"):
        check_shapes(tensors, {"b": (2,), "a": (2, 3)})


def test_equal_tensors_are_equal_in_every_row():
    rows = np.arange(5000, dtype=np.float32).reshape(2500, 2)
    other = rows.copy()
    other[2499, 1] += 1
    tensors = InMemory({"a": rows, "b": rows, "c": other, "d": rows[:-1]})
    assert equal_tensors(tensors, "a", "b")
    assert not equal_tensors(tensors, "a", "c")
    assert not equal_tensors(tensors, "a", "d")
