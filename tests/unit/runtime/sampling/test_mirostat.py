"""Mirostat, against llama.cpp's arithmetic written out, in a text of some tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgespec.runtime.sampling.mirostat import Mirostat
from edgespec.runtime.sampling.noise import gumbel
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler

TEMPERATURE = 0.8


def shares_of(row):
    weights = [math.exp((float(x) - float(max(row))) / TEMPERATURE) for x in row]
    return [weight / math.fsum(weights) for weight in weights]


def kept_by_definition(row, version, bound):
    shares = shares_of(row)
    order = sorted(range(len(row)), key=lambda n: -shares[n])
    if version == 2:
        return sorted([n for n in order if -math.log2(shares[n]) <= bound] or order[:1])
    products = squares = 0.0
    for i in range(min(99, len(order) - 1)):
        step = math.log((i + 2) / (i + 1))
        products += step * math.log(shares[order[i]] / shares[order[i + 1]])
        squares += step * step
    steepness = products / squares
    beyond = steepness - 1
    count = (beyond * 2**bound / (1 - len(row) ** -beyond)) ** (1 / steepness)
    return sorted(order[: max(int(count), 1)])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("tau", "eta"), [(5.0, 0.1), (2.0, 0.5), (0.5, 1.0)])
def test_tokens_and_bounds_are_those_of_the_definition(version, tau, eta):
    options = SamplingOptions(
        temperature=TEMPERATURE, mirostat=version, mirostat_tau=tau, mirostat_eta=eta, seed=6
    )
    sampler = Sampler(options, 300)
    rng = np.random.default_rng(1)
    mirostat = Mirostat(options, 300)
    bound = 2 * tau
    sizes = set()
    for position in range(60):
        row = (rng.standard_normal(300) * 3).astype(np.float32)
        kept = kept_by_definition(row, version, bound)
        noise = gumbel(6, position, np.array(kept))
        token = kept[int((row[kept] / TEMPERATURE + noise).argmax())]
        assert sampler.choose(row, position, mirostat=mirostat) == token
        surprise = -math.log2(shares_of(row[kept])[kept.index(token)])
        bound -= eta * (surprise - tau)
        sizes.add(len(kept))
    assert len(sizes) > 3


@pytest.mark.parametrize("version", [1, 2])
def test_odd_rows_keep_a_token(version):
    options = SamplingOptions(temperature=1.0, mirostat=version, mirostat_tau=0.0)
    for row in (np.zeros(9), np.array([1.0]), np.array([5.0, -1e30, -1e30]), np.arange(9.0)):
        found = Mirostat(options, 9).survivors(row.astype(np.float32))
        assert found.size >= 1
        assert row.argmax() in found


def test_other_truncations_have_no_part_in_it():
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((20, 50)) * 2).astype(np.float32)
    others = {"top_k": 1, "top_p": 0.0, "min_p": 1.0, "typical_p": 0.0, "xtc_probability": 1.0}
    texts = []
    for each in ({}, others):
        options = SamplingOptions(temperature=1.0, mirostat=2, seed=1, **each)
        sampler = Sampler(options, 50)
        mirostat = Mirostat(options, 50)
        texts.append([sampler.choose(row, n, mirostat=mirostat) for n, row in enumerate(rows)])
    assert texts[0] == texts[1]
