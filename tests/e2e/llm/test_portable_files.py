"""Portable graphs in the user's cache folder."""

from __future__ import annotations

import shutil

import pytest
from native_llms import with_library

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.bundle.options import GraphForm
from edgespec.errors import InputError
from edgespec.llm.load.portable import portable_graph
from edgespec.system import cachedir

pytestmark = with_library


@pytest.fixture(scope="module")
def bundle(pairs):
    return bundles.load(pairs.pair("llama").path)


def test_graphs_are_made_once(bundle, own_cache, tmp_path):
    first = portable_graph(bundle, TARGET, GraphForm(0))
    assert first.parent.parent == own_cache / "portable"
    written = first.stat().st_mtime_ns
    shutil.copytree(bundle.path, tmp_path / "copy")
    again = portable_graph(bundles.load(tmp_path / "copy"), TARGET, GraphForm(0))
    assert (again, again.stat().st_mtime_ns) == (first, written)
    assert portable_graph(bundle, TARGET, GraphForm(4)) != first
    assert len([*(own_cache / "portable").iterdir()]) == 2


@pytest.mark.parametrize("damage", ["a bit", "shorter", "missing", "unsealed", "another seal"])
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_damaged_is_made_anew(bundle, own_cache, monkeypatch, damage, which):
    graph = portable_graph(bundle, TARGET, GraphForm(0))
    monkeypatch.setattr(cachedir, "_INTACT", set())  # as in another process
    file = sorted(each for each in graph.parent.iterdir() if each.name != "seal.json")[which]
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "unsealed":
        (graph.parent / "seal.json").unlink()
    elif damage == "another seal":
        (graph.parent / "seal.json").write_text("[" * 100_000)
    else:
        middle = len(content) // 2
        changed = bytes([content[middle] ^ 1]) + content[middle + 1 :] if damage == "a bit" else b""
        file.write_bytes(content[:middle] + changed)
    assert portable_graph(bundle, TARGET, GraphForm(0)) == graph
    assert file.read_bytes() == content


def test_a_cache_without_room_is_an_error(bundle, monkeypatch, own_cache):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgespec.export.portable.lower", full)
    with pytest.raises(InputError, match=r"\(No space left on device\): make room"):
        portable_graph(bundle, TARGET, GraphForm(0))


def test_without_a_cache_folder_there_is_no_graph(bundle, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set EDGESPEC_CACHE"):
        portable_graph(bundle, TARGET, GraphForm(0))
