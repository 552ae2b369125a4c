"""Tables of the peers' speed and of how their texts compare, for each kind of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import print_table
from peers.base import PLAIN
from peers.lines import speed_lines, tally

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from peers.lines import Way
    from peers.measure import Measured

    Kinds = Mapping[str, range]  # the numbers of a kind's prompts, by its name
    Texts = dict[int, tuple[int, ...]]  # by the number of the prompt


@dataclass(frozen=True)
class Speed:
    """The speed of a setting's texts of one kind.

    `to_plain` is the ratio to the same peer's plain decoding.
    """

    prompts: str
    peer: str
    weights: str
    setting: str
    tokens_per_second: float
    least: float
    most: float
    to_plain: float | None
    ttft_ms: float


@dataclass(frozen=True)
class Sameness:
    """Whether a setting's texts of one kind equal those of plain decoding, and are repeatable.

    Attributes:
        prompts: Kind of the prompts.
        peer: Name of the peer.
        weights: Precision of its weights.
        setting: Name of the setting.
        texts: Number of texts.
        from_plain: First positions at which texts differ from the same peer's plain decoding; None
            if plain decoding could not run.
        from_itself: First positions at which texts of the first two repeats differ.
        verdicts: Verdicts on the texts, see `Decoder.verdict`.
    """

    prompts: str
    peer: str
    weights: str
    setting: str
    texts: int
    from_plain: tuple[int, ...] | None
    from_itself: tuple[int, ...]
    verdicts: str


def speeds(kinds: Kinds, made: Measured) -> list[Speed]:
    """Returns the speeds of all peers and settings."""
    found = []
    for kind, span in kinds.items():
        rows = [row for row in made.rows if row.prompt in span]
        lines = speed_lines(made.ways, rows, 0.0)
        plain = {
            line.way.peer: line.tokens_per_second for line in lines if line.way.setting == PLAIN
        }
        for line in lines:
            way, speed, own = line.way, line.tokens_per_second, plain.get(line.way.peer)
            found.append(
                Speed(
                    kind, way.peer, way.precision, way.setting, speed, line.least, line.most,
                    round(speed / own, 2) if own else None, line.ttft_ms,
                )
            )  # fmt: skip
    return found


def print_speeds(found: Sequence[Speed]) -> None:
    """Prints them as a table."""
    print_table(
        ["prompts", "peer", "weights", "setting", "tokens/s", "range", "to plain", "TTFT ms"],
        [
            [s.prompts, s.peer, s.weights, s.setting, s.tokens_per_second,
             f"{s.least:g} - {s.most:g}", "-" if s.to_plain is None else s.to_plain, s.ttft_ms]
            for s in found
        ],
    )  # fmt: skip


def samenesses(kinds: Kinds, made: Measured) -> list[Sameness]:
    """Compares the texts of all peers and settings, which must have each text at least twice."""
    return [_sameness(kind, span, made, way) for kind, span in kinds.items() for way in made.ways]


def print_samenesses(found: Sequence[Sameness]) -> None:
    """Prints them as a table."""
    print_table(
        ["prompts", "peer", "weights", "setting", "as plain", "again", "verdicts"],
        [
            [s.prompts, s.peer, s.weights, s.setting, _share(s.texts, s.from_plain),
             _share(s.texts, s.from_itself), s.verdicts]
            for s in found
        ],
    )  # fmt: skip


def difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Returns the first position at which two texts differ; None if they are equal."""
    if list(expected) == list(found):
        return None
    pairs = enumerate(zip(expected, found, strict=False))
    shorter = min(len(expected), len(found))
    return next((place for place, (one, other) in pairs if one != other), shorter)


def _sameness(kind: str, span: range, made: Measured, way: Way) -> Sameness:
    first, second = (_texts(made, way.peer, way.setting, repeat) for repeat in (0, 1))
    plain = _texts(made, way.peer, PLAIN, 0)
    return Sameness(
        prompts=kind,
        peer=way.peer,
        weights=way.precision,
        setting=way.setting,
        texts=len(span),
        from_plain=_differences(plain, first, span) if plain else None,
        from_itself=_differences(second, first, span),
        verdicts=tally(way.verdicts[span.start : span.stop]),
    )


def _texts(made: Measured, name: str, setting: str, repeat: int) -> Texts:
    wanted = name, setting, repeat
    return {
        row.prompt: row.tokens for row in made.rows if (row.peer, row.setting, row.repeat) == wanted
    }


def _differences(expected: Texts, found: Texts, span: range) -> tuple[int, ...]:
    places = (difference(expected[number], found[number]) for number in span)
    return tuple(place for place in places if place is not None)


def _share(texts: int, places: Sequence[int] | None) -> str:
    if places is None:
        return "-"
    others = f" (at {', '.join(map(str, sorted(places)))})" if places else ""
    return f"{texts - len(places)} of {texts}{others}"
