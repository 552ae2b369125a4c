"""What a round with a layer-skip draft costs and brings, from measured times and agreements.

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
"""[sets, sublayers]: which of them each set leaves out."""
Agreed = Sequence[npt.NDArray[np.bool_]]
"""Of each piece of text: at which positions the draft's choice was the target's."""

CHAINS = range(1, 11)
"""Drafted tokens of a round that are weighed."""


@dataclass(frozen=True)
class Agreements:
    """How a draft agreed with the target on text of both kinds, at least a piece of each.

    Attributes:
        greedy: choices were the likeliest tokens.
        sampled: choices were made at temperature 0.8 under the same noise.
    """

    greedy: Agreed
    sampled: Agreed

    @property
    def all(self) -> Agreed:
        """Both kinds, piece by piece."""
        return [*self.greedy, *self.sampled]

    @property
    def share(self) -> float:
        """Of the positions of all pieces."""
        return float(np.concatenate(self.all).mean())


@dataclass(frozen=True)
class StageTimes:
    """What the stages of a model took.

    Attributes:
        borders: the first sublayer of each stage, and the number of sublayers, head included.
        rows: of the calls that were timed, ascending from 1.
        seconds: [rows, stages] of each stage's call.
        host: seconds of a pass of one row that did not pass inside the stages.
    """

    borders: tuple[int, ...]
    rows: tuple[int, ...]
    seconds: Floats
    host: float


@dataclass(frozen=True)
class PassCosts:
    """What passes over any of the sublayers cost.

    Attributes:
        rows: ascending from 1; a call of fewer rows than one of these costs as much as that one,
            since it is padded.
        layout: the model's sublayers.
        sublayers: [rows, sublayers + 1] seconds of each and of the head; the embedding belongs to
            the first.
        call: seconds that a cut costs: one stage's call more.
        host: seconds of a pass outside the stages.
    """

    rows: tuple[int, ...]
    layout: Sublayers
    sublayers: Floats
    call: float
    host: float

    @classmethod
    def from_probe(cls, times: StageTimes, layout: Sublayers) -> PassCosts:
        """From stages cut at `probe_cuts`.

        All layers are taken to be alike: what the stage of many layers takes is each layer's, and
        how it is shared between attention and MLP is seen where they are apart.
        """
        layers = layout.layers
        first, attention, mlp, *rest, head = times.seconds.T
        pair = attention + mlp
        if rest:
            # rest = (layers - 2) layers + one call; pair = one layer + two calls.
            many = layers - 2
            call = (many * pair[0] - rest[0][0]) / (2 * many - 1) if many > 1 else 0.0
            call = float(np.clip(call, 0, times.seconds[0].min() / 2))
            layer = (rest[0] - call) / many
        else:
            call = 0.0
            layer = pair
        share = (attention - call) / (pair - 2 * call)
        inner = np.stack([layer * share, layer * (1 - share)], 1)
        sublayers = np.hstack([np.tile(inner, (1, layers)), (head - call)[:, None]])
        sublayers[:, 0] = np.maximum(first - call - inner[:, 1], inner[:, 0])
        return cls(times.rows, layout, sublayers, call, times.host)

    def refined(self, times: StageTimes) -> PassCosts:
        """With what other stages of the same model took, where those are what will run."""
        sublayers = self.sublayers.copy()
        for stage, (start, stop) in enumerate(pairwise(times.borders)):
            part = sublayers[:, start:stop]
            measured = np.maximum(times.seconds[:, stage] - self.call, 0)
            part *= (measured / part.sum(1))[:, None]
        return replace(self, sublayers=sublayers, host=times.host)

    def whole(self, rows: int) -> float:
        """Seconds of a call of so many rows to a model in one stage."""
        return float(self.sublayers[bisect_left(self.rows, rows)].sum()) + self.call + self.host

    def plain(self, cuts: int) -> float:
        """Seconds of a token without drafts, of a model with so many cuts."""
        return self.whole(1) + cuts * self.call

    def draft(self, sets: Bits, cuts: Iterable[int] = ()) -> Floats:
        """[sets] seconds of a draft's call of one row; `cuts` are there beside a set's own."""
        left_out, starts = _stages(sets, cuts)
        calls = (starts & ~left_out).sum(1)
        seconds: Floats = (~left_out) @ self.sublayers[0] + calls * self.call + self.host
        return seconds

    def rounds(self, sets: Bits, cuts: Iterable[int] = ()) -> Floats:
        """[sets, chains] seconds of a round: a chain's drafting and its verification.

        The sublayers before the first one left out are exact: a verification runs them for the
        last drafted token only, and the others for all rows.
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
    """Cuts that part an attention, an MLP, many layers and the head (of two layers or more)."""
    return sorted({*layout.of_layer(1), layout.first(2), layout.head})


def as_bits(sets: Sequence[Sequence[int]], layout: Sublayers) -> Bits:
    """Sets of sublayers as an array."""
    bits = np.zeros((len(sets), layout.head), np.bool_)
    for row, skipped in zip(bits, sets, strict=True):
        row[list(skipped)] = True
    return bits


def tokens_per_round(pieces: Agreed, chain: int) -> float:
    """Tokens that a round with a chain of so many brings, from rounds along the text.

    A round is counted where the text holds all of its chain. Not from the share of agreements:
    disagreements come in clusters, which makes rounds longer than chance would.
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
    """What a set promises.

    Args:
        skipped: its sublayers.
        agreements: of its draft with the target.
        costs: of passes.
        engine: on which they were measured.
        cuts: of the model, beside those of this set.
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
    """Of one kind of text, with [chains] seconds of a round."""
    speeds = [tokens_per_round(pieces, chain) for chain in CHAINS] / seconds
    best = int(speeds.argmax())
    return Promise(
        agreement=round(float(np.concatenate(list(pieces)).mean()), 4),
        chain=CHAINS[best],
        tokens_per_second=round(float(speeds[best]), 3),
    )


def _stages(sets: Bits, cuts: Iterable[int]) -> tuple[Bits, Bits]:
    """Which sublayers are left out, the head never, and at which a stage starts."""
    left_out = np.pad(sets, ((0, 0), (0, 1)))
    starts = np.ones_like(left_out)
    starts[:, 1:] = left_out[:, 1:] != left_out[:, :-1]
    starts[:, sorted(cuts)] = True
    return left_out, starts
