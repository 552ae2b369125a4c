"""How often edges are accepted: estimates, and the walk along the tokens that counts them."""

from __future__ import annotations

import pytest
from engines import request

from edgespec.runtime.drafters.acceptance import Acceptances, AcceptanceTable, edge_cell
from edgespec.runtime.speculation.generation import Generation


class Chain:
    """Expects these tokens one after the other, in cells of their own, and 0 beside each."""

    def __init__(self, *tokens):
        self.tokens = list(tokens)
        self.asked = 0

    def edges(self):
        self.asked += 1
        return [(self.tokens[0], self.tokens[0]), (0, 100)]

    def follow(self, token):
        return self.tokens.pop(0) == token and bool(self.tokens)


def table_of(*walks):
    table = AcceptanceTable()
    for expected, tokens in walks:
        table.count(tokens, Chain(*expected))
    return table


def test_an_estimate_goes_from_the_prior_to_the_frequency():
    table = table_of()
    assert table.acceptance(7, 0.3) == 0.3
    for count in range(400):
        before = table.acceptance(7, 0.3)
        table.count([7 if count % 4 else 8], Chain(7))
        assert (table.acceptance(7, 0.3) > before) == bool(count % 4)
    assert table.acceptance(7, 0.0) == pytest.approx(0.75, abs=0.02)
    assert table.acceptance(7, 1.0) == pytest.approx(0.75, abs=0.02)
    assert table.acceptance(8, 0.3) == 0.3  # of another cell nothing is known


def test_edges_count_whose_parent_was_reached():
    table = table_of(((5, 6, 7), [5, 9, 7]))
    assert table.acceptance(5, 0.5) > 0.5 > table.acceptance(6, 0.5)
    assert table.acceptance(7, 0.5) == 0.5
    assert table.acceptance(100, 0.5) < table.acceptance(6, 0.5)  # twice not what came


def test_a_walk_ends_with_the_tokens_or_where_nothing_is_expected():
    for tokens, asked in (([5], 1), ([5, 6], 2), ([5, 6, 7, 8], 3), ([9, 6], 1), ([], 0)):
        chain = Chain(5, 6, 7)
        AcceptanceTable().count(tokens, chain)
        assert chain.asked == asked


def test_greedy_and_sampled_tokens_are_counted_apart():
    acceptances = Acceptances()
    greedy, sampled = (Generation(request(temperature=each), None) for each in (0.0, 0.7))
    acceptances.of(greedy).count([5], Chain(5))
    assert acceptances.of(greedy).acceptance(5, 0.5) > 0.5
    assert acceptances.of(sampled).acceptance(5, 0.5) == 0.5


def test_edges_that_look_alike_share_a_cell():
    assert edge_cell(0.91, 0, 1) == edge_cell(0.96, 0, 1)
    assert edge_cell(0.91, 3, 5) == edge_cell(0.91, 9, 3)
    cells = {edge_cell(v, r, d) for v in (0.01, 0.4, 0.99) for r in range(4) for d in range(4)}
    assert len(cells) == 48
