"""Tests of noise: its generator, its distribution, and bounds on its bits."""

from __future__ import annotations

import numpy as np
import pytest
from draws import LARGE, SMALL, chi_squared_fits
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.sampling.noise import (
    Noise,
    bits_reaching,
    gumbel,
    gumbel_from_bits,
    noise_bits,
)


def uniforms(seed, positions, tokens):
    rows = [noise_bits(seed, t, np.arange(tokens)) >> np.uint64(11) for t in range(positions)]
    return np.array(rows) * 2.0**-53


def test_noise_is_splitmix64():
    """Reference outputs of the published generator (Steele, Lea and Flood) from its first state."""

    def splitmix64(state, count):
        out = []
        for _ in range(count):
            state = (state + 0x9E3779B97F4A7C15) % 2**64
            mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
            out.append(mixed ^ (mixed >> 31))
        return out

    assert splitmix64(1234567, 2) == [6457827717110365317, 3203168211198807973]
    for seed, position in ((0, 0), (7, 3), (2**64 - 1, 10**6)):
        key = splitmix64(splitmix64(seed, 1)[0] + position * 0x9E3779B97F4A7C15, 1)[0]
        assert noise_bits(seed, position, np.arange(5)).tolist() == splitmix64(key, 5)


def test_noise_depends_on_seed_position_and_token_alone():
    tokens = np.arange(LARGE)
    whole = gumbel(5, 9, tokens)
    assert whole.dtype == np.float64
    some = np.random.default_rng(0).integers(0, LARGE, 100)
    np.testing.assert_array_equal(gumbel(5, 9, some), whole[some])
    assert (whole != gumbel(5, 10, tokens)).all()
    assert (whole != gumbel(6, 9, tokens)).all()


@pytest.mark.parametrize("size", [1, SMALL, LARGE])
def test_noise_kept_for_a_vocabulary_is_the_same_noise(size):
    noise = Noise(5, size)
    assert noise.tabulated == (size <= SMALL)
    some = np.random.default_rng(0).integers(0, size, (2, 3))
    for position in (0, 3, 4, 1, 10**6, 63, 0):  # in any order, whatever else was made
        expected = gumbel(5, position, np.arange(size))
        np.testing.assert_array_equal(noise.for_tokens(position, some), expected[some])
        if noise.tabulated:
            np.testing.assert_array_equal(noise.for_vocabulary(position), expected)


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**64 - 1])
def test_noise_is_uniform_over_tokens_and_over_positions(seed):
    u = uniforms(seed, 200, 1000)
    counts = np.bincount((u.ravel() * 100).astype(int), minlength=100)
    assert chi_squared_fits(counts, np.full(100, u.size / 100))
    for line in (u[0], u[150], u[:, 0], u[:, 999]):
        counts = np.bincount((line * 10).astype(int), minlength=10)
        assert chi_squared_fits(counts, np.full(10, line.size / 10))


@pytest.mark.parametrize("lag", [1, 2, 64])
@pytest.mark.parametrize("axis", ["position", "token"])
def test_noise_is_independent_across_positions_and_tokens(axis, lag):
    u = uniforms(3, 300, 600)
    first, second = (u[:-lag], u[lag:]) if axis == "position" else (u[:, :-lag], u[:, lag:])
    joint = (first.ravel() * 12).astype(int) * 12 + (second.ravel() * 12).astype(int)
    assert chi_squared_fits(np.bincount(joint, minlength=144), np.full(144, joint.size / 144))


@pytest.mark.parametrize("other", [1, 2, 1 << 32])
def test_noise_is_independent_across_seeds(other):
    joint = (uniforms(0, 100, 500).ravel() * 12).astype(int) * 12
    joint += (uniforms(other, 100, 500).ravel() * 12).astype(int)
    assert chi_squared_fits(np.bincount(joint, minlength=144), np.full(144, joint.size / 144))


def test_noise_has_the_gumbel_distribution():
    noise = np.sort(np.concatenate([gumbel(1, t, np.arange(1000)) for t in range(100)]))
    edges = -np.log(-np.log(np.arange(1, 50) / 50))  # its quantiles
    counts = np.diff(np.searchsorted(noise, [-np.inf, *edges, np.inf]))
    assert chi_squared_fits(counts, np.full(50, noise.size / 50))


def test_noise_is_finite_for_all_bits():
    extremes = gumbel_from_bits(np.array([0, 1, 1 << 11, 2**64 - 1], dtype=np.uint64))
    assert np.isfinite(extremes).all()
    assert (np.diff(extremes) >= 0).all()
    assert extremes[-1] > 36


@pytest.mark.parametrize("size", [1, SMALL, LARGE, 3 * 16384])
def test_tokens_reaching_a_noise_are_told_without_making_it(size):
    noise = Noise(5, size)
    for position in (0, 9):
        whole = gumbel(5, position, np.arange(size))
        ranked = np.sort(whole)
        for wanted in (-10.0, *ranked[[0, size // 2, -1]], ranked[-min(size, 40)], 37.0):
            reaching = noise.reaching(position, float(wanted))
            assert reaching[whole >= wanted].all()
            assert (whole[reaching] > wanted - 1e-3).all()


@given(st.floats(-5, 40))
def test_no_bits_below_the_bound_reach_the_noise(noise):
    bound = bits_reaching(noise)
    if bound:
        assert gumbel_from_bits(np.array([bound - 1], dtype=np.uint64))[0] < noise
    if -1 < noise < 20:  # and the bound is tight
        assert gumbel_from_bits(np.array([bound], dtype=np.uint64))[0] > noise - 1e-3
