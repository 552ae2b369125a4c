from __future__ import annotations

import pytest
from engines import Given
from pairs import LONG_PROMPT, SHORT_PROMPT, with_eos

from edgespec import bundle as bundles
from edgespec.api.llm import LLM
from edgespec.api.loading import LoadOptions
from edgespec.errors import InputError
from edgespec.runtime.kernels import library
from edgespec.tuning import skip_runs

pytestmark = pytest.mark.skipif(library() is None, reason="the operators are not built")


@pytest.fixture
def bundle(pairs, tmp_path):
    return bundles.load(with_eos(pairs.pair("llama").path, tmp_path / "bundle", 0))


def costs(call):
    """Costs in place of measured ones: of the target, which comes first, and of its parts."""
    given = iter([Given(1.0, 0.01)])
    return lambda model, seconds: next(given, Given(call, 0.01))


def test_runs_that_pay_are_written_and_drafted_with(bundle, monkeypatch):
    monkeypatch.setattr(skip_runs.PassCost, "measure", costs(0.001))
    sets = skip_runs.scan(bundle, LONG_PROMPT, 60, threads=1)
    assert [each.skipped for each in sets] == [(2, 3), (0, 1)]
    assert [each.score.draft_cost for each in sets] == pytest.approx([0.001, 0.001])
    assert 0 < sets[0].score.greedy.agreement < 1
    opened = bundles.load(bundle.path)
    assert list(opened.manifest.skip_sets) == sets
    monkeypatch.undo()
    texts = [
        LLM(opened, LoadOptions(draft=draft, threads=1, context=300)).stream(SHORT_PROMPT)
        for draft in ("none", "layer-skip")
    ]
    assert texts[0].finish().tokens == texts[1].finish().tokens


def test_runs_that_do_not_pay_are_left_out(bundle, monkeypatch):
    monkeypatch.setattr(skip_runs.PassCost, "measure", costs(2.0))
    assert skip_runs.scan(bundle, LONG_PROMPT, 60, threads=1) == []
    assert bundles.load(bundle.path).manifest.skip_sets == ()


def test_the_whole_target_agrees_with_itself(bundle):
    llm = LLM(bundle, LoadOptions(draft="none", threads=1, context=300))
    trial = skip_runs._trial(llm.engine.target, llm.tokenizer, LONG_PROMPT)
    assert len(trial.rows) == 128
    assert trial.agreements(llm.engine.target) == [1.0, 1.0]


def test_short_texts_are_refused(bundle):
    with pytest.raises(InputError, match="give 32 or more"):
        skip_runs.scan(bundle, "a b c", 1)
