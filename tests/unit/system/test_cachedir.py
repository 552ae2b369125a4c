"""The user's cache folder: where it is, and what is done without it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec import bundle as bundles
from edgespec.models.embedded import BUNDLE
from edgespec.system import cachedir
from edgespec.system.cachedir import cache_folder


@pytest.fixture
def hashed(monkeypatch, own_cache):
    """The files that loads hash, with an empty cache to begin with."""
    names = []
    sha256 = bundles.sha256

    def seen(path):
        names.append(path.name)
        return sha256(path)

    monkeypatch.setattr(bundles, "sha256", seen)
    return names


def test_without_a_cache_every_load_hashes(hashed, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file"))
    bundles.load(BUNDLE)
    once = len(hashed)
    bundles.load(BUNDLE)
    assert len(hashed) == 2 * once > 0
    [warning] = caplog.messages
    assert warning.startswith(f"cannot write to the cache folder {tmp_path / 'file'} (")
    assert "set EDGESPEC_CACHE" in warning


def test_a_cache_that_is_full_is_said_once(hashed, monkeypatch, tmp_path, caplog):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "touch", full)
    bundles.load(BUNDLE)
    bundles.load(BUNDLE)
    [warning] = caplog.messages
    assert f"{tmp_path / 'cache'} (No space left on device)" in warning


def test_what_a_write_protected_cache_holds_is_used(hashed, monkeypatch, caplog):
    """As one that comes with a container's image, for another user."""
    bundles.load(BUNDLE)
    hashed.clear()
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    bundles.load(BUNDLE)
    assert hashed == caplog.messages == []


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="where a cache is elsewhere")
def test_the_cache_is_the_users_or_there_is_none(monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGESPEC_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unusable in ("", "caches", "."):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)  # as if it were not set
        assert cache_folder("verified") == tmp_path / "home" / ".cache" / "edgespec" / "verified"
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 1 << 30)  # whom the system does not know
    assert cache_folder("verified") is None
    assert "cannot write to the cache folder (Could not determine home directory" in caplog.text
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("verified") == tmp_path / "edgespec" / "verified"


@pytest.mark.parametrize(
    ("system", "place", "local"),
    [
        ("win32", "AppData/Local", "local"),
        ("darwin", "Library/Caches", "Library/Caches"),
    ],
)
def test_other_systems_have_places_of_their_own(monkeypatch, tmp_path, system, place, local):
    monkeypatch.setattr(cachedir, "sys", SimpleNamespace(platform=system))
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("EDGESPEC_CACHE")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    assert cache_folder("verified") == tmp_path / place / "edgespec" / "verified"
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder("verified") == tmp_path / local / "edgespec" / "verified"


@pytest.mark.skipif(sys.platform == "win32", reason="homes by HOME")
def test_the_cache_may_be_named_by_the_home(monkeypatch, tmp_path):
    """No shell has replaced ~ in a container's settings, or a service's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDGESPEC_CACHE", "~/of/mine")
    assert cache_folder("verified") == tmp_path / "home" / "of" / "mine" / "verified"
