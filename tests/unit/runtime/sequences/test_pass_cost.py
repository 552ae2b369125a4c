from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import Given, Ranking, toy_model

from edgespec.runtime.sequences.model import AFTER, PassCost, Rows
from edgespec.runtime.sequences.queue import measuring, ranked_rows


def test_the_curve_is_linear_between_measured_rows_and_goes_on_with_the_last_slope():
    cost = PassCost({1: 1.0, 4: 1.6, 8: 2.4})
    assert [cost.seconds(n) for n in (0, 1, 4, 8)] == pytest.approx([0, 1, 1.6, 2.4])
    assert cost.seconds(3) == pytest.approx(1.4)
    assert cost.seconds(16) == pytest.approx(2.4 + 8 * 0.2)
    assert cost.seconds(100) == pytest.approx(2.4 + 92 * 0.2)


def test_twice_the_rows_take_at_most_twice_the_time():
    cost = PassCost({1: 1.0, 2: 5.0, 4: 5.0})
    assert [cost.seconds(n) for n in (1, 2, 4)] == pytest.approx([1, 2, 4])


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(1e-5, 10), min_size=1),
    st.lists(st.tuples(st.integers(1, 90), st.floats(0, 10)), max_size=20),
)
def test_it_never_decreases(points, observed):
    cost = PassCost(points)
    for rows, seconds in observed:
        cost.observe(rows, seconds)
    curve = [cost.seconds(n) for n in range(100)]
    assert curve == sorted(curve)
    assert curve[1] > 0


def test_it_follows_what_passes_take():
    cost = PassCost({1: 1.0, 8: 2.0})
    for _ in range(60):
        cost.observe(1, 3.0)
        cost.observe(8, 4.0)
    assert cost.seconds(1) == pytest.approx(3, rel=0.05)
    assert cost.seconds(8) == pytest.approx(4, rel=0.05)


def test_an_outlier_moves_it_little():
    cost = PassCost({1: 1.0, 8: 2.0})
    cost.observe(1, 100.0)
    assert cost.seconds(1) < 1.1


LENGTHS = range(9)  # of chains that are drafted


def rate_beside_a_program(seed, slope, acceptance, factor=1.8, draft=0.1):
    """How fast the best chain by its costs is, relative to the best one, beside a busy program.

    It takes a core in bursts, a third of the time, and single passes take thrice as long.
    """
    random = np.random.default_rng(seed)
    busy = False

    def found(rows):
        nonlocal busy
        if random.random() < 0.15:
            busy = random.random() < 0.35
        longer = random.uniform(0.8, 1.25) * factor if busy else 1.0
        longer *= 3 if random.random() < 0.02 else 1
        return true(rows) * longer

    def true(rows):
        return 1 + slope * (rows - 1)

    def tokens(length):
        return sum(acceptance**depth for depth in range(length + 1))

    points = {}
    for rows in (1, 4, 8, 5, 2, 16, 1, 4, 8, 5, 2, 16, 1):
        points[rows] = min(points.get(rows, np.inf), found(rows))
    cost = PassCost(points)
    made = spent = 0.0
    for _ in range(200):
        costs = [cost.seconds(length + 1) + draft * length for length in LENGTHS]
        chosen = max(LENGTHS, key=lambda length: tokens(length) / costs[length])
        made += tokens(chosen)
        spent += true(chosen + 1) + draft * chosen
        cost.observe(chosen + 1, found(chosen + 1))
    best = max(tokens(length) / (true(length + 1) + draft * length) for length in LENGTHS)
    return made / spent / best


@pytest.mark.parametrize("slope", [0.1, 0.3])  # about those of VNNI and AVX2
def test_beside_a_busy_program_it_is_nearly_the_best_fixed_length(slope):
    rates = [rate_beside_a_program(n, slope, share) for n in range(8) for share in (0.5, 0.8)]
    assert np.mean(rates) >= 0.97


def test_measuring_leaves_the_pool_as_it_was():
    model = toy_model()
    cost = PassCost.measure(model, 0.5)
    assert 0 < cost.seconds(1) <= cost.seconds(16)
    assert model.pool.used == 0
    assert model.graph.calls[:4] == [1, 1, 4, 8]


def test_queues_are_timed_where_rows_are_ranked():
    model = toy_model()
    assert model.further_cost is model.cost
    graph = model.graph = model.ranking = Ranking()
    for _ in measuring(model, 0.5):
        pass
    assert {1, 5} <= {*graph.queued}
    assert {1, 8} <= {*graph.calls}
    assert model.further_cost is model.queued_cost
    assert model.pool.used == 0


def test_a_pool_without_room_for_so_many_queues_is_timed_by_one():
    model = toy_model(limit=20)
    model.graph = model.ranking = Ranking()
    for _ in measuring(model, 0.5):
        pass
    assert model.queued_cost is not None
    assert model.pool.used == 0


def test_each_pass_of_a_queue_corrects_its_own_costs():
    model = toy_model()
    model.ranking = model.graph = Ranking()
    seen = []

    class Seen(Given):
        def observe(self, rows, seconds):
            seen.append((self, rows, seconds))

    model.cost, model.queued_cost = Seen(3.0, 1.0), Seen(1.0, 0.5)
    rows = Rows(model.sequence([]), [1, 2], [AFTER, 0], [1])
    ranked_rows(model, [rows], 2)
    costs, counts, seconds = zip(*seen, strict=True)
    assert costs == (model.cost, model.queued_cost, model.queued_cost)
    assert counts == (2, 1, 1)
    assert np.array(seconds) / seconds[1] == pytest.approx([4.0, 1.0, 1.0])


def test_measuring_stops_in_time():
    model = toy_model()
    PassCost.measure(model, 0.0)
    assert model.graph.calls == [1, 1]


def test_time_that_a_pass_waited_for_the_processor_is_not_counted():
    """Others take the processor, which a pass that sleeps stands for."""
    model = toy_model()
    graph = model.graph
    model.graph = lambda feeds: (time.sleep(0.05), graph(feeds))[1]
    assert PassCost.measure(model, 0.2).seconds(1) < 0.02
    model.device = "cuda"  # works while the processor waits
    assert PassCost.measure(model, 0.2).seconds(1) > 0.05
