"""Benchmarks of draft sources: their arithmetic, whose turn it is, and how texts are judged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pairs import SHORT_PROMPT

from edgespec.errors import ContextLengthError, InputError
from edgespec.llm.llm import inside
from edgespec.measuring import bench
from edgespec.measuring.bench import Bench, BenchRequest, acceptance_by_depth, verdict

TEXT = tuple(range(10, 23))


def made(tpot_ms, accepted=(0,) * 12, tokens=TEXT, ttft_ms=20.0):
    """A text of as many rounds as `accepted` has, each of which gives one token."""
    rounds = [
        SimpleNamespace(accepted=n, draft_seconds=1e-3, verify_seconds=3e-3) for n in accepted
    ]
    result = SimpleNamespace(
        tokens=list(tokens),
        new_tokens=len(tokens),
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        rounds=len(accepted),
        sources={"lookup": len(accepted)},
    )
    return SimpleNamespace(finish=lambda: result, result=result, rounds=rounds)


class Told:
    """A model that makes given texts by draft source; `log` has its calls."""

    bundle = SimpleNamespace(path="a bundle", target=SimpleNamespace(context_length=50))
    engines = {"target": "cpu:native"}  # noqa: RUF012
    context_length = 50
    draft_sources = ("auto", "none", "lookup")

    def __init__(self, **texts):
        self.texts = texts
        self.log = []

    def forget(self):
        self.log.append("forget")

    def stream(self, prompt, draft_source, **how):
        self.log.append((draft_source, prompt[0]))
        return self.texts[draft_source].pop(0)


def requests(count):
    return [BenchRequest((number,) * 3, 13) for number in range(count)]


def test_medians_and_ranges_are_of_repeats():
    warm = made(99.0)
    # Two texts a repeat, 12 tokens after the first each: 24 tokens in 48, 24 and 96 ms.
    plain = [warm, *(made(ms) for ms in (2.0, 2.0, 1.0, 1.0, 5.0, 3.0))]
    times = ((1.0, 10.0), (1.0, 30.0), (0.5, 8.0), (0.5, 8.0), (8.0, 40.0), (8.0, 50.0))
    drafted = [made(ms, (3, 0, 2, 0, 1, 0), ttft_ms=ttft) for ms, ttft in times]
    told = Told(none=plain, lookup=[warm, *drafted])
    plain, lookup = Bench(told, ["lookup"], requests(2)).measure(3)
    assert plain.tokens_per_second == 500.0
    assert plain.tokens_per_second_range == (250.0, 1000.0)
    assert (plain.speedup_vs_plain, plain.mean_accepted_length) == (1.0, 1.0)
    assert plain.acceptance_by_depth == ()
    assert (lookup.tokens_per_second, lookup.speedup_vs_plain) == (1000.0, 2.0)
    assert (lookup.ttft_ms, lookup.ttft_ms_range) == (20.0, (8.0, 45.0))
    assert (lookup.tpot_ms, lookup.tpot_ms_range) == (1.0, (0.5, 8.0))
    assert lookup.acceptance_by_depth == (0.5, 0.3333, 0.1667)
    # 36 rounds in 228 ms, of which 36 are drafts and 108 verifications.
    assert (lookup.rounds, lookup.mean_accepted_length) == (36, 2.0)
    assert (lookup.draft_ms, lookup.verify_ms) == (1.0, 3.0)
    assert lookup.other_ms == pytest.approx(84 / 36, abs=1e-3)
    assert (lookup.new_tokens, lookup.texts, lookup.sources) == (78, 6, {"lookup": 36})
    assert (lookup.equal_to_plain, lookup.verdicts) == ("yes", {"yes": 6})


def test_settings_take_turns_text_by_text_and_nothing_is_learned():
    told = Told(none=[made(1.0) for _ in range(5)], auto=[made(1.0) for _ in range(5)])
    found = Bench(told, ["auto"], requests(2))
    reports = []
    found.measure(2, reports.append)
    both = [("none", 0), ("auto", 0), ("none", 1), ("auto", 1)]
    assert told.log[::2] == ["forget"] * 10
    assert told.log[1::2] == [*both[:2], *both, *both]
    assert len(reports) == found.steps(2) == 10


def test_a_text_that_differs_is_a_fault_where_rows_are_exact():
    wrong = (*TEXT[:-1], 99)
    told = Told(
        none=[made(1.0) for _ in range(3)], auto=[made(1.0), made(1.0), made(1.0, tokens=wrong)]
    )
    line = Bench(told, ["auto"], requests(2)).measure(1)[1]
    assert (line.equal_to_plain, line.verdicts) == ("no", {"yes": 1, "no": 1})


@pytest.mark.parametrize("how", [{}, {"temperature": 0.8, "seed": 5}])
def test_on_other_devices_a_near_tie_is_forgiven(pairs, monkeypatch, how):
    llm = pairs.llm("llama", "cpu", "none")
    prompt = tuple(llm.tokenizer.encode(SHORT_PROMPT))
    request = BenchRequest(prompt, 24, **how)
    text = llm.generate(prompt, max_new_tokens=24, **how).tokens
    wrong = [*text[:7], (text[7] + 1) % 331, *text[8:]]
    assert verdict(llm, request, text, list(text)) == "yes"
    monkeypatch.setattr(bench, "_NEAR_TIE", 1e9)
    assert verdict(llm, request, text, wrong) == "no"
    monkeypatch.setattr(inside(llm).engine.target, "device", "cuda:0")
    assert verdict(llm, request, text, wrong) == "near-tie"
    assert verdict(llm, request, text, text[:9]) == "no"  # it merely ends earlier
    monkeypatch.setattr(bench, "_NEAR_TIE", 1e-9)
    assert verdict(llm, request, text, wrong) == "no"
    assert verdict(llm, request, wrong, text) == "no"


def test_acceptance_by_depth():
    assert acceptance_by_depth([0, 0]) == ()
    assert acceptance_by_depth([2, 0, 1, 2]) == (0.75, 0.5)


def test_what_cannot_be_measured():
    told = Told(none=[made(0.0, (), TEXT[:1]) for _ in range(2)])
    with pytest.raises(InputError, match="every text ends after its first token"):
        Bench(told, [], requests(1)).measure(1)
    with pytest.raises(ContextLengthError, match="prompt 2 has 50 tokens, and the context has"):
        Bench(told, [], [*requests(1), BenchRequest((1,) * 50, 13)])
    with pytest.raises(InputError, match="a bundle is loaded without layer-skip: compare it alone"):
        Bench(told, ["layer-skip"], requests(1))
