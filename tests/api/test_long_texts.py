"""Long texts: drafts see a window of them, and what follows them does not pay for their caches."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS, SHORT_PROMPT

from edgespec import LLM
from edgespec.bundle import DRAFT, TARGET
from edgespec.runtime.deployment import resolve

WINDOW = 128  # with the scratch rows behind it, the least capacity of a cache
DRAFTS = (("llama", "model"), ("llama", "parallel"), ("llama", "auto"), ("head", "head"))


@contextmanager
def opened(pairs, name, draft, engine=ENGINES[0]):
    place = {"device": engine, "draft_device": engine, "threads": 1}
    with LLM(pairs.pair(name).path, draft=draft, **place) as llm:
        yield llm


@pytest.fixture
def short_window(monkeypatch):
    monkeypatch.setattr(resolve, "DRAFT_WINDOW", WINDOW)


@pytest.mark.parametrize(("name", "draft"), DRAFTS)
@pytest.mark.parametrize("sampled", [{}, {"temperature": 2.5, "seed": 3}], ids=str)
def test_a_window_changes_no_text_and_bounds_the_drafts_cache(
    pairs, short_window, name, draft, sampled
):
    options = {"max_new_tokens": NEW_TOKENS, **sampled}
    plain = pairs.llm(name, ENGINES[0], "none").generate(LONG_PROMPT, **options)
    with opened(pairs, name, draft) as llm, llm.session() as session:
        result = session.generate(LONG_PROMPT, **options)
        runner = session._slot.runners[DRAFT]
        assert runner.model.sizes.cache_rows == WINDOW + 128
        assert runner._caches[0].capacity == WINDOW + 128
        assert runner.length <= WINDOW < session._slot.runners[TARGET].length
        assert runner.bytes_for(1 << 20) == runner.bytes
        assert result.tokens == plain.tokens
        assert result.drafted > 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "draft"), [("llama", "model"), ("head", "head")])
def test_a_short_text_behind_a_long_one_has_small_caches(pairs, name, draft, engine):
    with opened(pairs, name, draft, engine) as llm, llm.session() as session:
        long = session.generate(LONG_PROMPT * 2, max_new_tokens=8)
        runners = session._slot.runners
        assert {each._caches[0].capacity for each in runners.values()} == {512}
        capacities = []
        for runner in runners.values():
            for executable in runner.model.executables:
                run = executable.run

                def watched(feeds, cache, run=run):
                    capacities.append(cache.capacity)
                    return run(feeds, cache)

                executable.run = watched
        short = session.generate(SHORT_PROMPT, max_new_tokens=8)
        assert len(capacities) > 8
        assert set(capacities) == {256}
    assert long.drafted
    assert short.drafted
