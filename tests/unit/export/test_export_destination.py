"""Where exports go: nothing of the user's is lost, whatever is there and whatever fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from exports import content, refused
from links import linked

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import BundleError, ExportError
from edgespec.export import ExportOptions
from edgespec.export.destination import replacing
from edgespec.export.graph_builder import DataFile

REPLACE = ExportOptions(overwrite=True)
posix = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


@pytest.fixture(scope="module")
def saved(saved_checkpoint):
    return saved_checkpoint("llama")


# Destinations


def test_places_where_no_bundle_can_be(saved, output):
    refused(ExportError, "missing does not exist", output.parent / "missing" / "bundle", saved)
    (output.parent / "file").write_text("mine")
    refused(ExportError, "is not a folder", output.parent / "file" / "bundle", saved)
    refused(ExportError, "exists and is not a bundle", output.parent / "file", saved, None, REPLACE)
    long = output.parent / ("a" * 250)  # and the hidden folder's name is longer
    refused(ExportError, "could not be written .File name too long.: check the path", long, saved)


def test_an_existing_bundle_stays_unless_overwriting_is_asked_for(saved, output):
    export.make(saved, output, options=ExportOptions(precision="int8"))
    refused(ExportError, "exists: choose another name, or pass --overwrite", output, saved)
    export.make(saved, output, options=REPLACE)
    assert bundles.load(output).target.precision.weights == "int4"
    assert list(output.parent.iterdir()) == [output]


def test_overwriting_never_removes_what_is_not_a_bundle(saved, output):
    output.mkdir()
    (output / "thesis.txt").write_text("mine")
    refused(ExportError, "exists and is not a bundle", output, saved, None, REPLACE)
    for manifest in ('{"name": "a web page"}', '["format", "roles"]'):
        (output / bundles.MANIFEST).write_text(manifest)
        refused(ExportError, "exists and is not a bundle", output, saved, None, REPLACE)


def test_overwriting_never_removes_what_lies_in_a_bundle(saved, output, monkeypatch):
    export.make(saved, output)
    (output / "notes.txt").write_text("mine")
    refused(ExportError, r"contains notes\.txt, which is not part", output, saved, None, REPLACE)
    (output / "notes.txt").unlink()
    source = shutil.copytree(saved, output / "source")
    refused(ExportError, "contains source, which is not part", output, saved, None, REPLACE)
    refused(ExportError, "source lies in .*bundle, which", output, saved, source, REPLACE)
    refused(ExportError, "source lies in .*bundle, which", output, source, None, REPLACE)
    monkeypatch.chdir(output)
    refused(ExportError, "source lies in .*bundle, which", output, Path("source"), None, REPLACE)


def test_what_file_managers_left_in_a_bundle_goes_with_it(saved, output):
    export.make(saved, output)
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (output / name).touch()
    export.make(saved, output, options=REPLACE)
    assert {file.name for file in output.iterdir()} == {
        bundles.MANIFEST,
        *bundles.load(output).manifest.files,
    }


@pytest.mark.parametrize("files", [[], "all", None])
def test_a_manifest_that_lists_no_files_is_not_ours(saved, output, files):
    output.mkdir()
    (output / bundles.MANIFEST).write_text(json.dumps({"format": 2, "roles": {}, "files": files}))
    refused(ExportError, "exists and is not a bundle", output, saved, None, REPLACE)


def test_a_loop_of_links(saved, output):
    other = output.with_name("other")
    linked(output, other)
    linked(other, output)
    with pytest.raises(ExportError, match="bundle is a loop of symbolic links"):
        export.make(saved, output)


def test_a_link_to_a_bundle_stays_and_the_bundle_is_replaced(saved, output):
    place = output.with_name("place")
    export.make(saved, place, options=ExportOptions(precision="int8"))
    linked(output, place)
    refused(ExportError, "place exists: ", output, saved)
    export.make(saved, output, options=REPLACE)
    assert output.is_symlink()
    assert bundles.load(place).target.precision.weights == "int4"
    assert {*output.parent.iterdir()} == {output, place}


def test_what_a_killed_export_left_goes_even_if_its_process_had_our_id(saved, output):
    """As in containers, where ids begin anew. What only looks like it stays."""
    left = output.with_name(f".bundle.partial-{os.getpid()}")
    others = {output.with_name(name) for name in (".bundle.partial-mine", "99999999")}
    for folder in (left, *others):
        folder.mkdir()
        (folder / "target.tiles").touch()
    export.make(saved, output)
    assert {*output.parent.iterdir()} == {output, *others}


@pytest.fixture
def write_protection(monkeypatch):
    """As the system's, which does not stop root: nothing goes from folders of such a mode."""
    unlink = os.unlink

    def protected(name, *, dir_fd=None):
        folder = Path(name).parent if dir_fd is None else dir_fd
        if not os.stat(folder).st_mode & stat.S_IWUSR:  # noqa: PTH116
            raise PermissionError(errno.EACCES, "Permission denied", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", protected)


@posix
@pytest.mark.usefixtures("write_protection")
def test_a_write_protected_bundle_leaves_nothing_behind(saved, output):
    export.make(saved, output)
    output.chmod(0o555)
    export.make(saved, output, options=REPLACE)
    assert list(output.parent.iterdir()) == [output]


@posix
@pytest.mark.usefixtures("write_protection")
def test_an_old_bundle_that_stays_is_warned_of(saved, output, monkeypatch, caplog):
    export.make(saved, output)
    output.chmod(0o555)

    def refuse(self, mode):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    export.make(saved, output, options=REPLACE)
    [left] = set(output.parent.iterdir()) - {output}
    assert f"{left} could not be removed" in caplog.text


def test_an_empty_folder_may_be_overwritten(saved, output):
    output.mkdir()
    refused(ExportError, "exists: ", output, saved)
    export.make(saved, output, options=REPLACE)
    assert bundles.load(output).path == output


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_during_an_export_stays(saved, output, overwrite):
    def progress(_role, _done, _total):
        output.mkdir(exist_ok=True)
        (output / "thesis.txt").write_text("mine")

    with pytest.raises(ExportError, match="exists and is not a bundle"):
        export.make(saved, output, options=ExportOptions(overwrite=overwrite), progress=progress)
    assert content(output.parent) == {"bundle": None, "bundle/thesis.txt": b"mine"}


def export_elsewhere(source, output):
    """Export in another process."""
    run = [sys.executable, "-m", "edgespec", "export", source, "-o", output]
    subprocess.run(run, cwd=output.parent.parent, check=True)


@pytest.mark.slow
def test_of_two_exports_at_once_the_later_one_replaces_nothing_unasked(saved, output):
    def progress(_role, _done, _total):
        if not output.exists():
            export_elsewhere(saved, output)

    with pytest.raises(ExportError, match="exists: choose another name, or pass --overwrite"):
        export.make(saved, output, options=ExportOptions("int8"), progress=progress)
    assert bundles.load(output).target.precision.weights == "int4"


# Faults on the way


@pytest.fixture
def full_disk(monkeypatch):
    written = []
    write = DataFile.write

    def failing(self, array):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(array.nbytes)
        write(self, array)

    monkeypatch.setattr(DataFile, "write", failing)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk(saved, output):
    refused(ExportError, "No space left on device.*free some space", output, saved)


def test_a_full_disk_keeps_the_old_bundle(saved, output, request):
    export.make(saved, output)
    request.getfixturevalue("full_disk")
    refused(ExportError, "No space left on device", output, saved, None, REPLACE)
    bundles.load(output).verify()


def test_an_interrupted_export(saved, output):
    def progress(_role, done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export.make(saved, output, progress=progress)
    assert list(output.parent.iterdir()) == []


def test_the_old_bundle_comes_back_if_the_new_one_cannot_take_its_place(saved, output, monkeypatch):
    export.make(saved, output)
    rename = Path.rename

    def failing(self, target):
        if ".partial-" in self.name:
            raise OSError(errno.EACCES, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    refused(ExportError, "Permission denied", output, saved, None, REPLACE)
    bundles.load(output).verify()


KILLED = """
import os, pathlib, signal, sys
from edgespec import export
from edgespec.export import ExportOptions
from edgespec.export import graph_builder as graph

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

calls = 0
write, rename = graph.DataFile.write, pathlib.Path.rename

def write_or_die(self, array):
    global calls
    calls += 1
    kill() if calls == 9 else write(self, array)

def rename_or_die(self, target):
    kill() if ".partial-" in self.name else rename(self, target)

if sys.argv[1] == "writing":
    graph.DataFile.write = write_or_die
else:
    pathlib.Path.rename = rename_or_die
source, output = map(pathlib.Path, sys.argv[2:])
export.make(source, output, options=ExportOptions(overwrite=True))
"""


def kill_while(doing, source, output):
    run = [sys.executable, "-c", KILLED, doing, source, output]
    died = subprocess.run(run, cwd=output.parent.parent, check=False)
    assert died.returncode == -signal.SIGKILL


@posix
def test_a_killed_export_leaves_nothing_that_loads_and_the_next_one_succeeds(saved, output):
    kill_while("writing", saved, output)
    assert not output.exists()
    (left,) = output.parent.iterdir()
    assert left.name.startswith(".bundle.partial-")
    with pytest.raises(BundleError, match="it has no manifest"):
        bundles.load(left)
    export.make(saved, output)
    bundles.load(output).verify()
    assert list(output.parent.iterdir()) == [output]


@posix
def test_an_export_killed_while_replacing_loses_no_bundle(saved, output):
    export.make(saved, output, options=ExportOptions(precision="int8"))
    kill_while("replacing", saved, output)
    assert not output.exists()
    with pytest.raises(ExportError, match="exists: "):
        export.make(saved, output)
    assert bundles.load(output).target.precision.weights == "int8"
    assert list(output.parent.iterdir()) == [output]


def test_small_files_are_on_the_disk_before_they_have_their_name(output, monkeypatch):
    """Of what a power cut leaves, an empty file would look like one that was never whole."""
    synced = set()
    sync = os.fsync

    def counted(handle):
        assert not output.exists()
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    monkeypatch.setattr(os, "fsync", counted)
    with replacing(output, overwrite=False) as folder:
        (folder / "small").write_text("small")
        (folder / "linked").write_text("of a write-protected bundle")
        (folder / "linked").chmod(0o400)
        with (folder / "weights").open("wb") as file:
            file.truncate(1 << 26)
    found = {each.name for each in output.iterdir() if each.stat().st_ino in synced}
    assert found - {"linked"} == {"small"}
