"""Bundles on disk: what loads, and everything that is refused before anything is run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import onnx
import pytest
from checkpoints import edit_json
from links import linked
from manifests import manifest_of, refused

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST
from edgespec.cli import main
from edgespec.errors import BundleError, EdgespecError
from edgespec.runtime.text.tokenizer import Tokenizer


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files that get hashed."""
    names = []
    sha256 = bundles.sha256

    def counting(path):
        names.append(path.name)
        return sha256(path)

    monkeypatch.setattr(bundles, "sha256", counting)
    return names


def damage(path):
    """Change one byte, and neither size nor times."""
    state = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_bundle_tells_what_it_holds(folder):
    bundle = bundles.load(folder)
    assert (bundle.target.architecture, bundle.target.layers) == ("llama", 2)
    assert bundle.target.precision == bundles.Precision("int4", "int6", "fp16", 32)
    assert bundle.draft.precision.weights == "fp16"
    sizes = [(folder / f"target.{kind}").stat().st_size for kind in ("native.onnx", "tiles")]
    assert bundle.role_size("target") == sum(sizes)
    assert len(bundle.target.quantization_error) > 2
    assert bundle.draft.quantization_error == {}
    bundle.verify()


def test_the_digest_names_the_content_and_not_the_place(folder, tmp_path):
    digest = bundles.load(folder).digest
    assert bundles.load(folder.rename(tmp_path / "elsewhere")).digest == digest
    target = manifest_of(tmp_path / "elsewhere")["roles"]["target"]
    edit_json(tmp_path / "elsewhere" / MANIFEST, roles={"target": target})
    assert bundles.load(tmp_path / "elsewhere").digest != digest


# What is no bundle


def test_hints_say_what_the_folder_is_instead(tmp_path):
    remedy = "give a folder that `edgespec export MODEL -o BUNDLE` has written"
    refused(tmp_path / "nowhere", "no such folder", remedy)
    refused(tmp_path, f"it has no {MANIFEST}", remedy)
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, f"edgespec export {tmp_path}")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"", "not readable as JSON"),
        (b'{"format": 1', "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b"[]", "format None"),
        (b"{}", "format None"),
        (b'{"format": 2}', "format 2, this edgespec reads 3: export the checkpoint again"),
        (b'{"format": 3}', "manifest.roles: missing"),
    ],
)
def test_manifests_that_cannot_be_read(tmp_path, text, part):
    (tmp_path / MANIFEST).write_bytes(text)
    refused(tmp_path, part)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="where all names are Unicode")
def test_a_folder_may_be_called_what_is_no_utf8(folder):
    named = folder.rename(os.fsdecode(os.fsencode(folder) + b"\xff"))
    bundle = bundles.load(named)
    provenance = {"target": named.name}
    bundles.save_manifest(named, replace(bundle.manifest, provenance=provenance))
    assert bundles.load(named).manifest.provenance == {"target": "bundle?"}
    Tokenizer.from_folder(named)


# Damage


def test_missing_files_are_named(folder):
    for name in list(manifest_of(folder)["files"]):
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        refused(folder, f"{name!r} is missing")
        (folder / name).write_bytes(data)
    assert bundles.load(folder).path == folder


def test_truncated_and_grown_files_are_named(folder):
    data = (folder / "target.tiles").read_bytes()
    for size in (0, len(data) - 1, len(data) + 1):
        (folder / "target.tiles").write_bytes((data + b"\0")[:size])
        refused(folder, "target.tiles", f"{size} bytes, the manifest says {len(data)}")


def test_one_flipped_bit_is_found_in_every_file(folder):
    for name in list(manifest_of(folder)["files"]):
        damage(folder / name)
        refused(folder, name, "SHA-256")
        damage(folder / name)


# Hashing once


def test_files_are_hashed_once_until_they_are_touched(folder, hashed):
    everything = set(manifest_of(folder)["files"])
    bundles.load(folder)
    assert set(hashed) == everything
    hashed.clear()
    bundle = bundles.load(folder)
    assert hashed == []
    bundle.verify()
    assert set(hashed) == everything
    os.utime(folder / "target.tiles", (1, 1))
    hashed.clear()
    bundles.load(folder)
    assert set(hashed) == everything


@pytest.mark.parametrize("name", ["other.tiles", "../target.tiles", "a" * 200])
def test_weights_that_the_manifest_does_not_list_are_refused(folder, name):
    graph = folder / "target.native.onnx"
    model = onnx.load(graph, load_external_data=False)
    held = next(each for each in model.graph.initializer if each.external_data)
    next(each for each in held.external_data if each.key == "location").value = name
    graph.write_bytes(model.SerializeToString())
    files = json.loads((folder / MANIFEST).read_text())["files"]
    edit_json(folder / MANIFEST, files=files | {graph.name: asdict(bundles.describe_file(graph))})
    (folder / "other.tiles").write_bytes((folder / "target.tiles").read_bytes())
    with pytest.raises(BundleError, match="which the manifest does not list"):
        bundles.load(folder)


def test_an_empty_graph_is_refused(folder):
    graph = folder / "target.native.onnx"
    graph.write_bytes(b"")
    files = json.loads((folder / MANIFEST).read_text())["files"]
    edit_json(folder / MANIFEST, files=files | {graph.name: asdict(bundles.describe_file(graph))})
    with pytest.raises(EdgespecError, match=r"target\.native\.onnx"):
        LLM(folder)


def test_a_copy_is_hashed_for_itself(folder, hashed, tmp_path):
    bundles.load(folder)
    shutil.copytree(folder, tmp_path / "copy")
    damage(tmp_path / "copy" / "target.tiles")
    refused(tmp_path / "copy", "SHA-256")


def test_verify_finds_what_a_remembered_load_does_not(folder):
    bundles.load(folder)
    damage(folder / "draft.tiles")
    bundle = bundles.load(folder)
    with pytest.raises(BundleError, match=r"draft\.tiles: SHA-256"):
        bundle.verify()


# Names that leave the folder


@pytest.mark.parametrize(
    "name",
    [
        "../target.tiles",
        "sub/../../target.tiles",
        "..",
        "C:target.tiles",
        "..\\target.tiles",
        "a\0b",
        "\ud800",
    ],
)
def test_names_that_leave_the_bundle_are_refused(folder, name):
    shutil.copy(folder / "target.tiles", folder.parent / "target.tiles")
    rename_entry(folder, name)
    refused(folder, "is outside the bundle's folder or invalid", repr(name))


def test_absolute_names_are_refused(folder):
    name = str(shutil.copy(folder / "target.tiles", folder.parent / "target.tiles"))
    rename_entry(folder, name)
    refused(folder, "is outside the bundle's folder or invalid", repr(name))


def rename_entry(folder, name):
    files = manifest_of(folder)["files"]
    files[name] = files.pop("target.tiles")
    edit_json(folder / MANIFEST, files=files)


def test_links_that_leave_the_bundle_are_refused(folder):
    outside = folder.parent / "outside"
    (folder / "target.tiles").rename(outside)
    linked(folder / "target.tiles", outside)
    refused(folder, f"target.tiles is a link to {outside.resolve()}", "put the file itself there")
    (folder / "target.tiles").unlink()
    outside.rename(folder / "target.tiles")
    linked(folder / MANIFEST, (folder / MANIFEST).rename(outside))
    refused(folder, f"{MANIFEST} is a link to {outside.resolve()}")


@pytest.mark.parametrize("below", [".", "int4"])
def test_links_of_the_hubs_cache_stay_in_their_repository(folder, below):
    hub = folder.parent / "hub"
    blobs = hub / "models--a--b/blobs"
    snapshot = hub / "models--a--b/snapshots/c0ffee" / below
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        target = file.rename(blobs / f"{file.name}-hash")
        linked(snapshot / file.name, Path(os.path.relpath(target, snapshot)))
    assert LLM(snapshot, threads=1, draft="none").generate("a", max_new_tokens=2).tokens
    (blobs / "target.tiles-hash").rename(hub / "elsewhere")
    (snapshot / "target.tiles").unlink()
    linked(snapshot / "target.tiles", hub / "elsewhere")
    refused(snapshot, "target.tiles is a link to")


@pytest.mark.parametrize("name", ["chat_template.jinja", "special_tokens_map.json"])
def test_files_that_are_not_listed_are_not_read(folder, name):
    assert not Tokenizer.of(bundles.load(folder)).has_chat_template
    (folder / name).write_text("[" if name.endswith("json") else "{{ 'dropped here' }}")
    assert not Tokenizer.of(bundles.load(folder)).has_chat_template


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b31m", "a\nb", "\x07", "\u202e", "\u2028"])
@pytest.mark.parametrize("place", ["architecture", "formats", "file", "role"])
def test_control_characters_are_refused_and_not_shown(folder, place, text, capsys):
    manifest = manifest_of(folder)
    target = manifest["roles"]["target"]
    if place == "architecture":
        target[place] = text
    elif place == "formats":
        target["native"][place] = {text: 1}
    elif place == "file":
        manifest["files"][text] = manifest["files"]["tokenizer.json"]
    else:
        manifest["roles"][text] = target
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert main(["inspect", str(folder)]) == 2
    assert text not in (shown := capsys.readouterr().err)
    assert "\x1b" not in shown


def test_where_a_bundle_is_from_is_shown_without_control_characters(folder, capsys):
    edit_json(folder / MANIFEST, provenance={"target": "\x1b[2J\x9bname"})
    assert main(["inspect", str(folder)]) == 0
    assert r"\x1b[2J\x9bname" in (shown := capsys.readouterr().out)
    assert "\x1b[2J" not in shown


def test_a_linked_folder_is_the_folder(folder):
    link = linked(folder.parent / "link", folder)
    assert bundles.load(link).digest == bundles.load(folder).digest


@pytest.mark.parametrize("place", ["tokenizer", "graph", "data", "ids"])
def test_files_in_use_must_be_listed_and_so_checked(folder, place):
    manifest = manifest_of(folder)
    if place == "tokenizer":
        manifest["tokenizer"].append("../tokenizer.json")
    else:
        manifest["roles"]["target"]["native"][place] = "../tokenizer.json"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    refused(folder, "'../tokenizer.json' is used but not listed")
