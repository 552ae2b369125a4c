"""The input's lines, and the journal, whatever was left of it."""

from __future__ import annotations

import errno
import json
import os

import pytest
from batches import completion, write

from edgespec.batch.answering import seed_of
from edgespec.batch.files import Journal, Start, only_writer, read_requests
from edgespec.errors import InputError

START = Start("input", "bundle", "tiny", 512, "cpu", 1_000_000)


def output(number, status=200):
    return {"id": f"answer-{number}", "response": {"status_code": status, "body": "é\u2028"}}


# The input


def test_lines_end_where_json_lines_do(tmp_path):
    """Not at characters that JSON strings may contain, as `splitlines` has it."""
    path = write(tmp_path / "in", [])
    first = completion("a", "one\u2028two\x85")
    second = completion("b", "three")
    text = json.dumps(first, ensure_ascii=False)
    path.write_bytes(f"\ufeff{text}\r\n\n   \n{json.dumps(second)}".encode())
    lines = read_requests(path).lines
    assert [(line.number, line.custom_id) for line in lines] == [(1, "a"), (4, "b")]
    assert json.loads(lines[0].data) == first


def test_lines_without_a_name_are_lines(tmp_path):
    broken = ["{", "3", "[]", '{"custom_id": 3}', '{"custom_id": ""}', b'{"custom_id": "\xff"}']
    lines = read_requests(write(tmp_path / "in", broken)).lines
    assert [line.custom_id for line in lines] == [None] * len(broken)


def test_names_are_given_once(tmp_path):
    requests = [completion(name, "x") for name in ("a", "b", "a")]
    path = write(tmp_path / "in", ["", *requests])
    with pytest.raises(InputError, match="lines 2 and 4 have the same custom_id 'a'"):
        read_requests(path)


@pytest.mark.parametrize("text", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_input_without_requests_is_refused(tmp_path, text):
    path = tmp_path / "in"
    path.write_bytes(text)
    with pytest.raises(InputError, match="has no requests"):
        read_requests(path)


def test_a_change_anywhere_is_another_input(tmp_path):
    path = write(tmp_path / "in", [completion("a", "x")])
    before = read_requests(path).digest
    write(path, [completion("a", "y")])
    assert read_requests(path).digest != before


def test_seeds_follow_from_names():
    """Of what the documentation says: the first 32 bits of SHA-256."""
    assert seed_of("abc") == 0xBA7816BF
    assert len({seed_of(f"request-{number}") for number in range(1000)}) == 1000


# The journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.partial"


@pytest.fixture
def journal(path):
    journal = Journal.begin(path, START)
    for number, status in ((7, 200), (2, 404), (5, 200)):
        journal.add(number, output(number, status))
    yield journal
    journal.close()


def test_answers_come_in_the_order_of_the_input(journal):
    found = [json.loads(line) for line in journal.outputs()]
    assert found == [output(2, 404), output(5), output(7)]
    assert len(journal) == 3
    assert [number in journal for number in (2, 3)] == [True, False]
    assert journal.failed == 1


def test_a_journal_goes_on_wherever_it_was_cut(journal, path):
    """As by a power cut in the middle of a line."""
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for end in range(head, len(whole) + 1):
        path.write_bytes(whole[:end])
        kept = whole[head:end].count(b"\n")
        again = Journal(path)
        assert (again.start, len(again)) == (START, kept)
        again.add(9, output(9))
        again.close()
        last = Journal(path)
        assert len(last) == kept + 1
        assert json.loads(list(last.outputs())[-1]) == output(9)
        last.close()


def test_what_a_disk_has_lost_is_made_again(journal, path):
    """A file may have its size but not its blocks, from somewhere on."""
    whole = path.read_bytes()
    second = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    path.write_bytes(whole[:second] + bytes(len(whole) - second - 1) + b"\n")
    again = Journal(path)
    assert (len(again), 7 in again) == (1, True)
    assert path.read_bytes() == whole[:second]
    again.close()


def test_each_answer_is_asked_onto_the_disk(journal, path, monkeypatch):
    synced = []
    sync = os.fsync

    def counted(handle):
        sync(handle)
        synced.append(path.read_bytes().count(b"\n"))

    monkeypatch.setattr(os, "fsync", counted)
    journal.add(9, output(9))
    journal.add(10, output(10))
    assert synced == [5, 6]


@pytest.mark.parametrize("text", [b"", b"what a user wrote\n", b"{}\n", b"[" * 100_000 + b"\n"])
def test_a_file_that_is_no_journal_is_left_alone(path, text):
    path.write_bytes(text)
    with pytest.raises(InputError, match="is not an unfinished batch"):
        Journal(path)
    assert path.read_bytes() == text


def test_a_journal_of_a_later_version_is_left_alone(path):
    start = Start("input", "bundle", "tiny", 512, "cpu", 1_000_000, format=2)
    with pytest.raises(InputError, match="has format 2 and not 1"):
        Journal.begin(path, start)


def test_a_full_disk_is_told_with_the_remedy(journal, monkeypatch):
    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left on device.*start again"):
        journal.add(9, output(9))
    assert 9 not in journal


# The lock


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "out"
    with only_writer(path):
        with (
            pytest.raises(InputError, match=r"another process is writing .*out: wait"),
            only_writer(path),
        ):
            pass
        with only_writer(tmp_path / "another"):
            pass
    with only_writer(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "out"
    with pytest.raises(InputError, match="existing, writable folder"), only_writer(path):
        pass
