"""Drafts of texts that follow a grammar: forced tokens, and none that are forbidden."""

from __future__ import annotations

import pytest
from engines import engine_of, on_last_tokens, plain_engine, request, tokens_at_once, tokens_of
from toy_drafters import RowsGrammar

from edgespec.runtime.drafters.grammar import GrammarDrafter
from edgespec.runtime.drafters.lookup import LookupDrafter

SAMPLINGS = [{}, {"temperature": 1.0, "seed": 5}]


@pytest.mark.parametrize("how", SAMPLINGS)
def test_forced_tokens_are_drafted_and_change_nothing(how):
    expected = tokens_of(plain_engine(), request(grammar=RowsGrammar(), **how))
    engine = engine_of(GrammarDrafter())
    rounds = list(engine.generate(request(grammar=RowsGrammar(), **how)))
    assert [token for made in rounds for token in made.tokens] == expected
    assert {made.source for made in rounds if made.drafted} == {"grammar"}
    assert len(rounds) == 11  # three forced tokens and one of the target's in each but the first
    asked = [request((n,), 20, grammar=RowsGrammar(), **how) for n in range(3)]
    plain = [
        tokens_of(plain_engine(), request((n,), 20, grammar=RowsGrammar(), **how)) for n in range(3)
    ]
    assert tokens_at_once(engine, asked) == plain


class Even(RowsGrammar):
    """A grammar of even tokens."""

    ROW = (range(0, 50, 2),) * 4

    def forced(self):
        return []


class Wild:
    """Proposes a forbidden token with another behind it, and an allowed one."""

    name = "wild"
    observe = end = forget = lambda *_: None

    def begin(self, generation):
        return True

    def draft(self, plan):
        for part in plan.drafting:
            bad = part.proposal.add(-1, 3, 0.5, self.name)
            part.proposal.add(bad, 4, 0.4, self.name)
            part.proposal.add(-1, 8, 0.5, self.name)


def test_forbidden_tokens_are_not_verified():
    for drafters, drafted in (([Wild()], 3), ([Wild(), GrammarDrafter()], 1)):
        engine = engine_of(*drafters, target=(1.0, 0.001))
        rounds = list(engine.generate(request(n=10, grammar=Even())))
        assert max(made.drafted for made in rounds) == drafted


def test_other_sequences_keep_their_drafts():
    engine = engine_of(LookupDrafter(), GrammarDrafter())
    engine.target.graph.logits = on_last_tokens(1)
    rounds = list(engine.generate(request(n=60)))
    assert len(rounds) < 40
    rounds = list(engine.generate(request(n=20, draft="none", grammar=RowsGrammar())))
    assert not any(made.drafted for made in rounds)
