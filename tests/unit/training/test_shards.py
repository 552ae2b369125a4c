"""Features on disk, within a limit."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from edgespec.errors import InputError
from edgespec.training.shards import Shards, TrainingWindow

FEATURES, TOP = 8, 4


def window(length, seed):
    random = np.random.default_rng(seed)
    logits = -np.sort(random.random((length, TOP)).astype(np.float32), axis=1)
    return TrainingWindow(
        np.arange(length, dtype=np.int32),
        random.normal(size=(length, FEATURES)).astype(np.float16),
        random.integers(100, size=(length, TOP), dtype=np.int32),
        logits.astype(np.float16),
    )


def test_windows_and_texts_come_back(tmp_path):
    shards = Shards(tmp_path / "shards", 1 << 20)
    windows = [window(5, 0), window(9, 1)]
    assert shards.get(3) is None
    assert shards.texts(3) == ([], 0)
    shards.put(3, windows)
    shards.put_texts(3, [[1, 2, 3], [4, 5]], 1)
    for again in (shards, Shards(tmp_path / "shards", 1 << 20)):
        assert again.texts(3) == ([[1, 2, 3], [4, 5]], 1)
        found = again.get(3)
        assert [len(each.tokens) for each in found] == [5, 9]
        for one, other in zip(windows, found, strict=True):
            for name in ("tokens", "features", "top_ids", "top_logits"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_shard_beyond_the_limit_is_not_kept(tmp_path):
    shards = Shards(tmp_path / "shards", 100)
    shards.put(1, [window(100, 1)])
    shards.put_texts(1, [[1, 2]], 0)
    assert shards.get(1) is None
    assert shards.texts(1) == ([[1, 2]], 0)


def test_a_shard_takes_the_place_of_the_last_one_until_it_is_deleted(tmp_path):
    shards = Shards(tmp_path / "shards", 1 << 20)
    shards.put(1, [window(4, 1)])
    shards.put_texts(1, [[1, 2]], 1)
    shards.put(1, [window(4, 1), window(6, 2)])
    assert [len(each.tokens) for each in shards.get(1)] == [4, 6]
    shards.delete(1)
    for again in (shards, Shards(tmp_path / "shards", 1 << 20)):
        assert again.get(1) is None
        assert again.texts(1) == ([], 0)
    assert list((tmp_path / "shards").iterdir()) == []


def test_the_least_recently_used_gives_room(tmp_path):
    one = 100 * (4 + 2 * FEATURES + 6 * TOP)
    shards = Shards(tmp_path / "shards", 2 * one + 2000)
    shards.put(1, [window(100, 1)])
    shards.put(2, [window(100, 2)])
    assert shards.get(1) is not None
    shards.put(3, [window(100, 3)])
    assert shards.get(2) is None
    assert shards.get(1) is not None
    assert shards.get(3) is not None
    stored = sum(f.stat().st_size for f in (tmp_path / "shards").rglob("*.npy"))
    assert stored <= 2 * one + 3000


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path, monkeypatch):
    shards = Shards(tmp_path / "shards", 1 << 20)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(InputError, match="disk is full: free some space"):
        shards.put(1, [window(4, 1)])
    assert shards.get(1) is None
    assert list((tmp_path / "shards").iterdir()) == []
