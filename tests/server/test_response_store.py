"""Conversations that go on from a response."""

from __future__ import annotations

import pytest

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
