"""Files in messages of a chat: what `@name` becomes, and when it is refused."""

from __future__ import annotations

import os
import sys

import pytest

from edgespec.cli.chat_files import Mentions, complete
from edgespec.errors import InputError

LIMIT = 50


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name, text in (
        ("a.py", "x = 1\n"),
        ("b.md", "```sh\nls\n```"),
        ("two words", "2\n"),
        ("Makefile", "all:\n"),
        ("sub/deep.py", "y\n"),
        (".hidden", "h\n"),
        ("windows.txt", "one\r\ntwo\r\n"),
    ):
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


def expand(said):
    return Mentions(lambda text: len(text.split()), LIMIT).expand(said)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("@a.py", "x = 1\n"),
        (" @a.py ", "x = 1\n"),
        ('@"two words"', "2\n"),
        ("@windows.txt", "one\ntwo\n"),
        ("what is @a.py?", "what is a.py?\n\na.py:\n```py\nx = 1\n```"),
        ("(@a.py), @Makefile", "(a.py), Makefile\n\na.py:\n```py\nx = 1\n```\n\n"
         "Makefile:\n```\nall:\n```"),
        ("@a.py or @a.py", "a.py or a.py\n\na.py:\n```py\nx = 1\n```"),
        ("see\n@sub/deep.py", "see\nsub/deep.py\n\nsub/deep.py:\n```py\ny\n```"),
        ("read @b.md", "read b.md\n\nb.md:\n````md\n```sh\nls\n```\n````"),
        ('see @"two words".', "see two words.\n\ntwo words:\n```\n2\n```"),
    ],
)  # fmt: skip
def test_the_text_of_a_file_is_put_in(said, text):
    found, notes = expand(said)
    assert found == text
    assert all("is part of the message" in note for note in notes)
    assert notes


@pytest.mark.parametrize(
    "said", ["no file", "me@a.py", "@", "a @ b", "x@", r"\@a.py", r"what is \@nothing.py?"]
)
def test_what_mentions_no_file_is_left_as_it_is(said):
    assert expand(said) == (said.replace("\\@", "@"), [])


@pytest.mark.parametrize("said", ["@dataclass", "ask @alice.", "@app.get('/')\ndef f(): ..."])
def test_what_may_be_no_name_is_sent_as_it_is_and_told(said):
    text, (note,) = expand(said)
    assert text == said
    assert note.startswith("there is no file ")


def test_many_decorators_are_told_in_a_line():
    said = "\n".join(f"@decorator{number}" for number in range(40))
    text, (note,) = expand(said)
    assert text == said
    assert len(note) < 130


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("see @b.py", "there is no file b.py: correct the name, or write \\@"),
        ('@"no such"', "there is no file no such"),
        ("@sub/other", "there is no file sub/other"),
        ("@~nobody-of-that-name/x", "there is no file ~nobody"),
        ("@sub", "sub is a folder"),
        ("@sub/", "sub/ is a folder"),
        ("@empty", "empty is empty"),
        ("@binary", "binary is not text"),
        ("@latin", "latin: byte 1 is not UTF-8"),
        ("@long", "long has 60 tokens, too many for a context of 50"),
        ("@large", "large has 4000 bytes, too many for a context of 50 tokens"),
    ],
)
def test_a_file_that_cannot_be_part_of_a_message_is_refused(folder, said, reason):
    for name, content in (
        ("empty", b"\n"),
        ("binary", b"a\0b"),
        ("latin", b"a\xe9"),
        ("long", b"x " * 60),
        ("large", b"x" * 4000),
    ):
        (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        expand(said)
    assert str(caught.value).startswith(reason)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes with names are POSIX's")
def test_a_pipe_is_no_file(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        expand("@pipe")


def test_the_home_folder_is_written_as_in_shells(folder, monkeypatch):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(folder / "sub"))
    assert expand("@~/deep.py")[0] == "y\n"
    assert complete("@~/d") == ["@~/deep.py"]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("@", ["@Makefile", "@a.py", "@b.md", "@sub/", '@"two words"', "@windows.txt"]),
        ("@a", ["@a.py"]),
        ("@s", ["@sub/"]),
        ("@sub/", ["@sub/deep.py"]),
        ("@./sub/d", ["@./sub/deep.py"]),
        ("@t", ['@"two words"']),
        ('@"tw', ['@"two words"']),
        ("@.h", ["@.hidden"]),
        ("@nothing", []),
        ("@nowhere/x", []),
    ],
)
def test_names_are_completed(word, names):
    assert complete(word) == names
