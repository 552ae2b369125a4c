"""Tables with the results of `edgespec bench`, for a terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from edgespec.cli.tables import markdown_table
from edgespec.measuring.bench import VERDICTS, Line, Span

_DEPTHS = 8  # columns that fit eighty characters


@dataclass(frozen=True)
class Section:
    """A table with a row per setting."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def sections(lines: Sequence[Line]) -> list[Section]:
    """Returns the tables of a card."""
    speeds = tuple(
        (
            line.name, line.tokens_per_second, _span(line.tokens_per_second_range),
            f"{line.speedup_vs_plain:.2f}x", line.mean_accepted_length, _equal(line),
        )
        for line in lines
    )  # fmt: skip
    texts = tuple(
        (
            line.name, line.ttft_ms, _span(line.ttft_ms_range), line.tpot_ms,
            _span(line.tpot_ms_range),
        )
        for line in lines
    )  # fmt: skip
    rounds = tuple(
        (line.name, line.draft_ms, line.verify_ms, line.other_ms, line.outside_engines_ms)
        for line in lines
    )
    drafting = [line for line in lines if line.acceptance_by_depth]
    found = [
        Section(
            "Speed, median of the repeats",
            ("setting", "tokens/s", "range", "speedup", "tokens/round", "same text as plain"),
            speeds,
        ),
        Section(
            "Latency, median of the repeats",
            ("setting", "TTFT ms", "range", "TPOT ms", "range"),
            texts,
        ),
        Section(
            "Mean time per round in ms",
            ("setting", "draft", "verify", "other", "outside engines"),
            rounds,
        ),
    ]
    if drafting:
        depth = min(_DEPTHS, max(len(line.acceptance_by_depth) for line in drafting))
        shares = tuple((line.name, *_shares(line, depth)) for line in drafting)
        header = ("setting", *(f"{n} or more" if n == 1 else f"{n}" for n in range(1, depth + 1)))
        found.append(Section("Share of rounds by accepted draft tokens", header, shares))
    return found


def print_card(heading: Sequence[str], lines: Sequence[Line]) -> None:
    """Prints a card within eighty columns."""
    console = Console()
    for text in heading:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print()
    for section in sections(lines):
        table = Table(title=section.title, title_justify="left", box=box.SIMPLE, pad_edge=False)
        for name, cell in zip(section.header, section.rows[0], strict=True):
            table.add_column(name, justify="right" if _is_number(cell) else "left")
        for row in section.rows:
            table.add_row(*map(str, row))
        console.print(table)


def markdown(heading: Sequence[str], lines: Sequence[Line]) -> str:
    """Returns the card as Markdown."""
    parts = ["\n".join(f"* {text}" for text in heading)]
    parts += [
        f"{section.title}:\n\n{markdown_table(section.header, section.rows)}"
        for section in sections(lines)
    ]
    return "\n\n".join(parts)


def _is_number(cell: object) -> bool:
    return isinstance(cell, (int, float)) or str(cell)[:1].isdigit()


def _span(span: Span) -> str:
    return f"{span[0]}-{span[1]}"


def _equal(line: Line) -> str:
    if set(line.verdicts) == {"yes"}:
        return "yes"
    counts = [f"{line.verdicts[name]} {name}" for name in VERDICTS if name in line.verdicts]
    return ", ".join(counts)


def _shares(line: Line, depth: int) -> list[str]:
    shares = line.acceptance_by_depth[:depth]
    return [f"{share:.0%}" for share in shares] + ["0%"] * (depth - len(shares))
