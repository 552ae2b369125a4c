"""Tables as Markdown, for reports that are pasted somewhere."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Formats a Markdown table, with columns of numbers aligned to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]
    rule = ["-" * (width - 1) + (":" if r else "-") for width, r in zip(widths, right, strict=True)]
    lines = []
    for row in (cells[0], rule, *cells[1:]):
        padded = zip(row, widths, right, strict=True)
        lines.append(
            "| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in padded) + " |"
        )
    return "\n".join(lines)
