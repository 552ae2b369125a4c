"""Benchmarks of bundles: their arithmetic, whose turn it is, and how texts are judged."""

from __future__ import annotations

import pytest
from benches import TEXT, made, with_told_workers

from edgespec import bundle as bundles
from edgespec.api.loading import LoadOptions
from edgespec.errors import ContextLengthError, InputError, MemoryLimitError
from edgespec.measuring import bench
from edgespec.measuring.bench import Bench, Request, acceptance_by_depth
from edgespec.models.embedded import BUNDLE


@pytest.fixture
def told(monkeypatch):
    return with_told_workers(monkeypatch)


def measured(drafts, prompts, repeats, told, **options):
    found = Bench(
        bundles.load(BUNDLE), LoadOptions(threads=1, **options), drafts, short_texts(prompts)
    )
    return {line.name: line for line in found.measure(repeats)}


def short_texts(count):
    return [Request((number,) * 3, 13, 0.0, 0) for number in range(count)]


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
    monkeypatch.setattr(bench, "available_bytes", lambda: 1 << 20)
    told.texts = {name: [made(1.0) for _ in range(6)] for name in ("plain", "auto")}
    told.log, reports = [], []
    found = Bench(bundles.load(BUNDLE), LoadOptions(threads=1), ["auto"], short_texts(2))
    assert "memory does not hold 2 settings at once" in caplog.text
    found.measure(2, reports.append)
    turn = [("load"), 0, 0, 1, "end"]
    expected = [(name, what) for _ in range(2) for name in ("plain", "auto") for what in turn]
    assert told.log == expected
    assert len(reports) == found.steps(2) == 12


@pytest.mark.parametrize(
    ("usual", "asked", "expected"), [(64, None, 64), (4, None, 16), (4096, None, None), (4, 99, 99)]
)
def test_contexts_are_no_longer_than_needed(usual, asked, expected, monkeypatch):
    monkeypatch.setattr(bench, "USUAL_CONTEXT", usual)
    options = LoadOptions(threads=1, context=asked)
    found = Bench(bundles.load(BUNDLE), options, ["auto"], short_texts(2))
    assert {each.context for each in found.settings.values()} == {expected}


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


def test_of_texts_that_a_context_ended_what_both_hold_counts(told):
    told.found = "no"
    for tokens, expected in ((TEXT[:9], {"yes": 1}), ((*TEXT[:8], 99), {"no": 1})):
        ended = {"tokens": tokens, "finish_reason": "context"}
        for plain, auto in (({}, ended), (ended, {})):
            told.texts = {
                "plain": [made(1.0), made(1.0, **plain)], "auto": [made(1.0), made(1.0, **auto)]
            }  # fmt: skip
            assert measured(["auto"], 1, 1, told)["auto"].verdicts == expected


def test_acceptance_by_depth():
    assert acceptance_by_depth([0, 0]) == ()
    assert acceptance_by_depth([2, 0, 1, 2]) == (0.75, 0.5)


def test_what_cannot_be_measured(told):
    told.texts = {"plain": [made(0.0, (), TEXT[:1]) for _ in range(2)]}
    with pytest.raises(InputError, match="every text ends after its first token"):
        measured([], 1, 1, told)
    long = [Request((1,), 13, 0.0, 0), Request((1,) * 50, 13, 0.0, 0)]
    found = Bench(bundles.load(BUNDLE), LoadOptions(threads=1), [], long)
    with pytest.raises(
        ContextLengthError, match="prompt 2 has 50 tokens, and the context of plain"
    ):
        found.measure(1)
    with pytest.raises(MemoryLimitError, match="MiB on cpu"):
        measured(["auto"], 1, 1, told, memory="20MiB")
