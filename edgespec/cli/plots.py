"""Plots of cost curves, as text or PNG, and of benchmark results as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import InputError
from edgespec.system.files import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from edgespec.measuring.bench import Line

Curves = Mapping[str, Mapping[int, float]]
"""Curves by label; each has milliseconds by number of rows."""

_MARKS = "ox+*#@%&"
_HEIGHT, _STEP = 10, 10  # lines of the plot; characters between two numbers of rows


def text_plot(curves: Curves) -> str:
    """Plots milliseconds over rows, which are evenly spaced, with a mark for each curve."""
    rows = sorted({n for curve in curves.values() for n in curve})
    top = max(ms for curve in curves.values() for ms in curve.values())
    lines = [[" "] * (_STEP * (len(rows) - 1) + 1) for _ in range(_HEIGHT + 1)]
    marked = list(zip(_MARKS, curves.items(), strict=False))
    for mark, (_, curve) in reversed(marked):  # where curves meet, the first one shows
        for n, ms in curve.items():
            lines[round(ms / top * _HEIGHT)][rows.index(n) * _STEP] = mark
    scale = {0: "0", _HEIGHT // 2: f"{top / 2:.3g}", _HEIGHT: f"{top:.3g} ms"}
    picture = [
        f"{scale.get(height, ''):>9} |{''.join(line)}".rstrip()
        for height, line in reversed(list(enumerate(lines)))
    ]
    axis = "".join(str(n).ljust(_STEP) for n in rows).rstrip()
    legend = [f"{mark:>9}  {label}" for mark, (label, _) in marked]
    return "\n".join([*picture, f"{'rows':>9}  {axis}", *legend])


def check_png(path: Path) -> None:
    """Checks that a PNG can be saved, before minutes are spent on measurements.

    Raises:
        InputError: if the name or folder is wrong, or matplotlib is missing.
    """
    if path.suffix.lower() != ".png":
        raise InputError(f"{path}: give --png a file name that ends in .png")
    if path.is_dir():
        raise InputError(f"{path} is a folder: give --png the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}: create it first")
    if find_spec("matplotlib") is None:
        raise InputError("--png needs matplotlib: pip install 'edgespec[bench]'")


def save_png(path: Path, panels: Mapping[str, Curves], rows: Sequence[int]) -> None:
    """Saves a plot with one panel per entry, side by side.

    Args:
        path: file to write.
        panels: curves by title of the panel.
        rows: numbers of rows on the axis.

    Raises:
        InputError: if the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 4.5), layout="constrained")
    for place, (title, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), place)
        for label, curve in curves.items():
            axes.plot(list(curve), list(curve.values()), marker="o", label=label)
        axes.set(title=title, xlabel="rows of a call", ylabel="ms", xscale="log", ylim=(0, None))
        axes.set_xticks(rows, [str(n) for n in rows])
        axes.minorticks_off()
        axes.legend()
    _save(figure, path)


def save_bench_png(path: Path, lines: Sequence[Line], title: str) -> None:
    """Saves a plot of each setting's speed with its range, and of its accepted draft tokens.

    Raises:
        InputError: if the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(title, parse_math=False)  # the folder's name may contain dollar signs
    speeds, depths = figure.subplots(1, 2)
    names = [line.name for line in lines]
    ranges = [line.tokens_per_second_range for line in lines]
    middles = [line.tokens_per_second for line in lines]
    spread = [
        [middle - least for middle, (least, _) in zip(middles, ranges, strict=True)],
        [most - middle for middle, (_, most) in zip(middles, ranges, strict=True)],
    ]
    bars = speeds.bar(names, middles, yerr=spread, capsize=4)
    speeds.bar_label(bars, [f"{line.speedup_vs_plain:.2f}x" for line in lines], padding=3)
    speeds.set(ylabel="tokens/s", ylim=(0, 1.1 * max(most for _, most in ranges)))
    for line in lines:
        if line.acceptance_by_depth:
            shares = line.acceptance_by_depth
            depths.plot(range(1, len(shares) + 1), shares, marker="o", label=line.name)
    depths.set(xlabel="draft tokens", ylabel="share of rounds that accepted them", ylim=(0, 1))
    if depths.lines:
        depths.legend()
        depths.xaxis.get_major_locator().set_params(integer=True)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with replaced(path) as partial:
        figure.savefig(partial, format="png")
