"""From single texts to a line for each setting of each peer."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from peers.base import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SPEED_HEADER = (
    "peer", "weights", "setting", "tokens/s", "range", "to best plain", "TTFT ms", "TPOT ms",
    "start s", "peak MiB", "equal to own plain",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A text of a setting.

    Attributes:
        peer: Its name.
        setting: How it decodes.
        temperature: See `Request`.
        repeat: The turn.
        prompt: The number of the prompt.
        prompt_tokens: How long it is.
        tokens: The new ones.
        ttft: Seconds to the first of them.
        whole: Seconds to the last of them.
    """

    peer: str
    setting: str
    temperature: float
    repeat: int
    prompt: int
    prompt_tokens: int
    tokens: tuple[int, ...]
    ttft: float
    whole: float

    @property
    def further(self) -> int:
        """Tokens after the first."""
        return len(self.tokens) - 1

    @property
    def seconds(self) -> float:
        """That the further ones took."""
        return self.whole - self.ttft


@dataclass(frozen=True)
class Way:
    """A setting of a peer, and what is known of it beside its texts.

    Attributes:
        peer: Its name.
        setting: How it decodes.
        precision: Of its weights.
        start_seconds: From the start of its process to the first token of its first text.
        peak_mib: Of its process, at the end.
        verdicts: On its greedy texts, see `Decoder.verdict`; nothing: there is no plain decoding.
    """

    peer: str
    setting: str
    precision: str
    start_seconds: float
    peak_mib: float
    verdicts: tuple[str, ...]

    @property
    def name(self) -> str:
        """In messages and pictures."""
        return f"{self.peer} {self.setting}"


@dataclass(frozen=True)
class Line:
    """A line of the table: medians over the repeats, or over all texts where that is said.

    Attributes:
        way: Whose.
        temperature: See `Request`.
        tokens_per_second: All tokens of a repeat after each text's first, by their time.
        least: Of the repeats.
        most: Of the repeats.
        to_best_plain: `tokens_per_second` by that of the fastest plain decoding of any peer.
        ttft_ms: Of all texts.
        tpot_ms: Of all texts.
        equal: How many texts are how equal to the same peer's plain decoding.
    """

    way: Way
    temperature: float
    tokens_per_second: float
    least: float
    most: float
    to_best_plain: float
    ttft_ms: float
    tpot_ms: float
    equal: str

    def cells(self) -> tuple[object, ...]:
        """Under `SPEED_HEADER`."""
        way = self.way
        return (
            way.peer, way.precision, way.setting, self.tokens_per_second,
            f"{self.least:g} - {self.most:g}", self.to_best_plain, self.ttft_ms, self.tpot_ms,
            round(way.start_seconds, 2), round(way.peak_mib), self.equal,
        )  # fmt: skip


def speed_lines(ways: Sequence[Way], rows: Sequence[Row], temperature: float) -> list[Line]:
    """A line for each way that made texts which go beyond their first token."""
    texts = {way: _of(rows, way, temperature) for way in ways}
    texts = {way: found for way, found in texts.items() if any(row.further for row in found)}
    speeds = {way: _speeds(found) for way, found in texts.items()}
    plain = [median(found) for way, found in speeds.items() if way.setting == PLAIN]
    best = max(plain, default=0.0)
    return [
        Line(
            way=way,
            temperature=temperature,
            tokens_per_second=round(median(speeds[way]), 1),
            least=round(min(speeds[way]), 1),
            most=round(max(speeds[way]), 1),
            to_best_plain=round(median(speeds[way]) / best, 2) if best else 0.0,
            ttft_ms=round(median(row.ttft for row in found) * 1e3, 1),
            tpot_ms=round(median(_tpots(found)) * 1e3, 2),
            equal=tally(way.verdicts) if not temperature else "-",
        )
        for way, found in texts.items()
    ]


def context_cells(
    ways: Sequence[Way], rows: Sequence[Row], contexts: Sequence[int]
) -> tuple[list[str], list[list[object]]]:
    """Header and lines of the table by context: TTFT, milliseconds a token, and memory."""
    header = ["peer", "weights", "setting"]
    header += [f"TTFT ms at {context}" for context in contexts]
    header += [f"ms/token at {context}" for context in contexts]
    header.append("peak MiB")
    lines: list[list[object]] = []
    for way in ways:
        by_context: dict[int, list[Row]] = defaultdict(list)
        for row in _of(rows, way, 0.0):
            by_context[contexts[row.prompt]].append(row)
        line: list[object] = [way.peer, way.precision, way.setting]
        for context in contexts:
            ttfts = [row.ttft for row in by_context[context]]
            line.append(round(median(ttfts) * 1e3, 1) if ttfts else "-")
        for context in contexts:
            tpots = _tpots(by_context[context])
            line.append(round(median(tpots) * 1e3, 2) if tpots else "-")
        line.append(round(way.peak_mib))
        lines.append(line)
    return header, lines


def tally(verdicts: Iterable[str]) -> str:
    """How many there are of each, the worst first; `-` for none."""
    found = Counter(verdicts)
    order = ("no", "differs", "near-tie", "yes")
    return ", ".join(f"{found[word]} {word}" for word in order if found[word]) or "-"


def failures_lines(failures: Mapping[str, str]) -> list[str]:
    """What could not be run, and why, a line each."""
    return [f"not run: {name}: {reason}" for name, reason in failures.items()]


def _of(rows: Sequence[Row], way: Way, temperature: float) -> list[Row]:
    return [
        row
        for row in rows
        if (row.peer, row.setting, row.temperature) == (way.peer, way.setting, temperature)
    ]


def _speeds(rows: Sequence[Row]) -> list[float]:
    """Tokens a second of each repeat."""
    repeats: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        repeats[row.repeat].append(row)
    return [
        sum(row.further for row in found) / sum(row.seconds for row in found)
        for found in repeats.values()
    ]


def _tpots(rows: Sequence[Row]) -> list[float]:
    return [row.seconds / row.further for row in rows if row.further]
