"""The scan for layers that drafts leave out: what it writes, and what it refuses."""

from __future__ import annotations

import pytest
from pairs import LONG_PROMPT, SHORT_PROMPT, with_eos
from toys import Given

from edgespec import LLM
from edgespec import bundle as bundles
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
    sets = skip_runs.scan(bundle, LONG_PROMPT, threads=1)
    assert [each.skipped for each in sets] == [(2, 3), (0, 1)]
    assert [each.score.draft_cost for each in sets] == pytest.approx([0.001, 0.001])
    assert 0 < sets[0].score.greedy.agreement < 1
    opened = bundles.load(bundle.path)
    assert list(opened.manifest.skip_sets) == sets
    monkeypatch.undo()
    options = {"threads": 1, "context": 300}
    texts = [
        LLM(bundle.path, draft=draft, **options).generate(SHORT_PROMPT, max_new_tokens=64)
        for draft in ("none", "layer-skip")
    ]
    assert texts[0].tokens == texts[1].tokens
    told = skip_runs.describe_skips(opened).splitlines()
    assert [line.split(",")[0] for line in told] == [
        "layer-skip: drafts leave out 1",
        "layer-skip: drafts leave out 0",
    ]


def test_runs_that_do_not_pay_are_left_out(bundle, monkeypatch):
    monkeypatch.setattr(skip_runs.PassCost, "measure", costs(2.0))
    assert skip_runs.scan(bundle, LONG_PROMPT, threads=1) == []
    opened = bundles.load(bundle.path)
    assert opened.manifest.skip_sets == ()
    assert skip_runs.describe_skips(opened).endswith("promises no gain")


def test_targets_that_no_draft_is_a_part_of_are_refused(pairs):
    with pytest.raises(InputError, match=r"recurrent layers.*leave out --layer-skip"):
        skip_runs.scan(bundles.load(pairs.pair("lfm2").path), LONG_PROMPT)


def test_short_texts_are_refused(bundle):
    with pytest.raises(InputError, match="give 32 or more"):
        skip_runs.scan(bundle, "a b c")
