"""Drafts by a part of the target: over its own keys and values, so that nothing is read twice."""

from __future__ import annotations

import pytest
from engines import SAMPLINGS, request
from toy_drafters import Setting, by_part
from toys import toy_model

from edgespec.runtime.speculation.engine import Engine


@pytest.mark.parametrize("how", SAMPLINGS[:2])
def test_a_good_part_saves_rounds_and_reads_no_prompt(how):
    target = toy_model()
    engine = Engine(target, [by_part(Setting(target, cost=(0.1, 0.01)))])
    rounds = list(engine.generate(request(tuple(range(40)), n=60, **how)))
    assert len(rounds) < 35
    assert max(engine.drafters[0].model.graph.calls) < 10
