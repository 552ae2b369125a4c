"""The comparison as a picture."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from peers.base import PeerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from peers.lines import Line


def require_matplotlib() -> None:
    """Say so before anything is measured.

    Raises:
        PeerError: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise PeerError("--png draws with matplotlib: pip install 'edgespec[bench]'")


def draw(file: Path, title: str, lines: Sequence[Line]) -> None:
    """Bars of tokens a second with their ranges, a panel for each temperature."""
    from matplotlib.figure import Figure

    temperatures = list(dict.fromkeys(line.temperature for line in lines))
    peers = list(dict.fromkeys(line.way.peer for line in lines))
    most = max(len([line for line in lines if line.temperature == t]) for t in temperatures)
    size = (8, 1.2 + 0.35 * most * len(temperatures))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    for place, temperature in enumerate(temperatures, 1):
        mine = [line for line in lines if line.temperature == temperature]
        axes = figure.add_subplot(len(temperatures), 1, place)
        bars = axes.barh(
            [line.way.name for line in mine],
            [line.tokens_per_second for line in mine],
            color=[f"C{peers.index(line.way.peer)}" for line in mine],
            xerr=[
                [line.tokens_per_second - line.least for line in mine],
                [line.most - line.tokens_per_second for line in mine],
            ],
        )
        axes.bar_label(bars, fmt="%g", padding=4)
        axes.margins(x=0.15)  # room for the longest bar's label
        axes.invert_yaxis()
        axes.set(title=f"T={temperature:g}", xlabel="tokens/s")
    figure.savefig(file)
