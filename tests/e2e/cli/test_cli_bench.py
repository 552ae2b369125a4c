"""`edgespec bench`: what it prints, and what it refuses before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest
from commandline import fails

from edgespec import bundle as bundles
from edgespec.measuring import bench
from edgespec.measuring.bits import Bits

WORDS = ["--limit", "1", "--repeat", "1", "-n", "12", "--draft", "lookup", "--threads", "1"]


def test_bench_prints_one_json_object(cli, pairs, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f(x):\\n"}\n{"turns": ["class A:", "more"]}\n')
    words = ["--prompts", prompts, "--draft", "none, model,model", "--repeat", 2, "-n", 12]
    path = pairs.pair("llama").path
    result = cli("bench", path, *words, "--bits", 6, "--threads", 1, "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    facts = json.loads(result.out)
    assert facts["bundle_hash"] == bundles.load(path).digest
    assert facts["hardware"].keys() >= {"cpu", "usable_cpus", "memory_gib", "load_average"}
    assert facts["versions"].keys() >= {"python", "edgespec", "numpy"}
    assert "git_revision" in facts
    assert facts["engines"] == {"target": "cpu:native", "draft": "cpu:native"}
    assert (facts["prompts"], facts["prompt_files"]) == (2, ["prompts.jsonl"])
    assert (facts["repeats"], facts["threads"], facts["exact"]) == (2, 1, True)
    assert facts["bits"]["rows"] > 6
    assert facts["bits"]["differing"] == 0
    assert facts["peak_rss_mb"] > 10
    plain, model = facts["settings"]
    assert (plain["name"], model["name"]) == ("plain", "model")
    for line in (plain, model):
        assert (line["texts"], line["new_tokens"], line["equal_to_plain"]) == (4, 48, "yes")
        least, most = line["tokens_per_second_range"]
        assert 0 < least <= line["tokens_per_second"] <= most
        assert line["ttft_ms"] > 0 < line["tpot_ms"]
    assert model["mean_accepted_length"] > plain["mean_accepted_length"] == 1
    assert model["draft_ms"] > plain["draft_ms"]
    ratio = model["tokens_per_second"] / plain["tokens_per_second"]
    assert model["speedup_vs_plain"] == pytest.approx(ratio, abs=0.01)


def test_a_chat_model_is_compared_in_one_table_of_eighty_columns(cli, served_bundle):
    result = cli("bench", served_bundle, "--chat", *WORDS, "--draft", "auto,lookup", "--bits", 4)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " parameters, digest " in " ".join(lines[:2])
    assert "1 prompts, up to 12 new tokens, greedy; repeats: 1, threads: 1; on" in result.out
    assert "0 of " in result.out
    (header,) = (place for place, line in enumerate(lines) if line.startswith("| setting"))
    assert lines[header + 1].startswith("| ---")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[header + 2 : -2]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("plain", "yes"),
        ("auto", "yes"),
        ("lookup", "yes"),
    ]
    assert rows[0][3:5] == ["1.0", "1.0"]
    assert lines[-1].startswith("Medians of the repeats. First token after: plain ")


def test_faults_are_an_exit_code_and_a_warning(cli, monkeypatch):
    monkeypatch.setattr(bench, "verdict", lambda *_: "no")
    result = cli("bench", *WORDS, "--json")
    assert result.code == 1
    assert json.loads(result.out)["settings"][1]["equal_to_plain"] == "no"
    assert "warning: lookup: the text differs from plain decoding's" in result.err
    monkeypatch.setattr(bench, "verdict", lambda *_: "yes")
    monkeypatch.setattr(bench, "compare_bits", lambda *_: Bits(90, 2, ("trees at 17",)))
    result = cli("bench", *WORDS, "--bits", "5", "--json")
    assert result.code == 1
    assert json.loads(result.out)["bits"]["differing"] == 2
    assert "the bits of rows differ (trees at 17)" in result.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--draft", "auto,magic"], ["'magic' is not one of auto, none, model"]),
        (["--repeat", "0"], ["repeat is 0"]),
        (["--limit", "0"], ["limit is 0"]),
        (["-n", "1"], ["--max-new-tokens is 1: give a whole number of at least 2"]),
        (["--temperature", "-1"], ["temperature is -1"]),
        (["--threads", "0"], ["threads is 0"]),
        (["--threads", "5000"], ["threads is 5000: give 1024 or less"]),
        (["--prompts", "nowhere.jsonl"], ["nowhere.jsonl cannot be read"]),
        (["--chat"], ["the model has no chat template"]),
        (["nowhere"], ["there is no model 'nowhere'"]),
        (["--context", "9999"], ["context is 9999"]),
        (["--device", "toaster"], ["toaster"]),
    ],
)
def test_what_is_refused(cli, words, parts):
    fails(cli("bench", *words), *parts)


def test_the_installed_command_minds_no_file_where_it_is_called(pairs, tmp_path):
    """As a user runs it, in a process of its own, beside a file named like a standard module."""
    (tmp_path / "types.py").write_text("raise SystemExit('this is no module of Python')\n")
    (tmp_path / "prompts.txt").write_text("def f(x):\n")
    command = [Path(sysconfig.get_path("scripts"), "edgespec"), "bench", pairs.pair("llama").path]
    words = ["--prompts", "prompts.txt", "--draft", "none,model", "--json", *WORDS[2:6]]
    run = subprocess.run(
        [*command, *words, "--threads=1", "--bits=4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    facts = json.loads(run.stdout)
    assert [line["equal_to_plain"] for line in facts["settings"]] == ["yes", "yes"]
