"""Position-keyed Gumbel noise: a pure function of (seed, position, token).

Adding independent Gumbel noise to log-probabilities and taking the arg-max samples from them (the
Gumbel-max trick: Gumbel, 1954; Maddison, Tarlow and Minka, 2014). Because this noise is computed
from a counter instead of drawn from a stream, target and draft see the same noise at the same place
however the text is reached. The counter is hashed by splitmix64 (Steele, Lea and Flood, 2014):
position and seed make the state of one generator, the token is the index of its output.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment: 2**64 / golden ratio, made odd
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_CHUNK = 16384  # tokens hashed at once, so that the passes stay in the cache


def _mix(state: int) -> int:
    for shift, factor in _ROUNDS:
        state = (state ^ (state >> shift)) * factor & _MASK
    return state ^ (state >> _LAST_SHIFT)


def noise_bits(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The 64 random bits of each token at one position.

    Args:
        seed: 0 to 2**64 - 1.
        position: Absolute index in the text of the token to be chosen.
        tokens: [n] int64 token ids.

    Returns:
        [n] uint64, independent over seeds, positions and tokens for all practical purposes.
    """
    key = _mix(_mix((seed + _GAMMA) & _MASK) + (position + 1) * _GAMMA & _MASK)
    bits = tokens.astype(np.uint64)
    for start in range(0, bits.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        part *= np.uint64(_GAMMA)
        part += np.uint64((key + _GAMMA) & _MASK)
        for shift, factor in _ROUNDS:
            part ^= part >> np.uint64(shift)
            part *= np.uint64(factor)
        part ^= part >> np.uint64(_LAST_SHIFT)
    return bits


def gumbel_of(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise from random bits: -log(-log u), u a 53-bit uniform inside (0, 1).

    Args:
        bits: [n] uint64.

    Returns:
        [n] float64, increasing in `bits`, from -3.6 to 36.8.
    """
    # u = 0 would be minus infinity; it shares the smallest positive value instead.
    uniform = np.maximum(bits >> np.uint64(11), np.uint64(1)) * 2.0**-53
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def gumbel(seed: int, position: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The noise of each token at one position; arguments as for `noise_bits`, [n] float64."""
    return gumbel_of(noise_bits(seed, position, tokens))


def bits_reaching(noise: float) -> int:
    """A bound that bits must reach for `gumbel_of(bits) >= noise`; a few reach it with less.

    Lets a caller discard most tokens by one integer comparison, before any logarithm.
    """
    if noise < -3.0:
        return 0
    # P(g >= noise) in 53-bit steps, widened by more than the rounding of the logarithms.
    tail = -math.expm1(-math.exp(-noise)) * 2.0**53
    return max((1 << 53) - math.ceil(tail * (1 + 1e-9)) - 2, 0) << 11
