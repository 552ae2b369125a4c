"""The target's choice of the next token.

Greedy choice (temperature 0) is the arg-max. Sampling is the arg-max of log p + g, where p is the
distribution after penalties (`penalties`), temperature, top-k, top-p and min-p (in transformers'
order and meaning), or what `filters` and `mirostat` leave of it, and g is the position-keyed Gumbel
noise of `noise`. A draft that ranks its tokens under the noise of the same seed and position tends
to put the target's choice first (`ranking`). Ties go to the lowest id at every stage.
"""

from __future__ import annotations

import math
import secrets

import numpy as np

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Doubles, Floats, Ids, Mask
from edgespec.runtime.sampling.filters import survivors
from edgespec.runtime.sampling.mirostat import Mirostat
from edgespec.runtime.sampling.noise import Noise
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.truncation import Nucleus, largest_indices

_HEAD = 64  # number of likeliest tokens that set the bar for the others
_DIRECT = 8192  # up to so many tokens, noise for all is cheaper than a short list


class Sampler:
    """Chooses tokens from logits by `options`.

    Target and draft share one sampler, so both see the same noise, temperature and truncation.

    Args:
        options: Temperature, truncation and seed; penalties are for `Penalties`.
        vocab_size: Number of token ids of the tokenizer. Higher ids are padding of the logits,
            which is neither chosen nor ranked.

    Attributes:
        seed: The seed in use, drawn here if the options hold none.
        noise: Noise of that seed, shared by target and draft.
    """

    def __init__(self, options: SamplingOptions, vocab_size: int) -> None:
        self.options = options
        self.vocab_size = vocab_size
        self.seed = secrets.randbits(32) if options.seed is None else options.seed
        self.noise = Noise(self.seed, vocab_size)
        self._all_ids = np.arange(vocab_size)

    def choose(
        self,
        logits: Floats,
        position: int,
        allowed: Mask | None = None,
        mirostat: Mirostat | None = None,
    ) -> int:
        """Returns the token at `position`.

        Args:
            logits: [V] float32, the row after the token before it, penalized.
            position: Absolute index in the text of the token to be chosen.
            allowed: [V or fewer] bool, the tokens that may be chosen, at least one; None for all.
            mirostat: What truncates instead of the options, and goes on by the token, if it does.

        Raises:
            DeviceError: If the logits hold a NaN or an infinity, or no allowed token is finite.
        """
        options = self.options
        kept = np.asarray(logits, np.float32)[: self.vocab_size]
        tokens = self._all_ids[: kept.size]
        if allowed is not None:
            # Not masked by minus infinity: numpy partitions a row of equal values ten times slower.
            tokens = np.flatnonzero(allowed)
            kept = kept[tokens]
        top = int(kept.argmax())
        peak = _require_finite(kept[top])
        if options.temperature == 0:
            return int(tokens[top])
        if mirostat is not None:
            inside = mirostat.survivors(kept)
            best = self._best(kept[inside], tokens[inside], position)
            mirostat.observe(kept[inside], best)
            return int(tokens[inside[best]])
        excludes = self.excludes(position)
        if excludes or options.top_n_sigma or options.typical_p < 1:
            inside = survivors(kept, options, excludes)
            return int(tokens[inside[self._best(kept[inside], tokens[inside], position)]])
        if self.noise.tabulated:
            return int(tokens[self._choose_of_few(kept, tokens, top, position)])
        if options.top_k:
            inside = largest_indices(kept, options.top_k)
            tokens = tokens[inside]
            kept = kept[inside]
        if options.top_p < 1:
            nucleus = Nucleus(kept, options.temperature, options.top_p)
            head = largest_indices(kept, _HEAD if kept.size > _DIRECT else kept.size)
            members = nucleus.members(head)
            if members is None:
                return self._contest(nucleus, kept, tokens, position, head)
            tokens = tokens[members]
            kept = kept[members]
        if options.min_p:
            inside = np.flatnonzero(kept >= self._floor(peak))
            tokens = tokens[inside]
            kept = kept[inside]
        return int(tokens[self._best(kept, tokens, position)])

    def excludes(self, position: int) -> bool:
        """Whether the top choices of a position are left out (XTC)."""
        often = 0.0 if self.options.mirostat else self.options.xtc_probability
        return often > 0 and self.noise.coin(position) <= often

    def _best(self, logits: Floats, tokens: Ids, position: int) -> int:
        """Returns which of some tokens is the best under noise."""
        inside = None
        if tokens.size > _DIRECT:
            inside = self._short_list(logits, tokens, position, largest_indices(logits, _HEAD))
            tokens = tokens[inside]
            logits = logits[inside]
        noise = self.noise.for_tokens(position, tokens)
        best = int(self._scores(logits, float(logits.max()), noise).argmax())
        return best if inside is None else int(inside[best])

    def _choose_of_few(self, logits: Floats, tokens: Ids, top: int, position: int) -> int:
        """Returns the choice where noise for all tokens is available: few passes over all tokens.

        The best token under noise is tried first regardless of top-p, see `_contest`.
        """
        options = self.options
        peak = float(logits[top])
        scores = self._scores(logits, peak, self.noise.for_tokens(position, tokens))
        best = int(scores.argmax())
        if best == top:
            return top  # the likeliest token survives every truncation
        kept = logits
        floor = self._floor(peak)
        if options.top_k:
            border = float(logits[largest_indices(logits, options.top_k)].min())
            kept = np.where(logits < border, -np.inf, logits)
            floor = max(floor, border)
        if floor > -math.inf:
            scores[logits < floor] = -math.inf
        nucleus = None
        if options.top_p < 1:
            nucleus = Nucleus(kept, options.temperature, options.top_p)
        while True:
            best = int(scores.argmax())
            if nucleus is None or nucleus.holds(best):
                return best
            scores[~nucleus.before(best)] = -math.inf

    def _contest(
        self, nucleus: Nucleus, logits: Floats, tokens: Ids, position: int, head: Ids
    ) -> int:
        """Returns the best token under noise within the nucleus, without computing the nucleus.

        The best token under noise mostly lies inside the nucleus. If it does not, only tokens that
        come before it and that min-p keeps remain, so few are tried even if the row is flat.
        """
        peak = float(logits[head].max())
        floor = self._floor(peak)
        inside = self._short_list(logits, tokens, position, head)
        while True:
            noise = self.noise.for_tokens(position, tokens[inside])
            index = int(inside[self._scores(logits[inside], peak, noise).argmax()])
            if logits[index] >= floor and nucleus.holds(index):
                return int(tokens[index])
            inside = np.flatnonzero(nucleus.before(index) & (logits >= floor))
            if inside.size > _DIRECT:
                rivals = logits[inside]
                head = largest_indices(rivals, _HEAD)
                inside = inside[self._short_list(rivals, tokens[inside], position, head)]

    def _floor(self, peak: float) -> float:
        """Returns the smallest logit that min-p keeps (Nguyen et al., 2024)."""
        options = self.options
        return peak + options.temperature * math.log(options.min_p) if options.min_p else -math.inf

    def _scores(self, logits: Floats, peak: float, noise: Doubles) -> Doubles:
        """Returns log-probabilities up to a constant, plus noise: [n] float64."""
        scores: Doubles = logits - np.float64(peak)
        if self.options.temperature != 1:
            scores /= self.options.temperature
        scores += noise
        return scores

    def _short_list(self, logits: Floats, tokens: Ids, position: int, head: Ids) -> Ids:
        """Returns indices, ascending, that include the best token under noise and few others.

        The likeliest tokens, `head`, set a bar. No other token is likelier than the last of them,
        so only a token with enough noise to lift that one over the bar can be the best. This avoids
        computing noise for all tokens.
        """
        likeliest = logits[head]
        peak = float(likeliest.max())
        least = float(likeliest.min())
        noise = self.noise.for_tokens(position, tokens[head])
        bar = float(self._scores(likeliest, peak, noise).max())
        listed = self.noise.reaching(position, bar - (least - peak) / self.options.temperature)
        if tokens.size < listed.size:
            listed = listed[tokens]
        listed[head] = True
        return np.flatnonzero(listed)


def _require_finite(value: np.float32) -> float:
    """Returns the largest logit.

    A NaN or an infinity anywhere in the row would have become the largest.

    Raises:
        DeviceError: if it is not finite.
    """
    peak = float(value)
    if not math.isfinite(peak):
        raise DeviceError(
            f"the model's best logit is {peak}: run it on another device or at a higher precision"
        )
    return peak
