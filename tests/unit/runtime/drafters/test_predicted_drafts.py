from __future__ import annotations

import pytest
from engines import SAMPLINGS, engine_of, plain_engine, request, tokens_at_once, tokens_of

from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.prediction import PredictionDrafter


def edited(tokens):
    """A text that becomes these tokens by a change, an insertion and a deletion."""
    return [*tokens[:20], 49, *tokens[21:50], *tokens[53:80], 48, 47, *tokens[80:]]


@pytest.mark.parametrize("how", SAMPLINGS)
def test_predictions_never_change_the_tokens(how):
    asked = []
    for n in range(4):
        whole = tokens_of(plain_engine(), request((1, n), 40, **how))
        prediction = (whole, edited(whole), [5] * 9, [])[n]
        asked.append(request((1, n), 40, prediction=prediction, **how))
    engine = engine_of(PredictionDrafter())
    plain = [tokens_of(plain_engine(), each) for each in asked]
    assert tokens_at_once(engine, asked) == plain
    engine.forget()
    assert engine.target.pool.used == 0


@pytest.mark.parametrize("how", SAMPLINGS[:2])
@pytest.mark.parametrize("draft", ["auto", "lookup"])
def test_an_edited_text_is_made_in_a_few_rounds(how, draft):
    whole = tokens_of(plain_engine(), request(n=120, **how))
    for prediction, most in ((whole, 12), (edited(whole), 24)):
        asked = request(n=120, prediction=prediction, draft=draft, max_nodes=63, **how)
        rounds = list(engine_of(PredictionDrafter(), LookupDrafter()).generate(asked))
        assert [token for made in rounds for token in made.tokens] == whole
        assert len(rounds) <= most


def test_trees_keep_to_their_limits():
    whole = tokens_of(plain_engine(), request())
    engine = engine_of(PredictionDrafter())
    for limits in ({"max_nodes": 0}, {"draft": "none"}):
        rounds = list(engine.generate(request(prediction=whole, **limits)))
        assert (len(rounds), sum(made.drafted for made in rounds)) == (40, 0)
    rounds = list(engine.generate(request(prediction=whole, max_nodes=3)))
    assert max(made.drafted for made in rounds) == 3
    assert [made.source for made in rounds if made.drafted] == ["prediction"] * (len(rounds) - 1)
    assert sum(made.accepted for made in rounds) == 40 - len(rounds)


def test_a_wrong_prediction_is_left():
    engine = engine_of(PredictionDrafter())
    rounds = list(engine.generate(request(n=100, prediction=[3, 4] * 60)))
    assert sum(made.drafted for made in rounds) < 40
