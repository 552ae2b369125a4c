"""One function makes bundles: of a checkpoint, a bundle or what another program exports."""

from __future__ import annotations

import pytest
from checkpoints import make_checkpoint

import edgespec
from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import BundleError, ExportError
from edgespec.export import ExportOptions, ReadyTarget, partial_bundle

FP32 = ExportOptions("fp32", draft_precision="fp32")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with two checkpoints that have one tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("target", "draft"):
        make_checkpoint(folder / name, "llama")
    return folder


@pytest.fixture
def output(tmp_path):
    return tmp_path / "bundle"


def roles(path):
    return list(bundles.load(path).manifest.roles)


def test_it_is_found_in_the_package():
    assert edgespec.export.make is export.make


@pytest.mark.parametrize(
    ("draft", "expected"),
    [(None, ["target"]), (export.NO_DRAFT, ["target"]), ("draft", ["target", "draft"])],
)
def test_a_checkpoint_gets_its_draft(models, output, draft, expected):
    path = models / draft if draft == "draft" else draft
    report = export.make(str(models / "target"), str(output), path, FP32)
    assert roles(output) == expected
    assert report.source_bytes > 0
    assert report.bundle_bytes == bundles.load(output).size
    assert not report.head


def test_what_was_just_written_is_hashed_once_and_what_was_copied_is_checked(
    models, tmp_path, output, monkeypatch
):
    hashed = []

    def noted(path, **how):
        hashed.append(path.name)
        return sha256(path, **how)

    sha256 = bundles.sha256
    monkeypatch.setattr(bundles, "sha256", noted)
    export.make(str(models / "target"), str(output), export.NO_DRAFT, FP32)
    files = bundles.load(output).manifest.files
    assert sorted(hashed) == sorted(files)
    hashed.clear()
    export.make(str(output), str(tmp_path / "copy"), export.NO_DRAFT)
    bundles.load(tmp_path / "copy")
    assert "target.tiles" in hashed
    tiles = output / "target.tiles"
    content = bytearray(tiles.read_bytes())
    content[0] ^= 1
    tiles.write_bytes(content)
    with pytest.raises(BundleError, match="SHA-256"):
        bundles.load(output)


def test_a_bundle_s_target_is_taken_as_it_is(models, tmp_path, output):
    export.make(models / "target", tmp_path / "pair", models / "draft", FP32)
    report = export.make(tmp_path / "pair", output)
    assert roles(output) == ["target"]
    assert report.source_bytes == 0
    export.make(output, tmp_path / "other", models / "draft", FP32)
    assert roles(tmp_path / "other") == ["target", "draft"]
    pair, other = (bundles.load(tmp_path / name).manifest.roles for name in ("pair", "other"))
    assert pair == other


def test_a_target_that_is_written_elsewhere_gets_its_draft(models, tmp_path, output):
    def write(folder):
        with partial_bundle(models / "target", tmp_path / "own", None, FP32) as made:
            for file in made.folder.iterdir():
                (folder / file.name).write_bytes(file.read_bytes())
            return made.report

    target = ReadyTarget(None, write)
    with partial_bundle(target, output, models / "draft", FP32) as made:
        (made.folder / "note.txt").write_text("added before it is in its place")
        assert not output.exists()
    assert roles(output) == ["target", "draft"]
    assert (output / "note.txt").is_file()


def test_what_fails_before_its_end_leaves_nothing(models, output):
    made = partial_bundle(models / "target", output, None, FP32)
    with pytest.raises(ZeroDivisionError), made:
        raise ZeroDivisionError
    assert not list(output.parent.iterdir())


def test_no_source_may_lie_in_the_output(models):
    content = sorted(models.iterdir())
    for target, draft in (("target", "draft"), ("draft", "target")):
        with pytest.raises(ExportError, match=str(models / "draft")):
            export.make(models / target, models / "draft", models / draft, FP32)
    assert sorted(models.iterdir()) == content
