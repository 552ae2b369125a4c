"""Draft models that score the frequent tokens alone, where a text has few others."""

from __future__ import annotations

import numpy as np
import pytest
from engines import SAMPLINGS, plain_engine, request, tokens_at_once, tokens_of
from native_llms import loaded, with_library
from toy_drafters import FirstTokens
from toys import toy_model

from edgespec.bundle import DRAFT
from edgespec.llm.llm import inside
from edgespec.llm.load import models
from edgespec.llm.load.models import load_scoring
from edgespec.runtime.drafters.frequent import FrequentTokens
from edgespec.runtime.drafters.levels import LevelGrower
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.reader import ModelReader
from edgespec.runtime.sequences.model import AFTER, Rows
from edgespec.runtime.speculation.engine import Engine


def frequent_engine(count):
    model = toy_model(0.1, cost=(0.1, 0.01))
    graphs = FirstTokens(0.1, count), model.graph
    reader = ModelReader(model, 1000, None, FrequentTokens(graphs[0], count))
    drafter = ModelDrafter(LevelGrower("model", reader))
    return Engine(toy_model(), [drafter]), *(graph.calls for graph in graphs)


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("count", [4, 49])
def test_scoring_frequent_tokens_never_changes_the_text(how, count):
    asked = [request((8, 20, 30 + n), 30 + n, **how) for n in range(4)]
    expected = [tokens_of(plain_engine(), each) for each in asked]
    engine, few, every = frequent_engine(count)
    assert tokens_at_once(engine, asked) == expected
    assert bool(few) == (count == 49)  # others would be missing all the time
    assert every if count == 4 else few


def test_a_text_that_turns_to_other_tokens_gets_all_scored():
    engine, few, every = frequent_engine(25)
    list(engine.generate(request((1, 2, 3), 90)))
    assert few
    assert every


@with_library
def test_a_graph_that_scores_some_tokens_has_the_bits_of_the_whole(pairs):
    with loaded(pairs, "qwen3", "model") as llm:
        graph = load_scoring(llm.bundle, DRAFT, 32, threads=1)
        model = inside(llm).models[DRAFT]
        whole = _logits(model)
        model.graph = graph
        np.testing.assert_array_equal(_logits(model), whole[:, :32])
        assert load_scoring(llm.bundle, DRAFT, 1 << 16, threads=1) is None


@with_library
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_bundle_s_draft_scores_frequent_tokens(pairs, monkeypatch, temperature):
    monkeypatch.setattr(models, "_FREQUENT", 320)

    def text(draft):
        asked = {"max_new_tokens": 60, "temperature": temperature, "seed": 3}
        with loaded(pairs, "qwen3_5_text-draft", draft) as llm:
            made = llm.generate(list(range(40, 60)), **asked)
            return made, _logits(inside(llm).models[DRAFT]).shape[1] if draft == "model" else None

    (plain, _), (drafted, scored) = text("none"), text("model")
    assert scored == 320
    assert drafted.tokens == plain.tokens
    assert drafted.rounds < plain.rounds


def _logits(model):
    rows = Rows(model.sequence([]), [5, 7, 9], [AFTER, 0, 0], [0, 1, 2])
    [found] = model.forward([rows])
    rows.accept([])
    return found.copy()
