"""The judge of two texts: a manipulated one is found, a tie is forgiven."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from pairs import ENGINES, SHORT_PROMPT

from edgespec.measuring import equality
from edgespec.measuring.equality import Judge, tally, worst
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions


@pytest.fixture(scope="module")
def llm(pairs):
    return pairs.llm("llama", ENGINES[0], "none")


@pytest.fixture
def judge(llm, monkeypatch):
    """Of a target whose rows are not alike in all company, for all that anybody knows."""
    monkeypatch.setattr(llm.target, "exact", False)
    return Judge(llm.target, llm.tokenizer)


def text_of(llm, **options):
    return llm.generate(SHORT_PROMPT, max_new_tokens=24, **options).tokens


def test_the_same_text_is_equal(llm, judge):
    text = text_of(llm)
    assert judge.verdict(SHORT_PROMPT, text, list(text)) == "yes"


@pytest.mark.parametrize("place", [0, 7, 23])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}])
def test_a_manipulated_text_is_a_fault(llm, judge, place, sampling):
    text = text_of(llm, **sampling)
    wrong = [*text[:place], (text[place] + 1) % 331, *text[place + 1 :]]
    tokens = llm.tokenizer.encode(SHORT_PROMPT)
    assert judge.verdict(tokens, text, wrong, **sampling) == "no"


@pytest.mark.parametrize("kept", [0, 23])
def test_a_text_that_ends_early_is_a_fault(llm, judge, kept):
    text = text_of(llm)
    assert judge.verdict(SHORT_PROMPT, text, text[:kept]) == "no"


@pytest.mark.parametrize("company", [1, 3, 16])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}])
def test_a_tie_is_forgiven_where_the_target_sees_one(llm, judge, monkeypatch, sampling, company):
    monkeypatch.setattr(equality, "_BATCH_ROWS", (company,))
    place, text = 7, text_of(llm, **sampling)
    tokens = llm.tokenizer.encode(SHORT_PROMPT)
    logits = Runner(llm.target).prefill([*tokens, *text[:place]])["logits"][0].astype(np.float64)
    # With the best token out of the way the same noise chooses the second one.
    bare = logits.copy()
    bare[text[place]] = -1e9
    sampler = Sampler(SamplingOptions(**sampling), 331)
    second = sampler.choose(bare, len(tokens) + place, ())
    other = [*text[:place], second, *text[place + 1 :]]
    assert judge.verdict(SHORT_PROMPT, text, other, **sampling) == "no"
    noisy = logits.copy()
    if sampling:
        everything = np.arange(331)
        noisy += 0.8 * equality.gumbel(5, len(tokens) + place, everything)
    gap = (noisy[text[place]] - noisy[second]) / logits.std()
    monkeypatch.setattr(equality, "_NEAR_TIE", gap * 0.99)
    assert judge.verdict(SHORT_PROMPT, text, other, **sampling) == "no"
    monkeypatch.setattr(equality, "_NEAR_TIE", gap * 1.01)
    assert judge.verdict(SHORT_PROMPT, text, other, **sampling) == "near-tie"


def test_passes_have_no_more_rows_than_the_engine_takes(pairs):
    llm = pairs.llm("llama", f"{ENGINES[0]}#8x256", "none")
    text = text_of(llm)
    wrong = [*text[:-1], (text[-1] + 1) % 331]
    assert Judge(llm.target, llm.tokenizer).verdict(SHORT_PROMPT, text, wrong) == "no"


def test_ids_that_no_text_has_are_not_judged_by(llm, monkeypatch):
    """Models have more than their tokenizers, and leave them untrained."""
    prompt = llm.tokenizer.encode(SHORT_PROMPT)
    logits = Runner(llm.target).prefill(prompt)["logits"][0].copy()
    size = int(logits.argmax())
    other, first = (int(id_) for id_ in logits[:size].argsort()[-2:])
    gap = (logits[first] - logits[other]) / logits[:size].std()
    monkeypatch.setattr(equality, "_NEAR_TIE", gap * 1.01)
    monkeypatch.setattr(llm.target, "exact", False)
    judge = Judge(llm.target, SimpleNamespace(vocab_size=size))
    assert judge.verdict(prompt, [first], [other]) == "near-tie"


def test_verdicts_are_counted_the_worst_first():
    assert worst(["yes", "near-tie", "yes"]) == "near-tie"
    assert worst(["yes", "no", "near-tie"]) == "no"
    assert tally(["yes", "no", "yes", "near-tie"]) == "1 no, 1 near-tie, 2 yes"
    assert tally(["yes", "yes"]) == "2 yes"
