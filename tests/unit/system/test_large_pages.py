"""Files in large pages, where the system has them, and left alone where it has not."""

from __future__ import annotations

import os

import pytest

from edgespec.system import machine

MEGABYTE = 1 << 20


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    with path.open("wb") as opened:
        opened.write(os.urandom(9 * MEGABYTE))
        os.fsync(opened.fileno())  # a page that is not on the disk yet cannot be read anew
    return path


def test_a_file_keeps_its_content(file):
    before = file.read_bytes()
    machine.prefer_large_pages(file, least=MEGABYTE)
    assert file.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system knows no such advice")
def test_small_pages_are_read_anew_once(file, monkeypatch):
    shares = iter([0.1, 1.0, 1.0])
    monkeypatch.setattr(machine, "_large_share", lambda _, __: next(shares))
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: dropped.append(given[1:3]))
    machine.prefer_large_pages(file, least=MEGABYTE)
    assert dropped == [(0, 4 * MEGABYTE), (0, 9 * MEGABYTE)]


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system knows no such advice")
@pytest.mark.parametrize(("shares", "drops"), [([0.9], 0), ([0.0, 0.0], 1)])
def test_a_file_is_left_that_is_in_large_pages_or_cannot_be(file, monkeypatch, shares, drops):
    found = iter(shares)
    monkeypatch.setattr(machine, "_large_share", lambda _, __: next(found))
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: dropped.append(given))
    machine.prefer_large_pages(file, least=MEGABYTE)
    assert len(dropped) == drops


def test_small_files_and_missing_ones_are_left(file, monkeypatch):
    monkeypatch.setattr(machine, "_large_share", lambda _, __: pytest.fail("it was read"))
    machine.prefer_large_pages(file)
    machine.prefer_large_pages(file.with_name("missing"))


def test_large_pages_of_a_mapping_are_counted(monkeypatch, tmp_path):
    listing = tmp_path / "smaps"
    listing.write_text(
        "7f00-7f80 r--p 00000000 fe:00 1 /other\nFilePmdMapped:    8192 kB\n"
        "7f80-7fa0 r--p 00000000 fe:00 2 /weights\nRss:  9216 kB\nFilePmdMapped:    4096 kB\n"
        "7fa0-7fb0 r--p 00000000 fe:00 3 /other\nFilePmdMapped:    2048 kB\n"
    )
    monkeypatch.setattr(machine, "_SMAPS", listing)
    assert machine._large_bytes(0x7F80) == 4 * MEGABYTE
    assert machine._large_bytes(0x7FF0) == 0
