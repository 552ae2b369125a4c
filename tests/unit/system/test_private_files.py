"""Files that hold users' texts, or what was learned of them: for their owner alone."""

from __future__ import annotations

import os

import pytest

from edgespec.batch.files import Journal, Start
from edgespec.cli.chat_files import write_conversation
from edgespec.runtime.drafters.recycling import Successors
from edgespec.system.cachedir import cache_folder
from edgespec.system.files import replaced

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")


@pytest.fixture(autouse=True)
def everybody_reads():
    """What users have whose new files everybody may read, and even write."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o777


def journal(path):
    Journal.begin(path, START).close()


def conversation(path):
    write_conversation(path, [{"role": "user", "content": "hi"}])


def draft_memory(path):
    Successors(16).save(path, "fingerprint")


START = Start("hash", "digest", "tiny", context=48, engine="native", created=1)


@pytest.mark.parametrize("write", [journal, conversation, draft_memory])
def test_new_files_are_for_their_owner_and_others_stay_as_they_are(tmp_path, write):
    file = tmp_path / "file.json"
    write(file)
    assert mode(file) == 0o600
    file.chmod(0o640)
    write(file)
    assert mode(file) == 0o640


def test_files_that_hold_none_are_as_others(tmp_path):
    with replaced(tmp_path / "file") as partial:
        partial.touch()
    assert mode(tmp_path / "file") == 0o666


def test_folders_of_texts_are_for_their_owner(own_cache):
    assert mode(cache_folder("chat", private=True)) == 0o700
    assert mode(cache_folder("models")) == 0o777
