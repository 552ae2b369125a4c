r"""Measures what a pass costs: T(n) of the native graph, and of what it is compared with.

    python benchmarks/pass_cost.py BUNDLE --portable
    python benchmarks/pass_cost.py BUNDLE --gguf MODEL.gguf --peers ik_llama.cpp

A cell is the processor time of one thread (`time.process_time`), the least of several, since
neighbours on the machine make wall time and means of it useless. All take turns at each number of
rows. Rows follow each other, all of them with logits, behind a text of each length; peers read
the text themselves, and the native cache is given one of that length without reading it.

`--portable` adds the graph of standard operators on ONNX Runtime, made from the same weights.
`--gguf` names the file that peers read: best the one that the bundle was made of.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from common import count, counts, exit_code, print_result, print_table
from peers import PLAIN, Loading, Peer

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.llm.load.models import load_model
from edgespec.measuring.passes import PassTimer
from edgespec.runtime.kernels import kernel_name, library
from edgespec.runtime.plan import HOST, Placement
from edgespec.system.environment import peak_rss_mb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.bundle import Bundle

_ROWS = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64]


class _Own:
    """The bundle's target on the CPU, by its native or its portable graph."""

    def __init__(self, bundle: Bundle, native: bool) -> None:
        if library() is None:
            raise InputError("there is no library of operators: install edgespec")
        begin = time.perf_counter()
        model = load_model(bundle, TARGET, Placement(HOST, HOST, native), threads=1)
        self.loading = time.perf_counter() - begin
        self._timer = PassTimer(model)

    def seconds(self, rows: int, length: int) -> float:
        """Returns the processor time of a pass over rows, all scored, behind a text."""
        return self._timer.seconds(rows, length, time.process_time)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--portable", action="store_true")
    parser.add_argument("--gguf", type=Path, help="the file that peers read")
    parser.add_argument("--peers", default="", help="such as ik_llama.cpp; with --gguf")
    parser.add_argument("--rows", type=counts, default=_ROWS)
    parser.add_argument("--lengths", type=counts, default=[256])
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/edgespec-benchmarks")
    given = parser.parse_args()
    bundle = bundles.load(given.bundle)
    with ExitStack() as stack:
        native = _Own(bundle, native=True)
        timers: dict[str, _Own | Peer] = {"native": native}
        if given.portable:
            timers["portable"] = _Own(bundle, native=False)
        for name in filter(None, given.peers.split(",")):
            timers[name] = _peer(stack, name, given)
        times = {
            length: _measured(timers, given.rows, length, given.repeats)
            for length in sorted(given.lengths)
        }
    for length, found in times.items():
        print(f"\nbehind {length} tokens: ms of one thread\n")
        table = [
            [name, *(f"{1e3 * each[n]:.1f}" for n in given.rows)] for name, each in found.items()
        ]
        own = found["native"]
        table += [
            [f"native / {name}", *(f"{own[n] / each[n]:.2f}" for n in given.rows)]
            for name, each in found.items()
            if name != "native"
        ]
        table.append(["T(n) / T(1)", *(f"{own[n] / own[given.rows[0]]:.2f}" for n in given.rows)])
        print_table(["rows", *map(str, given.rows)], table)
    print(f"\nloaded in {native.loading:.2f} s; at most {peak_rss_mb():,.0f} MiB in memory")
    facts = {"loading": native.loading, "peak_rss_mb": peak_rss_mb()}
    print_result("pass_cost", {"kernels": kernel_name(), "seconds": times, **facts})


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def _peer(stack: ExitStack, name: str, given: argparse.Namespace) -> Peer:
    if given.gguf is None:
        raise InputError("--peers needs --gguf: the file that they read")
    loading = Loading(
        target=str(given.gguf.resolve()),
        draft=None,
        setting=PLAIN,
        threads=1,
        context=max(given.lengths) + max(given.rows),
        sequences=1,
        folder="",
    )
    return stack.enter_context(Peer(name, loading, given.cache))


def _measured(
    timers: dict[str, _Own | Peer], rows: Sequence[int], length: int, repeats: int
) -> dict[str, dict[int, float]]:
    """Returns the least seconds by timer and number of rows."""
    least = {name: dict.fromkeys(rows, float("inf")) for name in timers}
    for _ in range(repeats):
        for n in rows:
            for name, timer in timers.items():
                least[name][n] = min(least[name][n], timer.seconds(n, length))
    return least


if __name__ == "__main__":
    sys.exit(exit_code(main))
