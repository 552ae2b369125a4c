"""`edgespec bench`: its arithmetic, its processes, and what it prints."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from commandline import FAST, fails
from pairs import ENGINES

from edgespec import bench, environment
from edgespec import bundle as bundles
from edgespec.bench import Bench, Request, acceptance_by_depth
from edgespec.cli import plots
from edgespec.errors import ContextLengthError, DeviceError, InputError, MemoryLimitError
from edgespec.models.embedded import BUNDLE
from edgespec.options import LoadOptions
from edgespec.result import GenerationResult
from edgespec.worker import Made, Worker

KEYS = {
    "name", "tokens_per_second", "ttft_ms", "tpot_ms", "mean_accepted_length", "peak_rss_mb",
    "speedup_vs_plain", "equal_to_plain", "acceptance_by_depth", "draft_ms", "verify_ms",
    "other_ms", "outside_engines_ms",
}  # fmt: skip
TEXT = tuple(range(10, 23))


def made(tpot_ms, accepted=(0,) * 12, tokens=TEXT, **facts):
    """A text of as many rounds as `accepted` has; a token comes with each, and the first."""
    result = GenerationResult(
        text="", tokens=list(tokens), prompt_tokens=3, new_tokens=len(tokens),
        finish_reason="length", seed=0, ttft_ms=20.0, tpot_ms=tpot_ms, tokens_per_second=0.0,
        rounds=len(accepted), drafted=0, accepted=sum(accepted), mean_accepted_length=0.0, begun=0,
        draft="", sources={"lookup": len(accepted)}, draft_memory=None,
        predicted_tokens_per_second=None, measured_tokens_per_second=None,
        engine="onnxruntime:cpu", draft_engine=None, peak_rss_mb=100.0, engine_ms=0.0, reused=0,
        logprobs=(), simulated=None,
    )  # fmt: skip
    return Made(replace(result, **facts), tuple(accepted), 0.010, 0.030)


@pytest.fixture
def told(monkeypatch):
    """Workers that make what they are told, by name; `log` has what they were asked."""

    class Told:
        context_length = 50
        found = "near-tie"

        def __init__(self, name, path, options):
            self.name = name
            self.log.append((name, "load"))
            self.options[name] = options

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.log.append((self.name, "end"))

        def make(self, request):
            self.log.append((self.name, request.prompt[0]))
            return self.texts[self.name].pop(0)

        def plain(self, request):
            self.log.append((self.name, "plain"))
            return self.plain_tokens

        def verdict(self, request, expected, found):
            self.log.append((self.name, "verdict", tuple(expected), tuple(found)))
            return self.found

    Told.texts, Told.log, Told.options, Told.plain_tokens = {}, [], {}, list(TEXT)
    monkeypatch.setattr(bench, "Worker", Told)
    return Told


def measured(drafts, prompts, repeats, told, **options):
    found = Bench(bundles.load(BUNDLE), LoadOptions(threads=1, **options), drafts)
    requests = [Request((number,) * 3, 13, 0.0, 0) for number in range(prompts)]
    return {line.name: line for line in found.measure(requests, repeats)}


def test_medians_and_ranges_are_of_repeats(told):
    warm = made(99.0)
    told.texts = {
        # Two texts a repeat, 12 tokens after the first each: 24 tokens in 48, 24 and 96 ms.
        "plain": [warm, *(made(ms) for ms in (2.0, 2.0, 1.0, 1.0, 5.0, 3.0))],
        "lookup": [
            warm,
            *(
                made(ms, (3, 0, 2, 0, 1, 0), ttft_ms=ttft, peak_rss_mb=peak, engine_ms=30.0)
                for ms, ttft, peak in (
                    (1.0, 10.0, 90.0), (1.0, 30.0, 90.0), (0.5, 8.0, 120.0), (0.5, 8.0, 90.0),
                    (8.0, 40.0, 90.0), (8.0, 50.0, 90.0),
                )
            ),
        ],
    }  # fmt: skip
    lines = measured(["lookup"], 2, 3, told)
    plain, lookup = lines["plain"], lines["lookup"]
    assert plain.tokens_per_second == 500.0
    assert plain.tokens_per_second_range == (250.0, 1000.0)
    assert (plain.speedup_vs_plain, plain.mean_accepted_length) == (1.0, 1.0)
    assert plain.acceptance_by_depth == ()
    assert lookup.tokens_per_second == 1000.0
    assert lookup.speedup_vs_plain == 2.0
    assert (lookup.ttft_ms, lookup.ttft_ms_range) == (20.0, (8.0, 45.0))
    assert (lookup.tpot_ms, lookup.tpot_ms_range) == (1.0, (0.5, 8.0))
    assert lookup.mean_accepted_length == 2.0
    assert lookup.acceptance_by_depth == (0.5, 0.3333, 0.1667)
    assert 1 + sum(lookup.acceptance_by_depth) == pytest.approx(2.0, abs=1e-3)
    # 36 rounds in 228 ms, of which 60 are drafts, 180 verifications and 180 inside engines.
    assert lookup.rounds == 36
    assert lookup.draft_ms == pytest.approx(60 / 36, abs=1e-3)
    assert lookup.verify_ms == pytest.approx(180 / 36, abs=1e-3)
    assert lookup.outside_engines_ms == pytest.approx(48 / 36, abs=1e-3)
    assert lookup.other_ms == 0
    assert (lookup.peak_rss_mb, lookup.new_tokens, lookup.texts) == (120.0, 78, 6)
    assert lookup.sources == {"lookup": 36}
    assert (lookup.equal_to_plain, lookup.verdicts) == ("yes", {"yes": 6})


def test_settings_take_turns_text_by_text(told):
    told.texts = {name: [made(1.0) for _ in range(5)] for name in ("plain", "auto")}
    told.log = []
    measured(["auto"], 2, 2, told)
    both = [(name, number) for number in (0, 1) for name in ("plain", "auto")]
    assert told.log == [
        ("plain", "load"), ("auto", "load"), ("plain", 0), ("auto", 0), *both, *both,
        ("auto", "end"), ("plain", "end"),
    ]  # fmt: skip
    # Each plans with what was free before, whatever the others have taken by then.
    assert all(options.memory.keys() == {"cpu"} for options in told.options.values())
    assert told.options["auto"].draft == "auto"


def test_only_a_draft_model_overlaps(told):
    drafts = ("auto", "model", "lookup")
    told.texts = {name: [made(1.0), made(1.0)] for name in ("plain", *drafts)}
    measured(drafts, 1, 1, told, pipeline="overlap")
    found = {name: options.pipeline for name, options in told.options.items()}
    assert found == {"plain": "serial", "auto": "overlap", "model": "overlap", "lookup": "serial"}


def test_what_memory_does_not_hold_together_takes_turns_by_repeats(told, monkeypatch, caplog):
    monkeypatch.setattr(bench, "available_bytes", lambda: 300 << 20)
    told.texts = {name: [made(1.0) for _ in range(6)] for name in ("plain", "auto")}
    told.log, reports = [], []
    found = Bench(bundles.load(BUNDLE), LoadOptions(threads=1), ["auto"])
    assert "memory does not hold 2 settings side by side" in caplog.text
    requests = [Request((number,) * 3, 13, 0.0, 0) for number in range(2)]
    found.measure(requests, 2, reports.append)
    turn = [("load"), 0, 0, 1, "end"]
    expected = [(name, what) for _ in range(2) for name in ("plain", "auto") for what in turn]
    assert told.log == expected
    assert len(reports) == found.steps(2, 2) == 12


def test_texts_that_differ_are_judged(told):
    other = (*TEXT[:-1], 99)
    texts = [made(1.0), made(1.0), made(1.0, tokens=other)]
    told.texts = {"plain": [made(1.0) for _ in range(3)], "auto": texts}
    told.log = []
    for found in ("near-tie", "no"):
        told.found = found
        told.texts = {"plain": [made(1.0) for _ in range(3)], "auto": list(texts)}
        line = measured(["auto"], 2, 1, told)["auto"]
        assert line.equal_to_plain == found
        assert line.verdicts == {"yes": 1, found: 1}
    assert ("auto", "verdict", TEXT, other) in told.log
    assert ("auto", "plain") not in told.log


def test_on_another_engine_plain_decoding_is_asked_again(told):
    other = (*TEXT[:-1], 99)
    there = {"engine": "openvino:cpu", "tokens": list(other)}
    for plain_there, expected in ((other, {"yes": 1}), (TEXT, {"no": 1})):
        told.found, told.plain_tokens, told.log = "no", list(plain_there), []
        told.texts = {"plain": [made(1.0), made(1.0)], "auto": [made(1.0), made(1.0, **there)]}
        assert measured(["auto"], 1, 1, told)["auto"].verdicts == expected
        assert ("auto", "plain") in told.log


def test_acceptance_by_depth():
    assert acceptance_by_depth([0, 0]) == ()
    assert acceptance_by_depth([2, 0, 1, 2]) == (0.75, 0.5)


def test_what_cannot_be_measured(told):
    told.texts = {"plain": [made(0.0, (), TEXT[:1]) for _ in range(2)]}
    with pytest.raises(InputError, match="no text goes beyond its first token"):
        measured([], 1, 1, told)
    found = Bench(bundles.load(BUNDLE), LoadOptions(threads=1), [])
    long = [Request((1,), 13, 0.0, 0), Request((1,) * 50, 13, 0.0, 0)]
    with pytest.raises(ContextLengthError, match="prompt 2 has 50 tokens and the context of plain"):
        found.measure(long, 1)
    with pytest.raises(MemoryLimitError, match="MiB on cpu"):
        measured(["auto"], 1, 1, told, memory="20MiB")


# Processes


@pytest.fixture(scope="module")
def worker(pairs):
    options = LoadOptions(device=ENGINES[0], draft="lookup", threads=1)
    with Worker("lookup", pairs.pair("llama").path, options) as found:
        yield found


def test_a_process_makes_texts_as_if_each_were_the_first(pairs, worker):
    tokens = tuple(pairs.llm("llama", ENGINES[0], "none").tokenizer.encode("def f(x):\n"))
    for sampling in ({"temperature": 0.0, "seed": 0}, {"temperature": 0.9, "seed": 4}):
        request = Request(tokens, 24, **sampling)
        expected = pairs.llm("llama", ENGINES[0], "none").generate(
            tokens, max_new_tokens=24, **sampling
        )
        one, other = worker.make(request), worker.make(request)
        assert one.result.tokens == other.result.tokens == expected.tokens
        assert one.accepted == other.accepted
        assert worker.plain(request) == expected.tokens
        assert one.verify_seconds > 0
        assert 0 < one.draft_seconds + one.verify_seconds < one.result.tpot_ms * 23 / 1e3 * 1.01
        assert sum(one.accepted) + len(one.accepted) == 23
        wrong = [*expected.tokens[:-1], (expected.tokens[-1] + 1) % 331]
        assert worker.verdict(request, expected.tokens, wrong) == "no"


def test_a_process_has_its_own_peak_of_memory(worker):
    mine = bytearray(1 << 30)
    mine[:: 1 << 12] = b"x" * len(mine[:: 1 << 12])
    assert environment.peak_rss_mb() > 1024
    assert worker.make(Request((5,), 4, 0.0, 0)).result.peak_rss_mb < 1024
    options = LoadOptions(device=ENGINES[0], draft="none", threads=1)
    with Worker("plain", BUNDLE, options) as started:
        assert started.make(Request((5,), 4, 0.0, 0)).result.peak_rss_mb < 1024


def test_errors_come_over_the_pipe(pairs):
    options = LoadOptions(device=ENGINES[0], draft="layer-skip", threads=1)
    with pytest.raises(InputError, match="has no skip sets"):
        Worker("layer-skip", pairs.pair("llama").path, options)


def test_a_process_that_dies_is_named(pairs):
    options = LoadOptions(device=ENGINES[0], draft="none", threads=1)
    with Worker("plain", pairs.pair("llama").path, options) as dying:
        os.kill(dying._process.pid, signal.SIGKILL)
        with pytest.raises(DeviceError, match=r"plain: its process ended with status -9: leave it"):
            dying.make(Request((5,), 4, 0.0, 0))
    with Worker("plain", pairs.pair("llama").path, options) as faulty:
        last = r"ended with status 1 \(AttributeError: .* has no attribute 'nonsense'\): leave"
        with pytest.raises(DeviceError, match=last):
            faulty._ask("nonsense")


# The command


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
    return ["--limit", "1", "--repeat", "1", "--draft", "lookup", "--threads", "1"]


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
    assert lines[1].startswith("* 1 prompts, up to 128 new tokens, T=0.5, seed 0; ")
    assert (
        "| setting | tokens/s | range         | to plain | tokens/round | equal to plain |" in lines
    )
    tables = [line for line in lines if line.startswith("| ---")]
    assert len(tables) == 4


def test_a_fault_is_an_exit_code_and_a_warning(cli, card, told):
    told.found = "no"
    result = cli("bench", *card, "--json")
    assert result.code == 1
    assert json.loads(result.out)["settings"][1]["equal_to_plain"] == "no"
    assert "warning: lookup made another text than plain decoding" in result.err


def test_a_card_as_a_picture(cli, card, tmp_path):
    pytest.importorskip("matplotlib")
    assert cli("bench", *card, "--png", tmp_path / "card.png", "--json").code == 0
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--draft", "auto,magic"], ["'magic' is none of auto, none, model"]),
        (["--repeat", "0"], ["repeat is 0"]),
        (["--limit", "0"], ["limit is 0"]),
        (["-n", "1"], ["max_new_tokens is 1: give a whole number from 2"]),
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
