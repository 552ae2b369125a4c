"""`edgespec bench`: what it prints, and what it refuses before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from benches import TEXT, made, with_told_workers
from commandline import FAST, fails
from links import linked

from edgespec import bundle as bundles
from edgespec.cli import plots
from edgespec.measuring.bits import Bits
from edgespec.system import environment

KEYS = {
    "name", "tokens_per_second", "ttft_ms", "tpot_ms", "mean_accepted_length", "peak_rss_mb",
    "speedup_vs_plain", "equal_to_plain", "acceptance_by_depth", "draft_ms", "verify_ms",
    "other_ms", "outside_engines_ms",
}  # fmt: skip


@pytest.fixture
def told(monkeypatch):
    return with_told_workers(monkeypatch)


def test_bench_prints_one_json_object(cli, pairs, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def f(x):\\n"}\n{"turns": ["class A:", "more"]}\n')
    words = ["--prompts", prompts, "--draft", "none, model,model", "--repeat", 2, "-n", 12]
    result = cli("bench", pairs.pair("llama").path, *words, *FAST, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    facts = json.loads(result.out)
    assert facts["bundle_hash"] == bundles.load(pairs.pair("llama").path).digest
    assert facts["hardware"].keys() >= {"cpu", "usable_cpus", "memory_gib", "load_average"}
    assert facts["versions"].keys() >= {"python", "edgespec", "numpy"}
    assert "git_revision" in facts
    assert (facts["prompts"], facts["prompt_files"]) == (2, ["prompts.jsonl"])
    assert (facts["repeats"], facts["threads"], facts["turns"]) == (2, 1, "texts")
    plain, model = facts["settings"]
    assert (plain["name"], model["name"]) == ("plain", "model")
    for line in (plain, model):
        assert line.keys() >= KEYS
        assert (line["texts"], line["new_tokens"]) == (4, 48)
        assert line["equal_to_plain"] == "yes"
        least, most = line["tokens_per_second_range"]
        assert 0 < least <= line["tokens_per_second"] <= most
        assert line["peak_rss_mb"] > 10
    assert model["mean_accepted_length"] > plain["mean_accepted_length"] == 1
    assert model["draft_ms"] > plain["draft_ms"]
    ratio = model["tokens_per_second"] / plain["tokens_per_second"]
    assert model["speedup_vs_plain"] == pytest.approx(ratio, abs=0.01)


@pytest.fixture
def card(told):
    """As many texts as one repeat of one prompt takes, drafted for to depth 12."""
    told.found = "near-tie"
    told.texts = {
        "plain": [made(1.0), made(1.0)],
        "layer-skip": [],
        "lookup": [made(0.5, (12,)), made(0.5, (12,), tokens=(*TEXT[:-1], 7))],
    }
    words = ["--limit", "1", "--repeat", "1", "--draft", "lookup", "--threads", "1"]
    return [*words, "--device", "onnxruntime:cpu"]


def test_a_card_fits_eighty_characters(cli, card):
    result = cli("bench", *card)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert max(len(line.rstrip()) for line in lines[2:]) <= 80
    assert "7,344,384 parameters" in lines[0]
    assert lines[1] == "1 prompts, up to 128 new tokens, greedy; repeats: 1, threads: 1"
    rows = [line.split() for line in lines]
    assert ["lookup", "2000.0", "2000.0-2000.0", "2.00x", "12.0", "1", "near-tie"] in rows
    assert ["lookup", *["100%"] * 8] in rows
    assert sum(row[:1] == ["plain"] for row in rows) == 3  # it drafts nothing


def test_a_card_as_markdown(cli, card):
    lines = cli("bench", *card, "--markdown", "--temperature", "0.5").out.splitlines()
    assert lines[1].startswith("* 1 prompts, up to 128 new tokens, temperature 0.5, seed 0; ")
    assert (
        "| setting | tokens/s | range         | speedup | tokens/round | same text as plain |"
        in lines
    )
    tables = [line for line in lines if line.startswith("| ---")]
    assert len(tables) == 4


def test_a_fault_is_an_exit_code_and_a_warning(cli, card, told):
    told.found = "no"
    result = cli("bench", *card, "--json")
    assert result.code == 1
    assert json.loads(result.out)["settings"][1]["equal_to_plain"] == "no"
    assert "warning: lookup: the text differs from plain decoding's" in result.err


def test_bits_are_compared_where_asked_for(cli, card, told):
    result = cli("bench", *card, "--bits", "5", "--markdown")
    assert result.code == 0
    compared = [entry for entry in told.log if entry[1] == "bits"]
    assert [name for name, *_ in compared] == ["plain", "lookup"]
    assert compared[0][2][-len(TEXT) :] == TEXT
    assert compared[0][3] == 5
    assert "Bits of rows computed again with other rows" in result.out
    assert "bits" not in {entry[1] for entry in told.log[: told.log.index(compared[0])]}


@pytest.mark.parametrize(("exact", "code"), [(True, 1), (False, 0)])
def test_other_bits_are_a_fault_where_rows_are_promised_alike(cli, card, told, exact, code):
    told.compared = Bits(90, 2, ("trees at 17",))
    for texts in told.texts.values():
        texts[:] = [replace(text, result=replace(text.result, exact=exact)) for text in texts]
    result = cli("bench", *card, "--bits", "5", "--json")
    assert result.code == code
    bits = json.loads(result.out)["settings"][1]["bits"]
    assert (bits["rows"], bits["differing"]) == (90, 2)
    assert ("the bits of 2 of 90 rows differ (trees at 17)" in result.err) == exact


def test_bits_of_a_real_target(cli, pairs):
    words = ["--draft", "lookup", "--limit", 1, "--repeat", 1, "-n", 8, "--bits", 6]
    result = cli("bench", pairs.pair("llama").path, *words, *FAST, "--json")
    assert result.code == 0
    for line in json.loads(result.out)["settings"]:
        assert line["exact"]
        assert line["bits"]["rows"] > 6
        assert line["bits"]["differing"] == 0


def test_a_card_as_a_picture(cli, card, tmp_path):
    pytest.importorskip("matplotlib")
    assert cli("bench", *card, "--png", tmp_path / "card.png", "--json").code == 0
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_shown_where_no_picture_can_be_written(cli, card, tmp_path):
    pytest.importorskip("matplotlib")
    file = linked(tmp_path / "a.png", tmp_path / "nowhere" / "a.png")
    result = cli("bench", *card, "--png", file, "--json")
    assert result.code == 2
    assert json.loads(result.out)["settings"]
    assert f"{file} cannot be written" in result.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--draft", "auto,magic"], ["'magic' is not one of auto, none, model"]),
        (["--repeat", "0"], ["repeat is 0"]),
        (["--limit", "0"], ["limit is 0"]),
        (["-n", "1"], ["max_new_tokens is 1: give a whole number of at least 2"]),
        (["--temperature", "-1"], ["temperature is -1"]),
        (["--threads", "0"], ["threads is 0"]),
        (["--threads", "5000"], ["threads is 5000: give 1024 or less"]),
        (["--json", "--markdown"], ["not allowed with"]),
        (["--png", "card.jpg"], ["card.jpg: give --png a file name that ends in .png"]),
        (["--prompts", "nowhere.jsonl"], ["nowhere.jsonl cannot be read"]),
        (["--chat"], ["the model has no chat template"]),
        (["nowhere"], ["nowhere is not a bundle"]),
        (["--context", "9999"], ["context is 9999"]),
        (["--device", "toaster"], ["device 'toaster' is not known"]),
    ],
)
def test_what_is_refused_before_anything_is_loaded(cli, told, words, parts):
    told.log = []
    fails(cli("bench", *words), *parts)
    assert told.log == []


def test_a_picture_needs_matplotlib(cli, told, monkeypatch, tmp_path):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    fails(cli("bench", "--png", tmp_path / "a.png"), "pip install 'edgespec[bench]'")


def test_the_revision_is_that_of_our_checkout_alone(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "edgespec"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()  # whoever has a wheel in a folder of his repository
    monkeypatch.setattr(environment, "edgespec", SimpleNamespace(__file__=package / "__init__.py"))
    assert environment.git_revision() is None
    package.parent.joinpath(".git").mkdir()  # no repository either
    assert environment.git_revision() is None
