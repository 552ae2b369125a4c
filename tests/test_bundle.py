"""Bundles on disk: what loads, and everything that is refused before anything is run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace

import pytest
from checkpoints import edit_json, make_checkpoint, write_tokenizer
from links import linked

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST
from edgespec.errors import BundleError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.text import Tokenizer


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    make_checkpoint(folder / "checkpoint", "llama")
    write_tokenizer(folder / "checkpoint", 331)
    source = folder / "checkpoint"
    export_bundle(source, folder / "bundle", source, ExportOptions(draft_precision="fp16"))
    return folder / "bundle"


@pytest.fixture
def folder(exported, tmp_path):
    """A bundle of the test's own."""
    return shutil.copytree(exported, tmp_path / "bundle")


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


def manifest_of(folder):
    return json.loads((folder / MANIFEST).read_text())


def refused(folder, *parts):
    with pytest.raises(BundleError) as caught:
        bundles.load(folder)
    for part in parts:
        assert part in str(caught.value)


def damage(path):
    """Change one byte, and neither size nor times."""
    state, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_bundle_tells_what_it_holds(folder):
    bundle = bundles.load(folder)
    assert (bundle.target.architecture, bundle.target.layers) == ("llama", 2)
    assert bundle.target.precision == bundles.Precision("int4", "int4", "fp32", 32, "fp16")
    assert bundle.draft.precision.weights == "fp16"
    sizes = [(folder / f"target.{kind}").stat().st_size for kind in ("onnx", "data")]
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
    remedy = "give the folder that `edgespec export MODEL -o BUNDLE` has written"
    refused(tmp_path / "nowhere", "no such folder", remedy)
    refused(tmp_path, f"holds no {MANIFEST}", remedy)
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
        (b'{"format": 99}', "format 99, this edgespec reads 2"),
        (b'{"format": 2}', "manifest.roles: missing"),
    ],
)
def test_manifests_that_cannot_be_read(tmp_path, text, part):
    (tmp_path / MANIFEST).write_bytes(text)
    refused(tmp_path, part)


def test_manifest_fields_are_checked_by_name_and_type(folder):
    whole = manifest_of(folder)

    def role(**changes):
        return {"roles": {"target": {**whole["roles"]["target"], **changes}}}

    cases = [
        ({"surprise": 1}, "manifest.surprise: unknown field"),
        (role(surprise=1), "manifest.roles.target.surprise: unknown field"),
        (role(layers="2"), "manifest.roles.target.layers: expected int, found '2'"),
        (role(bias_off=-(10**400)), "manifest.roles.target.bias_off: expected float, found -1000"),
        (role(eos_ids=[True]), "manifest.roles.target.eos_ids[0]: expected int, found True"),
        ({"files": []}, "manifest.files: expected dict"),
        ({"roles": {"draft": whole["roles"]["target"]}}, "no role 'target'"),
    ]
    for changes, part in cases:
        (folder / MANIFEST).write_text(json.dumps({**whole, **changes}))
        refused(folder, part)
    for name in whole:
        if name != "format":
            rest = {key: value for key, value in whole.items() if key != name}
            (folder / MANIFEST).write_text(json.dumps(rest))
            refused(folder, f"manifest.{name}: missing")


STAGE = "roles.target.stages.0"
STILL = {"agreement": 0.5, "chain": 3, "tokens_per_second": 0.0}
MOVING = {**STILL, "tokens_per_second": 9.0}
SCORE = {
    "draft_cost": 0.5, "plain_tokens_per_second": 9.0, "engine": "x",
    "greedy": MOVING, "sampled": MOVING,
}  # fmt: skip
SCORES = [
    {**SCORE, "sampled": STILL}, *({**SCORE, "draft_cost": cost} for cost in (0, -1, float("nan"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "values", "part"),
    [
        ("roles.target.layers", [0, -1, 3, 10**30], ""),
        ("roles.target.hidden_size", [0, 10**30], "roles.target.hidden_size is "),
        ("roles.target.parameters", [0, 10**30], "roles.target.parameters is "),
        ("roles.draft.context_length", [0, -1, 1], "roles.draft.context_length is "),
        ("roles.target.inv_freq", [[], [float("nan")] * 12], "roles.target.inv_freq is ("),
        ("roles.target.eos_ids", [[-1]], "roles.target.eos_ids is (-1,)"),
        ("roles.target.bias_off", [0.0, float("nan")], "roles.target.bias_off is "),
        ("roles.target.precision.weights", ["x", "w8a16"], "roles.target.precision.weights is '"),
        ("roles.target.precision.kv", ["x"], "roles.target.precision.kv is 'x'"),
        ("roles.target.precision.scales", ["x"], "roles.target.precision.scales is 'x'"),
        ("roles.target.precision.block_size", [0], "roles.target.precision.block_size is 0"),
        ("roles.target.stages", [[]], "roles.target.stages is ()"),
        (f"{STAGE}.start", [1, 10**30], "roles.target.stages[0].start is 1"),
        (f"{STAGE}.stop", [0, 4, 6, 10**30], "roles.target.stages[0].stop is "),
        (f"{STAGE}.inputs.0.dtype", ["x"], "roles.target.stages[0].inputs[0].dtype is 'x'"),
        (f"{STAGE}.outputs", [[]], "roles.target.stages[0].outputs is ()"),
        (f"{STAGE}.outputs.0.dtype", ["x"], "roles.target.stages[0].outputs[0].dtype is 'x'"),
        (f"{STAGE}.outputs.0.shape", [[], ["R", "x"]], "roles.target.stages[0].outputs[0]."),
        (f"{STAGE}.outputs.1.name", ["x"], "roles.target.stages[0].outputs is ('logits', 'x')"),
        ("skip_sets", [[{"skipped": each}] for each in ([], [-1], [99])], "skip_sets[0].skipped"),
        ("skip_sets", [[{"skipped": [1], "score": s}] for s in SCORES], "skip_sets[0].score is "),
    ],
)
def test_values_that_nothing_can_be_computed_with_are_refused(folder, place, values, part):
    *path, last = (int(name) if name.isdecimal() else name for name in place.split("."))
    whole = (folder / MANIFEST).read_text()
    for value in values:
        record = manifest = json.loads(whole)
        for name in path:
            record = record[name]
        record[last] = value
        (folder / MANIFEST).write_text(json.dumps(manifest))
        refused(folder, f"manifest.{part}", "which cannot be: export the checkpoint again")


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
    data = (folder / "target.data").read_bytes()
    for size in (0, len(data) - 1, len(data) + 1):
        (folder / "target.data").write_bytes((data + b"\0")[:size])
        refused(folder, "target.data", f"{size} bytes, the manifest says {len(data)}")


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
    os.utime(folder / "target.data", (1, 1))
    hashed.clear()
    bundles.load(folder)
    assert set(hashed) == everything


def test_a_copy_is_hashed_for_itself(folder, hashed, tmp_path):
    bundles.load(folder)
    shutil.copytree(folder, tmp_path / "copy")
    damage(tmp_path / "copy" / "target.data")
    refused(tmp_path / "copy", "SHA-256")


def test_verify_finds_what_a_remembered_load_does_not(folder):
    bundles.load(folder)
    damage(folder / "draft.data")
    bundle = bundles.load(folder)
    with pytest.raises(BundleError, match=r"draft\.data: SHA-256"):
        bundle.verify()


# Names that leave the folder


@pytest.mark.parametrize(
    "name",
    [
        "../target.data",
        "sub/../../target.data",
        "..",
        "C:target.data",
        "..\\target.data",
        "a\0b",
        "\ud800",
    ],
)
def test_names_that_leave_the_bundle_are_refused(folder, name):
    shutil.copy(folder / "target.data", folder.parent / "target.data")
    rename_entry(folder, name)
    refused(folder, "leaves the bundle", repr(name))


def test_absolute_names_are_refused(folder):
    name = str(shutil.copy(folder / "target.data", folder.parent / "target.data"))
    rename_entry(folder, name)
    refused(folder, "leaves the bundle", repr(name))


def rename_entry(folder, name):
    files = manifest_of(folder)["files"]
    files[name] = files.pop("target.data")
    edit_json(folder / MANIFEST, files=files)


def test_links_that_leave_the_bundle_are_refused(folder):
    outside = folder.parent / "outside"
    (folder / "target.data").rename(outside)
    linked(folder / "target.data", outside)
    refused(folder, "leaves the bundle", "'target.data'")


def test_a_linked_folder_is_the_folder(folder):
    link = linked(folder.parent / "link", folder)
    assert bundles.load(link).digest == bundles.load(folder).digest


@pytest.mark.parametrize("place", ["tokenizer", "graph", "data"])
def test_files_in_use_must_be_listed_and_so_checked(folder, place):
    manifest = manifest_of(folder)
    if place == "tokenizer":
        manifest["tokenizer"].append("../tokenizer.json")
    else:
        manifest["roles"]["target"]["stages"][0][place] = "../tokenizer.json"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    refused(folder, "'../tokenizer.json' is used but not listed")
