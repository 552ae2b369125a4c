"""Position-keyed Gumbel noise: a pure function of (seed, position, token).

Adding independent Gumbel noise to log-probabilities and taking the arg-max is a way to sample (the
Gumbel-max trick: Gumbel, 1954; Maddison, Tarlow and Minka, 2014). This noise is computed from a
counter instead of drawn from a stream, so target and draft see the same noise at the same position,
whichever way the text is reached. The counter is hashed by splitmix64 (Steele, Lea and Flood,
2014): position and seed make the state of one generator, and the token is the index of its output.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edgespec.runtime.arrays import Doubles, Ids, Mask

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment: 2**64 / golden ratio, made odd
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_UNSHIFTED = _MASK ^ (_MASK >> _LAST_SHIFT)  # bits that the last shift keeps
_CHUNK = 16384  # tokens hashed at once, so that the data stays in the processor's cache

_TABULATED = 8192  # largest vocabulary whose noise is computed as a whole
_BLOCK = 4  # positions computed at once, because numpy calls on small arrays are mostly overhead
_CACHED_BLOCKS = 4


def _mix(state: int) -> int:
    for shift, factor in _ROUNDS:
        state = (state ^ (state >> shift)) * factor & _MASK
    return state ^ (state >> _LAST_SHIFT)


def _mix_all(states: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply `_mix` to each state in place; the array must be C-contiguous."""
    flat = states.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        _multiply(part)
        part ^= part >> np.uint64(_LAST_SHIFT)
    return states


def _multiply(states: npt.NDArray[np.uint64]) -> None:
    """Apply the rounds of `_mix` in place, without its last shift, which keeps the highest bits."""
    shifted = np.empty_like(states)
    for shift, factor in _ROUNDS:
        np.right_shift(states, np.uint64(shift), out=shifted)
        states ^= shifted
        states *= np.uint64(factor)


def _steps(tokens: Ids) -> npt.NDArray[np.uint64]:
    """Returns the distance of each token's state from that of token 0, [n]."""
    return tokens.astype(np.uint64) * np.uint64(_GAMMA)


def _first_state(seed: int, position: int) -> int:
    """Returns the state of token 0 at one position; `_mix` turns it into the token's bits."""
    key = _mix(_mix((seed + _GAMMA) & _MASK) + (position + 1) * _GAMMA & _MASK)
    return (key + _GAMMA) & _MASK


def noise_bits(seed: int, position: int, tokens: Ids) -> npt.NDArray[np.uint64]:
    """Returns the 64 random bits of each token at one position.

    Args:
        seed: 0 to 2**64 - 1.
        position: Absolute index in the text of the token to be chosen.
        tokens: [n] int64 token ids.

    Returns:
        [n] uint64, independent over seeds, positions and tokens for all practical purposes.
    """
    return _mix_all(_steps(tokens) + np.uint64(_first_state(seed, position)))


def gumbel_from_bits(bits: npt.NDArray[np.uint64]) -> Doubles:
    """Returns standard Gumbel noise: -log(-log u), where u is a 53-bit uniform inside (0, 1).

    Args:
        bits: [n] uint64 random bits.

    Returns:
        [n] float64, increasing in `bits`, from -3.6 to 36.8.
    """
    # u = 0 would give minus infinity, so it is raised to the smallest positive value.
    uniform = np.maximum(bits >> np.uint64(11), np.uint64(1)) * 2.0**-53
    noise: Doubles = np.log(uniform, out=uniform)
    np.log(np.negative(noise, out=noise), out=noise)
    return np.negative(noise, out=noise)


def gumbel(seed: int, position: int, tokens: Ids) -> Doubles:
    """Returns the noise of each token at one position, [n] float64; see `noise_bits`."""
    return gumbel_from_bits(noise_bits(seed, position, tokens))


def bits_reaching(noise: float) -> int:
    """Returns a bound that `bits` must reach for `gumbel_from_bits(bits) >= noise`.

    A few values just below the noise reach the bound, too. Callers discard most tokens by one
    integer comparison, before any logarithm.
    """
    # P(g >= noise) in 53-bit steps, with a margin larger than the rounding of the logarithms.
    tail = -math.expm1(-math.exp(-noise)) * 2.0**53
    return max((1 << 53) - math.ceil(tail * (1 + 1e-9)) - 2, 0) << 11


class Noise:
    """The noise of one seed over one vocabulary, with recent positions cached.

    Several rows of a round, and later rounds, ask for the same positions.

    Args:
        seed: 0 to 2**64 - 1.
        vocab_size: Number of token ids.

    Attributes:
        tabulated: Whether the vocabulary is so small that noise is computed for all tokens at once.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._seed = seed
        self._steps = _steps(np.arange(vocab_size))
        self.tabulated = vocab_size <= _TABULATED
        self._block = lru_cache(_CACHED_BLOCKS)(self._block_noise)

    def for_tokens(self, position: int, tokens: Ids) -> Doubles:
        """Returns the noise of each token at one position, float64 in the shape of `tokens`."""
        if self.tabulated:
            found: Doubles = self.for_vocabulary(position).take(tokens)
            return found
        return gumbel(self._seed, position, tokens.ravel()).reshape(tokens.shape)

    def for_vocabulary(self, position: int) -> Doubles:
        """Returns the noise of all tokens at one position, [V] float64; only if `tabulated`."""
        row: Doubles = self._block(position // _BLOCK)[position % _BLOCK]
        return row

    def coin(self, position: int) -> float:
        """Returns a uniform number in [0, 1) of one position, besides the noise of its tokens."""
        # The state before that of token 0, which no token has.
        return (_mix(_first_state(self._seed, position) - _GAMMA & _MASK) >> 11) * 2.0**-53

    def reaching(self, position: int, noise: float) -> Mask:
        """Returns which tokens have at least this much noise, or a little less, at a position, [V].

        No logarithm is computed, and only the part of the hash that decides the highest bits.
        """
        first = np.uint64(_first_state(self._seed, position))
        bound = np.uint64(bits_reaching(noise) & _UNSHIFTED)
        reached = np.empty(self._steps.size, np.bool_)
        for start in range(0, reached.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            states = self._steps[part] + first
            _multiply(states)
            np.greater_equal(states, bound, out=reached[part])
        return reached

    def _block_noise(self, block: int) -> Doubles:
        """Returns the noise of all tokens at `_BLOCK` consecutive positions, [_BLOCK, V]."""
        positions = range(block * _BLOCK, (block + 1) * _BLOCK)
        firsts = np.array([[_first_state(self._seed, place)] for place in positions], np.uint64)
        return gumbel_from_bits(_mix_all(self._steps + firsts))
