"""Which devices are said to be the fastest, by times that are given."""

from __future__ import annotations

import pytest

from edgespec.bundle import DRAFT, TARGET
from edgespec.measuring.places import RoleTiming, expectations

FLAT = {1: 0.04, 2: 0.041, 4: 0.042, 8: 0.045, 16: 0.06}
STEEP = {1: 0.04, 2: 0.08, 4: 0.16, 8: 0.32, 16: 0.64}


def best(target, *drafts):
    timed = [RoleTiming(TARGET, "cpu", target)]
    timed += [RoleTiming(DRAFT, device, {1: seconds}) for device, seconds in drafts]
    found = expectations(timed)
    assert found == sorted(found, key=lambda each: -each.rate)
    assert len(found) == 1 + len(drafts)
    return found[0]


def test_the_faster_draft_is_best_where_further_rows_cost_little():
    assert best(FLAT, ("cpu", 0.012), ("webgpu:0", 0.004)).draft == "webgpu:0"
    assert best(FLAT, ("cpu", 0.004), ("webgpu:0", 0.012)).draft == "cpu"


def test_none_is_best_where_drafts_cost_more_than_they_bring():
    assert best(FLAT, ("webgpu:0", 0.1)).draft is None
    assert best(STEEP, ("webgpu:0", 0.02)).draft is None
    assert best(FLAT).rate == pytest.approx(1 / FLAT[1])


def test_a_chain_costs_what_its_queued_passes_do():
    """A device that is waited for once is the better one, though each answer takes longer."""
    timed = [
        RoleTiming(TARGET, "cpu", FLAT),
        RoleTiming(DRAFT, "cpu", {1: 0.004}),
        RoleTiming(DRAFT, "cuda:0", {1: 0.006}, 0.001),
    ]
    assert [timed[2].chain(n) for n in (1, 3)] == pytest.approx([0.006, 0.008])
    assert timed[1].chain(3) == pytest.approx(0.012)
    assert expectations(timed)[0].draft == "cuda:0"


def test_a_target_on_the_gpu_is_weighed_as_well():
    timed = [RoleTiming(TARGET, "cpu", FLAT), RoleTiming(TARGET, "cuda:0", {1: 0.01, 2: 0.011})]
    assert [each.target for each in expectations(timed)] == ["cuda:0", "cpu"]
