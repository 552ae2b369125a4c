"""The benchmark of editing a file, with a small random model that edits nothing."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
editing = importlib.import_module("editing")

RENAME = editing._EDITS[0]


def test_the_same_texts_are_made_with_all_settings(served_bundle, monkeypatch, capsys):
    monkeypatch.setattr(editing, "_WARM_UP", 4)
    words = ["editing.py", str(served_bundle), "--lines", "2", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--edits", "rename"])
    assert editing.exit_code(editing.main) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["benchmark"] == "editing"
    assert found["equal"] == "yes"
    assert found["ratios"]["plain"] == 1.0
    assert [row["setting"] for row in found["settings"]] == ["plain", "auto", "prediction"]
    plain, auto, prediction = found["settings"]
    assert plain["tokens a round"] == 1.0
    assert plain["tokens"] == auto["tokens"] == prediction["tokens"] > 64
    assert plain["predicted tokens"] is auto["predicted tokens"] is None
    assert prediction["predicted tokens"] is not None


@pytest.mark.parametrize("edit", editing._EDITS, ids=lambda edit: edit.name)
def test_the_file_has_what_is_to_be_edited(edit):
    source = editing._FILE.read_text(encoding="utf-8")
    assert 250 < source.count("\n") < 350
    assert edit.applied(source) != source


@pytest.mark.parametrize("fence", ["{}", "```python\n{}```", "Sure:\n\n```\n{}```\nDone."])
def test_an_answer_is_compared_with_the_file_as_asked(fence):
    source = "def _rate(x):\n    return x\n\n\nprint(_rate(1))\n"
    edited = RENAME.applied(source)
    assert "_rate" not in edited
    for text, likeness in ((edited, 1.0), (source, 0.6)):
        result = type("Result", (), {"text": fence.format(text)})()
        answers = [editing.Answer("rename", result, ())]
        assert editing._likeness(RENAME, source, answers) == likeness
