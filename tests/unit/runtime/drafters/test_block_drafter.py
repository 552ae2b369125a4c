"""Drafts by blocks: what rows read, trees out of candidates, and what the token before decides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engines import plain_engine, request, tokens_of
from hypothesis import given
from hypothesis import strategies as st
from toy_drafters import BLOCK, Setting, by_block, pairs_of
from toys import tapped_model

from edgespec.runtime.drafters.acceptance import Candidates
from edgespec.runtime.drafters.block_head import PairGuess, Pairs
from edgespec.runtime.drafters.combinations import Edge, best_nodes
from edgespec.runtime.speculation.engine import Engine

LONG = tuple(n * n % 50 for n in range(700))


def block_engine(context=1000, **how):
    target = tapped_model()
    drafter = by_block(Setting(target, context=context), **how)
    return Engine(target, [drafter]), drafter.model


@pytest.mark.parametrize("from_anchor", [False, True])
def test_one_call_drafts_a_block(from_anchor):
    engine, head = block_engine(from_anchor=from_anchor)
    rounds = list(engine.generate(request(n=100)))
    assert sum(len(each.tokens) for each in rounds) == 100
    assert max(each.accepted for each in rounds) >= BLOCK - 1
    assert len(rounds) < 40
    assert len(head.graph.graph.calls) <= len(rounds) + 1


def test_a_block_begins_where_features_are_still_kept_and_where_there_is_room():
    engine, _ = block_engine(context=2000)
    assert sum(made.drafted > 0 for made in engine.generate(request(LONG, n=60))) > 5
    asked = request(LONG[:30], n=100, max_nodes=6)
    engine, _ = block_engine(context=48)
    rounds = list(engine.generate(asked))
    assert sum(made.drafted > 0 for made in rounds[14:]) > 2  # which guess badly
    assert [token for made in rounds for token in made.tokens] == tokens_of(plain_engine(), asked)


def test_a_block_that_cannot_be_trusted_is_drafted_less():
    """Where nothing is counted yet, trust alone tells how deep a tree goes."""
    drafted = {}
    for trust in (-2.0, 5.0):
        engine, _ = block_engine(from_anchor=True, pairs=pairs_of(), trust=trust)
        rounds = itertools.islice(engine.generate(request(n=60)), 3)
        drafted[trust] = sum(made.drafted for made in rounds)
    assert drafted[-2.0] < drafted[5.0]


@pytest.mark.parametrize("seed", range(5))
def test_what_the_token_before_adds_is_the_whole_softmax(seed):
    """Among all tokens; of those that are left out, the weight stays as it was."""
    rng = np.random.default_rng(seed)
    ids = np.sort(np.random.default_rng(0).permutation(90)[:20])
    table = rng.normal(size=(90 + 20 + 1, 4)).astype(np.float32)
    pairs = Pairs(table, 90, ids)
    logits = rng.normal(size=(2, 20)).astype(np.float32)
    for kept in (20, 6):
        order = np.argsort(-logits, axis=1)[:, :kept]
        found = np.take_along_axis(logits, order, 1)
        candidates = Candidates(ids[order], found, np.log(np.exp(logits).sum(1)))
        trust = np.array([0.3, -0.2], np.float32)
        guess = PairGuess(candidates, pairs.following(candidates.tokens), trust, pairs)
        for depth, token in ((0, 7), (1, 89)):
            row, share = guess.behind(depth, token)
            bias = table[90:-1] @ table[token]
            inside = np.isin(np.arange(20), order[depth])
            whole = np.where(inside, logits[depth] + bias, logits[depth])
            places = [ids.tolist().index(each) for each in row.tokens[0]]
            assert np.allclose(row.logits[0], whole[places], atol=1e-5)
            assert (np.diff(row.logits[0]) <= 0).all()
            assert row.normalizers[0] == pytest.approx(np.log(np.exp(whole).sum()), abs=1e-4)
            logit = trust[depth] + table[-1] @ table[token]
            assert share == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-5)


@given(
    seed=st.integers(0, 1000),
    depths=st.integers(1, 4),
    width=st.integers(1, 3),
    most=st.integers(1, 14),
)
def test_a_tree_is_worth_most_of_all_trees_and_more_than_a_chain(seed, depths, width, most):
    """Where candidates depend on the token before, too."""

    def edges(depth, token):
        if depth == depths:
            return []
        rng = np.random.default_rng((seed, depth, token))
        values = -np.sort(-rng.dirichlet(np.ones(width + 1))[:width])
        return [Edge(int(rng.integers(100)), float(value), 0) for value in values]

    paths = []
    level = [((), 7, 1.0)]
    for depth in range(depths):
        level = [
            ((*path, place), edge.token, value * edge.value)
            for path, token, value in level
            for place, edge in enumerate(edges(depth, token))
        ]
        paths += level
    expected = sorted((value for _, _, value in paths), reverse=True)[:most]
    found = list(best_nodes(edges, 7, most))
    assert [node.value for node in found] == pytest.approx(expected)
    assert all(node.parent < number for number, node in enumerate(found))
    chain = []
    token = 7
    value = 1.0
    for depth in range(min(depths, most)):
        edge = edges(depth, token)[0]
        token = edge.token
        value = value * edge.value
        chain.append(value)
    assert sum(node.value for node in found) >= sum(chain) - 1e-9


def test_the_tree_holds_the_chain_of_the_likeliest_where_it_has_room():
    def edges(depth, token):
        return [Edge(2 * token % 11, 0.6, 0), Edge(3 * token % 11, 0.3, 0)] if depth < 5 else []

    chain = []
    token = 5
    for _ in range(5):
        token = 2 * token % 11
        chain.append(token)
    found = list(best_nodes(edges, 5, 12))
    path = []
    parent = -1
    for number, node in enumerate(found):
        if (node.parent, node.place) == (parent, 0):
            path.append(node.token)
            parent = number
    assert path == chain


def test_files_of_pairs_that_do_not_fit_are_refused(tmp_path):
    np.save(tmp_path / "pairs.npy", np.ones((21, 4), np.float16))
    assert Pairs.read(tmp_path / "pairs.npy", 10, None).previous(3).tolist() == [1.0] * 4
    for vocab_size, table in ((11, np.ones((21, 4), np.float16)), (10, np.ones((21, 4), int))):
        np.save(tmp_path / "pairs.npy", table)
        with pytest.raises(ValueError, match="it must have"):
            Pairs.read(tmp_path / "pairs.npy", vocab_size, None)
