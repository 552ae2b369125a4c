"""The files of prompts that a benchmark reads."""

from __future__ import annotations

import json

import pytest

from edgespec.errors import InputError
from edgespec.measuring.prompts import PYTHON, read_prompts


def written(path, *records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_published_formats_are_read(tmp_path):
    code = written(
        tmp_path / "code.jsonl",
        {"task_id": "Made/0", "prompt": "def a():\n", "canonical_solution": "    pass\n"},
        {"task_id": "Made/1", "prompt": "def b():\n", "entry_point": "b"},
    )
    chat = written(
        tmp_path / "chat.JSONL",
        {"question_id": 1, "category": "writing", "turns": ["First?", "And then?"]},
        "",
        {"question_id": 2, "category": "math", "turns": ["Only?"], "reference": []},
    )
    assert read_prompts([code]) == ["def a():\n", "def b():\n"]
    assert read_prompts([chat]) == ["First?", "Only?"]
    assert read_prompts([chat, code]) == ["First?", "Only?", "def a():\n", "def b():\n"]
    assert read_prompts([chat, code], 3) == ["First?", "Only?", "def a():\n"]
    assert read_prompts([chat, code], 2) == ["First?", "def a():\n"]


def test_other_files_and_none(tmp_path):
    story = tmp_path / "story.txt"
    story.write_text("Once upon\n\na time,", encoding="utf-8")
    assert read_prompts([story]) == ["Once upon\n\na time,"]
    lines = tmp_path / "prompts.jsonl"  # which end where JSON lines do
    lines.write_bytes('\ufeff{"prompt": "one\u2028two\x85"}\r\n{"prompt": "three"}'.encode())
    assert read_prompts([lines]) == ["one\u2028two\x85", "three"]
    assert read_prompts([]) == list(PYTHON)
    assert read_prompts([], 2) == list(PYTHON[:2])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "cut', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('["a prompt"]', "is not a JSON object"),
        ('{"text": "a"}', "has neither prompt nor turns"),
        ('{"prompt": 3}', "has 3 for prompt, not a text"),
        ('{"prompt": ""}', 'has "" for prompt, not a text'),
        ('{"turns": []}', "has null for turns[0], not a text"),
        ('{"turns": "a"}', "has null for turns[0], not a text"),
        ('{"turns": [["a"]]}', 'has ["a"] for turns[0], not a text'),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, reason):
    path = written(tmp_path / "prompts.jsonl", {"prompt": "good"}, "", line, {"prompt": "good"})
    with pytest.raises(InputError) as error:
        read_prompts([path])
    expected = f"{path}: line 3 {reason}: give JSON objects with prompt or turns"
    assert str(error.value) == expected


def test_every_malformed_line_is_named_up_to_some(tmp_path):
    path = written(tmp_path / "a.jsonl", "x", {"prompt": "good"}, "y", *["z"] * 4)
    with pytest.raises(InputError) as error:
        read_prompts([path])
    for number in (1, 3, 4, 5, 6):
        assert f"line {number} is not JSON;" in str(error.value)
    assert "; and 1 more lines: give" in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff{}", "byte 0 is not UTF-8"),
        (b" \n\n", "is empty"),
        (None, "cannot be read"),
    ],
)
def test_files_without_prompts_are_refused(tmp_path, content, reason):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_prompts([path])
