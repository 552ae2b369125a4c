"""Conversations that go on from a response."""

from __future__ import annotations

import argparse
import stat
import sys

import pytest

from edgespec.cli.commands import serve
from edgespec.errors import InputError
from edgespec.serve.protocols.responses import store as stores
from edgespec.serve.protocols.responses.items import as_items
from edgespec.serve.protocols.responses.store import ResponseStore
from edgespec.serve.refusals import RequestError


def texts(items):
    return [item.content for item in items]


def test_a_conversation_has_all_turns_in_order():
    store = ResponseStore()
    store.put("a", None, as_items("one"))
    store.put("b", "a", as_items("two"))
    store.put("c", "a", as_items("three"))  # another way on
    assert texts(store.conversation("b")) == ["one", "two"]
    assert texts(store.conversation("c")) == ["one", "three"]


def test_what_was_not_used_for_longest_goes_first():
    store = ResponseStore(most=400)
    store.put("a", None, as_items("x" * 100))
    store.put("b", None, as_items("y" * 100))
    store.conversation("a")
    store.put("c", None, as_items("z" * 100))
    assert texts(store.conversation("a")) == ["x" * 100]
    with pytest.raises(RequestError, match="send the whole conversation"):
        store.conversation("b")


def test_what_is_larger_than_all_room_is_not_kept():
    store = ResponseStore(most=10)
    store.put("a", None, as_items("x" * 100))
    with pytest.raises(RequestError):
        store.conversation("a")


A, B, C = (f"resp_{letter * 32}" for letter in "abc")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "responses"


def opened(folder, **options):
    store = ResponseStore(**options)
    store.keep_in(folder)
    return store


def test_conversations_go_on_in_another_process(folder):
    store = opened(folder)
    store.put(A, None, as_items("one"))
    store.put(B, A, as_items("two\nlines"))
    assert texts(opened(folder).conversation(B)) == ["one", "two\nlines"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such modes")
def test_files_are_for_their_owner_alone(folder):
    opened(folder).put(A, None, as_items("one"))
    [file] = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_of_what_was_not_used_for_longest_go_first(folder):
    store = opened(folder, most=400)
    store.put(A, None, as_items("x" * 100))
    store.put(B, None, as_items("y" * 100))
    store.conversation(A)
    store.put(C, None, as_items("z" * 100))
    names = sorted(each.name for each in folder.iterdir())
    assert names == [f"{A}.response.json", f"{C}.response.json"]
    opened(folder, most=250)
    assert [each.name for each in folder.iterdir()] == [f"{C}.response.json"]


@pytest.mark.parametrize("content", [b"", b"null", b'null\n{"a": ', b'"../a"\n[]', b"[" * 100_000])
def test_damaged_files_are_passed_over(folder, caplog, content):
    opened(folder).put(A, None, as_items("one"))
    (folder / f"{B}.response.json").write_bytes(content)
    (folder / "other.response.json").write_bytes(b"null\n[]")
    (folder / "notes.txt").write_text("mine")
    store = opened(folder)
    assert texts(store.conversation(A)) == ["one"]
    with pytest.raises(RequestError):
        store.conversation(B)
    assert caplog.text.count("is passed over") == 2
    assert (folder / "notes.txt").exists()


def test_files_that_name_each_other_end(folder):
    opened(folder)
    for own, before in ((A, B), (B, A)):
        (folder / f"{own}.response.json").write_text(f'"{before}"\n[]')
    with pytest.raises(RequestError):
        opened(folder).conversation(A)


def test_a_folder_that_cannot_be_used_is_named(folder):
    folder.parent.mkdir()
    folder.write_text("a file")
    with pytest.raises(InputError, match="responses cannot be kept in"):
        opened(folder)


def test_where_nothing_can_be_written_responses_are_in_memory(folder, caplog):
    store = opened(folder)
    folder.rmdir()
    store.put(A, None, as_items("one"))
    assert texts(store.conversation(A)) == ["one"]
    assert "a response cannot be kept" in caplog.text


def test_a_server_keeps_responses_where_it_keeps_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "RESPONSES", ResponseStore())
    serve._keep_responses(argparse.Namespace(prompt_cache=None))
    stores.RESPONSES.put(A, None, as_items("one"))
    serve._keep_responses(argparse.Namespace(prompt_cache=str(tmp_path)))
    stores.RESPONSES.put(B, None, as_items("two"))
    assert [each.name for each in (tmp_path / "responses").iterdir()] == [f"{B}.response.json"]
