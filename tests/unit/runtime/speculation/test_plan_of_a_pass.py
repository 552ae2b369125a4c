"""The number of nodes of a pass that also reads prompts, or whose drafts took long."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from toys import Given

from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.tree import ROOT, Proposal

ROW = 0.3  # seconds of a further row, beside 1 second of a pass


def part(reading, values=()):
    proposal = Proposal()
    node = ROOT
    for token, value in enumerate(values):
        node = proposal.add(node, token, value, "model")
    return SimpleNamespace(
        reading=range(reading), complete=reading == 1, proposal=proposal, most_nodes=9
    )


@pytest.mark.parametrize(("value", "nodes"), [(0.9, 3), (0.2, 0)])
@pytest.mark.parametrize("prompt", [0, 60])
@pytest.mark.parametrize("spent", [0.0, 30.0])
def test_rows_are_judged_by_decoding_alone(value, nodes, prompt, spent):
    """Neither prompts that are read beside nor drafts that were made make a row worth more."""
    drafting = part(1, [value] * 3)
    alone = [drafting] if not prompt else [drafting, part(prompt)]
    plan = PassPlan(Given(1.0, ROW), alone, [drafting])
    plan.spent = spent
    assert plan.best()[0] == nodes
    assert plan.worthwhile([value], Given(0.1, 0.1)) == (nodes > 0)


class Stairs(Given):
    """Passes of which four rows cost about as much as one."""

    def seconds(self, rows):
        return 1.0 + 0.4 * max(0, (rows - 1) // 4)

    def further(self, rows, count):
        return [self.seconds(rows + n) for n in range(1, count + 1)]


def test_a_further_node_may_take_the_row_of_another():
    drafting = part(1, [0.9])
    for token in (7, 8):
        drafting.proposal.add(ROOT, token, 0.03, "recycling")
    plan = PassPlan(Stairs(1.0, ROW), [drafting], [drafting])
    assert plan.best()[0] == 3
    assert plan.worthwhile([0.6], Given(0.2, 0.1)) == 1  # no row more
    assert plan.worthwhile([0.3], Given(0.2, 0.1)) == 0


def test_a_call_may_pay_together_with_those_below_it_alone():
    drafting = part(1, [0.99, 0.98, 0.97])
    plan = PassPlan(Stairs(1.0, ROW), [drafting], [drafting])
    assert plan.best()[0] == 3
    assert plan.worthwhile([0.96], Given(0.1, 0.1)) == 0  # another row costs 0.4 seconds
    assert plan.worthwhile([0.96], Given(0.1, 0.1), hope=0.99) == 1  # and the next ones nothing
    assert plan.worthwhile([0.96], Given(0.1, 0.1), hope=0.3) == 0


@pytest.mark.parametrize("behind", [0.02, 0.9])
def test_calls_that_nobody_waits_for_have_costs_of_their_own(behind):
    """A first call that is dear may pay by those that are queued behind it."""
    drafting = part(1, [])
    plan = PassPlan(Given(1.0, 0.05), [drafting], [drafting])
    first, queued = Given(0.8, 0.1), Given(behind, 0.0)
    assert plan.worthwhile([0.8], first) == 0
    assert plan.worthwhile([0.8], first, 0.8) == 0
    pays = behind < 0.1
    assert plan.worthwhile([0.8], first, 0.8, queued) == pays
    assert (plan.queued([0.8], queued, 7) > 2) == pays
    assert (plan.saving(0.8, first, queued) > 0) == pays
