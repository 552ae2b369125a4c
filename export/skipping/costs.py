"""Computes the costs and tokens of rounds with layer-skip drafts, from measurements.

The formulas are explained in docs/layer-skip.md. Nothing here runs a model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edgespec.bundle import Promise, SkipScore
from edgespec.bundle.sublayers import Sublayers
from edgespec.export.skipping.sets import skip_cuts

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]
"""[sets, sublayers]: whether a set leaves out a sublayer."""
Agreed = Sequence[npt.NDArray[np.bool_]]
"""For each piece of text, at which positions the draft chose the target's token."""

CHAINS = range(1, 11)
"""Draft lengths in tokens that are compared."""


@dataclass(frozen=True)
class Agreements:
    """The agreement of a draft with the target on two kinds of text, at least a piece of each.

    Attributes:
        greedy: agreement when both choose their likeliest token.
        sampled: agreement when both sample at temperature 0.8 with the same noise.
    """

    greedy: Agreed
    sampled: Agreed

    @property
    def all(self) -> Agreed:
        """The pieces of both kinds."""
        return [*self.greedy, *self.sampled]

    @property
    def share(self) -> float:
        """The share of positions of all pieces at which the draft agreed."""
        return float(np.concatenate(self.all).mean())


@dataclass(frozen=True)
class StageTimes:
    """The measured times of a model's stages.

    Attributes:
        borders: the first sublayer of each stage, and finally the number of sublayers, including
            the head.
        rows: numbers of rows of the timed calls, ascending from 1.
        seconds: [rows, stages], seconds of each stage's call.
        host: seconds of a pass of one row that were spent outside of the stages.
    """

    borders: tuple[int, ...]
    rows: tuple[int, ...]
    seconds: Floats
    host: float


@dataclass(frozen=True)
class PassCosts:
    """The costs of passes over any selection of sublayers.

    Attributes:
        rows: numbers of rows, ascending from 1. A call costs as much as the next number in this
            list, since it is padded to it.
        layout: the model's sublayers.
        sublayers: [rows, sublayers + 1], seconds of each sublayer and of the head; the first one
            includes the embedding.
        call: seconds that a cut costs, for the additional stage's call.
        host: seconds of a pass outside of the stages.
    """

    rows: tuple[int, ...]
    layout: Sublayers
    sublayers: Floats
    call: float
    host: float

    @classmethod
    def from_probe(cls, times: StageTimes, layout: Sublayers) -> PassCosts:
        """Computes costs from the times of stages cut at `probe_cuts`.

        All layers are assumed to cost the same. The stage of many layers gives the cost of a layer;
        the stages of the sublayers of a single layer give the ratios between these.
        """
        layers, count = layout.layers, len(layout.of_layer(1))
        first, *parts, head = times.seconds.T
        parts, rest = parts[:count], parts[count:]
        whole = np.sum(parts, axis=0)
        if rest:
            # rest = (layers - 2) layers + one call; whole = one layer + a call for each sublayer.
            many = layers - 2
            call = (many * whole[0] - rest[0][0]) / (count * many - 1) if many > 1 else 0.0
            call = float(np.clip(call, 0, times.seconds[0].min() / 2))
            layer = (rest[0] - call) / many
        else:
            call = 0.0
            layer = whole
        inner = np.stack([layer * (part - call) / (whole - count * call) for part in parts], 1)
        sublayers = np.hstack([np.tile(inner, (1, layers)), (head - call)[:, None]])
        sublayers[:, 0] = np.maximum(first - call - inner[:, 1:].sum(1), inner[:, 0])
        return cls(times.rows, layout, sublayers, call, times.host)

    def refined(self, times: StageTimes) -> PassCosts:
        """Returns the costs scaled to the times of other stages, the ones that will run."""
        sublayers = self.sublayers.copy()
        for stage, (start, stop) in enumerate(pairwise(times.borders)):
            part = sublayers[:, start:stop]
            measured = np.maximum(times.seconds[:, stage] - self.call, 0)
            part *= (measured / part.sum(1))[:, None]
        return replace(self, sublayers=sublayers, host=times.host)

    def whole(self, rows: int) -> float:
        """Returns the seconds of a pass of `rows` rows over a model in one stage."""
        return float(self.sublayers[bisect_left(self.rows, rows)].sum()) + self.call + self.host

    def plain(self, cuts: int) -> float:
        """Returns the seconds of a token without drafts, for a model with this number of cuts."""
        return self.whole(1) + cuts * self.call

    def draft(self, sets: Bits, cuts: Iterable[int] = ()) -> Floats:
        """Returns the seconds [sets] of a draft's pass of one row.

        Args:
            sets: the sets of left-out sublayers.
            cuts: cuts of the model besides those of each set.
        """
        left_out, starts = _stages(sets, cuts)
        calls = (starts & ~left_out).sum(1)
        seconds: Floats = (~left_out) @ self.sublayers[0] + calls * self.call + self.host
        return seconds

    def rounds(self, sets: Bits, cuts: Iterable[int] = ()) -> Floats:
        """Returns the seconds [sets, chains] of a round: drafting a chain and verifying it.

        A draft computes the sublayers before the first one left out exactly, so a verification
        runs these only for the last drafted token, and the other sublayers for all rows.

        Args:
            sets: the sets of left-out sublayers.
            cuts: cuts of the model besides those of each set.
        """
        left_out, starts = _stages(sets, cuts)
        exact = left_out.argmax(1)
        places = [bisect_left(self.rows, chain + 1) for chain in CHAINS]
        sums = np.pad(np.cumsum(self.sublayers, axis=1), ((0, 0), (1, 0)))
        rest = (sums[:, -1:] - sums)[places][:, exact].T
        verify = sums[0, exact][:, None] + rest + starts.sum(1)[:, None] * self.call + self.host
        drafting = np.array(CHAINS) * self.draft(sets, cuts)[:, None]
        found: Floats = drafting + verify
        return found


def probe_cuts(layout: Sublayers) -> list[int]:
    """Returns cuts that give each sublayer of a layer, many layers and the head a stage each.

    The model must have at least two layers.
    """
    return sorted({*layout.of_layer(1), layout.first(2), layout.head})


def as_bits(sets: Sequence[Sequence[int]], layout: Sublayers) -> Bits:
    """Converts sets of sublayers to an array [sets, sublayers]."""
    bits = np.zeros((len(sets), layout.head), np.bool_)
    for row, skipped in zip(bits, sets, strict=True):
        row[list(skipped)] = True
    return bits


def tokens_per_round(pieces: Agreed, chain: int) -> float:
    """Returns the mean number of tokens of a round with draft chains of this length.

    It replays rounds along the text, and counts those whose chain lies within the text. The share
    of agreements alone would give too few tokens, since disagreements come in clusters.
    """
    tokens = rounds = 0
    for agreed in pieces:
        misses = np.flatnonzero(~np.append(agreed, False))
        place, following = 0, misses.tolist()
        index = 0
        while place + chain <= len(agreed):
            while following[index] < place:
                index += 1
            accepted = min(chain, following[index] - place)
            tokens += accepted + 1
            rounds += 1
            place += accepted + 1
    return tokens / rounds if rounds else 1.0


def score(
    skipped: Sequence[int],
    agreements: Agreements,
    costs: PassCosts,
    engine: str,
    cuts: Iterable[int] = (),
) -> SkipScore:
    """Computes the expected speed of a skip set.

    Args:
        skipped: the sublayers that it leaves out.
        agreements: agreement of its draft with the target.
        costs: costs of passes.
        engine: name of the engine on which they were measured.
        cuts: cuts of the model besides those of this set.
    """
    others = set(cuts)
    bits = as_bits([skipped], costs.layout)
    plain = costs.plain(len(others | skip_cuts([skipped], costs.layout)))
    seconds = costs.rounds(bits, others)[0]
    return SkipScore(
        draft_cost=round(float(costs.draft(bits, others)[0]) / plain, 4),
        plain_tokens_per_second=round(1 / plain, 3),
        engine=engine,
        greedy=_promise(agreements.greedy, seconds),
        sampled=_promise(agreements.sampled, seconds),
    )


def _promise(pieces: Agreed, seconds: Floats) -> Promise:
    """Returns the best chain length for one kind of text, given the seconds [chains] of a round."""
    speeds = [tokens_per_round(pieces, chain) for chain in CHAINS] / seconds
    best = int(speeds.argmax())
    return Promise(
        agreement=round(float(np.concatenate(list(pieces)).mean()), 4),
        chain=CHAINS[best],
        tokens_per_second=round(float(speeds[best]), 3),
    )


def _stages(sets: Bits, cuts: Iterable[int]) -> tuple[Bits, Bits]:
    """Returns which sublayers are left out (never the head), and at which ones a stage starts."""
    left_out = np.pad(sets, ((0, 0), (0, 1)))
    starts = np.ones_like(left_out)
    starts[:, 1:] = left_out[:, 1:] != left_out[:, :-1]
    starts[:, sorted(cuts)] = True
    return left_out, starts
