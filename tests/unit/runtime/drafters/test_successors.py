"""Tests of the successor table against a dictionary, and of damage to its file."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from links import linked

from edgespec.errors import InputError
from edgespec.runtime.drafters.memory_files import VERSION
from edgespec.runtime.drafters.recycling import WIDTH, Successors

VOCABULARY = 12
BUNDLE = "0123456789abcdef"

tokens = st.integers(0, VOCABULARY - 1)
learned_rows = st.tuples(
    st.integers(-1, VOCABULARY - 1), tokens, st.lists(tokens, min_size=WIDTH, max_size=WIDTH)
)
lessons = st.lists(st.lists(learned_rows, max_size=5), max_size=12)


def teach(table, lesson):
    previous, last, top = zip(*lesson, strict=True) if lesson else ((), (), np.empty((0, WIDTH)))
    table.learn(previous, last, np.array(top, dtype=np.int64).reshape(-1, WIDTH))


def taught(taken, capacity=100, vocab_size=VOCABULARY):
    table = Successors(vocab_size, capacity)
    for lesson in taken:
        teach(table, lesson)
    return table


def expected_content(taken, capacity):
    """Content of a dictionary that drops its first key when it is full, oldest first."""
    content = {}
    for previous, token, successors in (row for lesson in taken for row in lesson):
        for key in ((previous, token), (token,)):
            if key not in content and len(content) == capacity:
                del content[next(iter(content))]
            content[key] = successors
    return content


def check_content(table, content):
    assert len(table) == len(content)
    for token in range(VOCABULARY):
        for previous in range(-1, VOCABULARY):
            found, matched = table.after(previous, token)
            if (previous, token) in content:
                assert (found, matched) == (content[previous, token], 2)
            elif (token,) in content:
                assert (found, matched) == (content[token,], 1)
            else:
                assert (list(found), matched) == ([], 0)


# The table


@given(lessons, st.integers(2, 30))
def test_it_holds_what_a_dictionary_would(taken, capacity):
    check_content(taught(taken, capacity), expected_content(taken, capacity))


@given(lessons, st.integers(1, 7))
def test_the_division_into_lessons_does_not_matter(taken, size):
    rows = [row for lesson in taken for row in lesson]
    again = [rows[start : start + size] for start in range(0, len(rows), size)]
    check_content(taught(again, 9), expected_content(taken, 9))


def test_successors_are_plain_integers_and_the_tables_own():
    top = np.arange(8)[None]
    table = Successors(VOCABULARY)
    table.learn([1], [2], top)
    top += 1
    found, _ = table.after(1, 2)
    assert {type(token) for token in found} == {int}
    found.append(9)
    assert table.after(1, 2)[0] == list(range(8))


# Its file


@given(lessons, st.integers(2, 30), st.lists(learned_rows, max_size=20))
@settings(max_examples=40)
def test_a_file_gives_back_the_table_and_its_order(tmp_path_factory, taken, capacity, later):
    path = tmp_path_factory.mktemp("memory") / "memory"
    table = taught(taken, capacity)
    table.save(path, BUNDLE)
    loaded = Successors.load(path, BUNDLE, VOCABULARY, capacity)
    check_content(loaded, expected_content(taken, capacity))
    # What is learned from there on drops the same keys.
    teach(loaded, later)
    check_content(loaded, expected_content([*taken, later], capacity))


def test_a_smaller_table_takes_the_latest_keys(tmp_path):
    taken = [[(token, token + 1, list(range(8)))] for token in range(6)]
    taught(taken).save(tmp_path / "memory", BUNDLE)
    loaded = Successors.load(tmp_path / "memory", BUNDLE, VOCABULARY, 5)
    content = expected_content(taken, 100)
    check_content(loaded, dict(list(content.items())[-5:]))


def stored(entries, version=VERSION, bundle=BUNDLE):
    """Bytes of a file, from its description."""
    content = f"edgespec-draft-memory {version} {bundle}\n".encode()
    content += np.array(entries, dtype="<i4").tobytes()
    return content + hashlib.sha256(content).digest()


SMALL = [[(1, 2, range(8)), (-1, 4, range(4, 12))]]
ENTRIES = [
    [1, 2, *range(8)], [-2, 2, *range(8)], [-1, 4, *range(4, 12)], [-2, 4, *range(4, 12)],
]  # fmt: skip


@pytest.fixture
def memory(tmp_path):
    path = tmp_path / "draft.memory"
    taught(SMALL).save(path, BUNDLE)
    return path


def refused(path, *, bundle=BUNDLE, vocab_size=VOCABULARY):
    """The message with which a file is refused."""
    with pytest.raises(InputError) as caught:
        Successors.load(path, bundle, vocab_size)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "name a" in message
    return message


def test_the_file_is_as_described(memory):
    assert memory.read_bytes() == stored(ENTRIES)
    assert [file.name for file in memory.parent.iterdir()] == [memory.name]


def test_a_file_cut_short_anywhere_is_refused(memory):
    whole = memory.read_bytes()
    for size in range(len(whole)):
        memory.write_bytes(whole[:size])
        refused(memory)
    memory.write_bytes(whole + b"\0")
    assert "damaged" in refused(memory)


@pytest.mark.parametrize("change", [0x01, 0x20, 0x80, 0xFF])
def test_a_file_with_any_byte_changed_is_refused(memory, change):
    whole = memory.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= change
        memory.write_bytes(damaged)
        refused(memory)


def test_nobody_is_told_to_delete_a_file_that_is_no_draft_memory(memory):
    for content in (b"", b"edgespec-draft 1 abc\n", b"my thesis\n", bytes(5000)):
        memory.write_bytes(content)
        assert refused(memory) == f"{memory} is not a draft memory: name another file"


def test_a_file_of_another_version_is_refused(memory):
    memory.write_bytes(stored(ENTRIES, version=VERSION + 1))
    assert f"version '{VERSION + 1}', this edgespec reads {VERSION}" in refused(memory)


def test_a_file_of_another_bundle_is_refused(memory):
    message = refused(memory, bundle="fedcba")
    assert f"'{BUNDLE}', this is fedcba" in message


@pytest.mark.parametrize("column", range(2 + WIDTH))
@pytest.mark.parametrize("token", [-3, VOCABULARY, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_refused(memory, column, token):
    entries = [list(entry) for entry in ENTRIES]
    entries[2][column] = token
    memory.write_bytes(stored(entries))
    message = refused(memory)
    assert str(token) in message
    assert f"vocabulary has {VOCABULARY}" in message


def test_only_the_token_before_may_be_absent(memory):
    for column in range(1, 2 + WIDTH):
        entries = [list(entry) for entry in ENTRIES]
        entries[0][column] = -1
        memory.write_bytes(stored(entries))
        assert "-1" in refused(memory)


def test_a_larger_vocabulary_takes_the_same_file(memory):
    assert Successors.load(memory, BUNDLE, 1000).after(1, 2) == (list(range(8)), 2)
    refused(memory, vocab_size=VOCABULARY - 1)


def test_a_key_that_comes_twice_is_refused(memory):
    memory.write_bytes(stored([*ENTRIES, ENTRIES[0]]))
    assert "twice" in refused(memory)


def test_half_an_entry_is_refused(memory):
    memory.write_bytes(stored(np.ravel(ENTRIES)[:-3]))
    assert "inside an entry" in refused(memory)


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_nothing_is_unpickled(memory):
    marker = memory.with_name("run")
    pickled = pickle.dumps(Malicious(marker))
    npz = io.BytesIO()
    np.savez(npz, entries=np.array([Malicious(marker)], dtype=object))
    head = stored([]).partition(b"\n")[0] + b"\n"
    inside = head + pickled.ljust(40 * 8, b".")
    for content in (pickled, npz.getvalue(), inside + hashlib.sha256(inside).digest()):
        memory.write_bytes(content)
        refused(memory)
    assert not marker.exists()
    pickle.loads(pickled)
    assert marker.exists()  # it would have run


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert "No such file" in refused(tmp_path / "absent")
    assert "irectory" in refused(tmp_path)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    for path in (tmp_path / "absent" / "memory", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(InputError, match="cannot be written") as caught:
            taught(SMALL).save(path, BUNDLE)
        assert str(caught.value).startswith(str(path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_save_leaves_the_old_file(memory, monkeypatch, failure):
    def fail(_):
        raise failure

    old = memory.read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    kind = failure if isinstance(failure, type) else InputError
    with pytest.raises(kind):
        taught([*SMALL, [(3, 3, range(8))]]).save(memory, BUNDLE)
    assert memory.read_bytes() == old
    assert [file.name for file in memory.parent.iterdir()] == [memory.name]


def test_a_save_is_flushed_to_the_disk_as_windows_wants_it(memory, monkeypatch):
    flushed = []

    def flush(number):
        flushed.append(os.write(number, b""))  # EBADF if it is open for reading alone, as there

    monkeypatch.setattr(os, "fsync", flush)
    taught(SMALL).save(memory, BUNDLE)
    assert flushed == [0]


def test_a_save_through_a_link_replaces_what_it_points_to(memory):
    link = linked(memory.with_name("link"), memory)
    taught([[(3, 3, range(8))]]).save(link, BUNDLE)
    assert link.is_symlink()
    assert len(Successors.load(memory, BUNDLE, VOCABULARY)) == 2


def test_a_save_replaces_the_file(memory):
    old = memory.with_name("old")
    old.hardlink_to(memory)
    taught([[(3, 3, range(8))]]).save(memory, BUNDLE)
    loaded = Successors.load(memory, BUNDLE, VOCABULARY)
    assert (len(loaded), loaded.after(1, 2)) == (2, ((), 0))
    assert old.read_bytes() == stored(ENTRIES)  # not written over
