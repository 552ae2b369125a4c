"""Heads of several kinds by one command: what it trains on, exports and measures."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
from checkout import ROOT

from edgespec.models.embedded import BUNDLE

SETTING = {"mean_accepted_length": 1.5, "speedup_vs_plain": 1.2, "equal_to_plain": "yes"}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module("train_heads")


def test_kinds_share_texts_and_minutes(benchmark, monkeypatch, tmp_path, capsys):
    calls = []

    def edgespec(*words):
        words = list(map(str, words))
        calls.append(words)
        if words[0] == "train-draft":
            head = tmp_path / "heads" / words[words.index("--kind") + 1]
            texts = head / ".training/shards"
            shared = texts.exists()
            texts.mkdir(parents=True, exist_ok=True)
            (texts / "0.npz").write_bytes(
                b"texts" if not shared else (texts / "0.npz").read_bytes()
            )
            facts = {"tokens": 8, "minutes": 1, "acceptance": [0.5], "shared": shared}
            (head / "config.json").write_text(json.dumps({"edgespec": facts}))
        return json.dumps({"settings": [{}, SETTING]})

    monkeypatch.setattr(benchmark, "edgespec", edgespec)
    options = [
        "--kinds",
        "eagle3,peagle",
        "--minutes",
        "6",
        "--device",
        "cpu",
        "--training",
        "--batch",
        "64",
    ]
    words = ["train_heads.py", str(BUNDLE), "-o", str(tmp_path / "heads"), *options]
    monkeypatch.setattr("sys.argv", words)
    benchmark.main()
    assert [each[0] for each in calls] == ["train-draft", "export", "bench"] * 2
    for each in calls[::3]:
        assert each[-6:] == ["--minutes", "3.0", "--device", "cpu", "--batch", "64"]
    facts = json.loads((tmp_path / "heads/peagle/config.json").read_text())["edgespec"]
    assert facts["shared"]  # the target doesn't write them again
    *table, last = capsys.readouterr().out.strip().split("\n")
    found = json.loads(last)["found"]
    assert list(found) == ["eagle3", "peagle"]
    assert found["peagle"]["tokens a round"] == 1.5
    assert "| peagle" in "".join(table)
