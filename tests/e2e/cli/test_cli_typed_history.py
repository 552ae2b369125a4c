"""What was typed in earlier chats, as a file."""

from __future__ import annotations

import sys

import pytest

from edgespec.cli.typed import TypedHistory

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX's")


@pytest.fixture
def file(own_cache):
    return own_cache / "chat" / "typed.jsonl"


def fill(*entries):
    history = TypedHistory()
    for entry in entries:
        history.add(entry)


def test_entries_come_back_in_order(file):
    assert TypedHistory().load() == []
    fill("one", "two\nlines", 'a "quoted" \\ word', "naïve ☃")
    fill("later")
    assert TypedHistory().load() == ["one", "two\nlines", 'a "quoted" \\ word', "naïve ☃", "later"]


def test_some_are_not_kept(file):
    fill("", "  ", " a secret", "same", "same", "other", "same")
    assert TypedHistory().load() == ["same", "other", "same"]
    history = TypedHistory()
    history.load()
    history.add("same")
    assert TypedHistory().load() == ["same", "other", "same"]


@POSIX
def test_only_the_user_may_read_them_and_the_last_thousand_are_kept(file):
    fill("one")
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"".join(b'"%d"\n' % number for number in range(2001)))
    kept = [str(number) for number in range(1001, 2001)]
    assert TypedHistory().load() == kept
    assert len(file.read_bytes().splitlines()) == 1000
    assert TypedHistory().load() == kept
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_damaged_is_left_out(file):
    fill("one")
    file.write_bytes(
        b"\xff\n{}\n1\n"
        + b"[" * 100_000
        + b'\n"a\\u0000b"\n"\\ud800"\n\n'
        + file.read_bytes()
        + b'"cut'
    )
    assert TypedHistory().load() == ["one"]


def test_two_chats_at_once_keep_what_both_have(file):
    one = TypedHistory()
    other = TypedHistory()
    for number in range(3):
        one.add(f"one {number}")
        other.add(f"other {number}")
    assert len(TypedHistory().load()) == 6


@POSIX
def test_a_folder_that_cannot_be_written_only_warns(file, caplog):
    file.mkdir(parents=True)
    fill("one", "two")
    assert TypedHistory().load() == []
    assert [record.getMessage()[:15] for record in caplog.records] == ["cannot write to"]
