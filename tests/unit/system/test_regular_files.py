"""Files that never end are refused where files are read: pipes, devices, and endless zeros."""

from __future__ import annotations

import os
import shutil

import pytest

from edgespec import bundle as bundles
from edgespec.errors import EdgespecError
from edgespec.models.embedded import BUNDLE
from edgespec.models.fields import ConfigFields, read_checkpoint_text
from edgespec.models.formats.gguf.header import read_header
from edgespec.runtime.text.tokenizer_files import existing
from edgespec.system.files import open_regular, read_file, read_utf8

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def endless(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)  # which takes no place on the disk


KINDS = {pipe: "pipe or device", device: "pipe or device", endless: "more than"}
ALL = pytest.mark.parametrize("make", KINDS, ids=lambda each: each.__name__)


@ALL
@pytest.mark.parametrize("read", [read_file, read_utf8])
def test_what_never_ends_is_not_read(tmp_path, make, read):
    make(tmp_path / "a")
    with pytest.raises(OSError, match=KINDS[make]):
        read(tmp_path / "a")


@ALL
@pytest.mark.parametrize("read", [read_checkpoint_text, ConfigFields.read, existing, read_header])
def test_files_of_models(tmp_path, make, read):
    make(tmp_path / "a")
    with pytest.raises(EdgespecError) as caught:
        read(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)
    assert "\n" not in str(caught.value)


@ALL
def test_manifests(tmp_path, make):
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    (tmp_path / "bundle" / "manifest.json").unlink()
    make(tmp_path / "bundle" / "manifest.json")
    with pytest.raises(EdgespecError, match=r"manifest\.json"):
        bundles.load(tmp_path / "bundle")


@ALL
def test_prompts_and_configs(tmp_path, cli, make):
    make(tmp_path / "a")
    # A prompt may come from a pipe, which ends when who was asked to write it does.
    for option in ("--config", "--json-schema", *([] if make is pipe else ["-f"])):
        result = cli("run", option, tmp_path / "a")
        assert result.code == 2
        assert len(result.err.strip().splitlines()) == 1


def test_what_is_a_file_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 10)
    (tmp_path / "link").symlink_to("a")
    assert read_file(tmp_path / "link", 10) == b"x" * 10
    with pytest.raises(OSError, match="more than"):
        read_file(tmp_path / "a", 9)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "b")
