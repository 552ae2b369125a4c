r"""Computes what cores of two kinds lose because a pass is cut into parts.

    python benchmarks/unequal_cores.py BUNDLE [--fast 6] [--slow 8] [--speed 0.5]

A core that is done takes the next part of a matrix (`runtime/kernels/matrices.h`), so that slow
cores hold nobody up for longer than a part. For all matrices of the target, one after the other,
the time until the last part is done is compared with that of cores which share the work by their
speeds. A part takes as long as its bytes; what threads cost, and that they share memory, is not
counted.
"""

from __future__ import annotations

import argparse
import heapq
import re
import sys
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from common import count, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.bundle import TARGET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgespec.bundle import Bundle

_SOURCE = Path(__file__).parents[1] / "runtime" / "kernels" / "matrices.h"


def parts_of(sizes: Sequence[tuple[int, int]]) -> list[float]:
    """Returns the bytes of the parts into which a node's matrices are cut.

    Args:
        sizes: bytes of each matrix, and its tiles of 16 columns.
    """
    source = _SOURCE.read_text(encoding="utf-8")
    least = 1 << int(re.findall(r"PartBytes = 1 << (\d+)", source)[0])
    most = int(re.findall(r"MostParts = (\d+)", source)[0])
    parts = list[float]()
    for size, tiles in sizes:
        number = min(max(1, size // least), most, tiles)
        ends = [tiles * each // number for each in range(number + 1)]
        parts += [size / tiles * (ends[i + 1] - ends[i]) for i in range(number)]
    return parts


def seconds(parts: Sequence[float], speeds: Sequence[float]) -> float:
    """Returns when the last part is done, if each core takes the next one as soon as it is free."""
    free = [(0.0, speed) for speed in speeds]
    heapq.heapify(free)
    last = 0.0
    for part in parts:
        begin, speed = heapq.heappop(free)
        end = begin + part / speed
        last = max(last, end)
        heapq.heappush(free, (end, speed))
    return last


def loss(nodes: Sequence[Sequence[tuple[int, int]]], speeds: Sequence[float]) -> float:
    """Returns the time of nodes, one after the other, to that of work shared by speed."""
    taken = sum(seconds(parts_of(sizes), speeds) for sizes in nodes)
    whole = sum(size for sizes in nodes for size, _ in sizes)
    return taken / (whole / sum(speeds))


def matrices(bundle: Bundle) -> Iterator[list[tuple[int, int]]]:
    """Yields the bytes and tiles of each matrix of the target's products, node by node."""
    file = bundle.path / bundle.manifest.roles[TARGET].native.graph
    graph = onnx.load(file, load_external_data=False).graph
    shapes = {each.name: list(each.dims) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "BlockLinear":
            tiles = [shapes[name] for name in node.input[3:]]
            yield [(prod(shape), shape[0]) for shape in tiles]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--fast", type=count, default=6)
    parser.add_argument("--slow", type=count, default=8)
    parser.add_argument("--speed", type=float, default=0.5, help="of a slow core, in fast ones")
    given = parser.parse_args()
    nodes = list(matrices(bundles.load(given.bundle)))
    cores = [1.0] * given.fast + [given.speed] * given.slow
    ways = {
        f"{given.fast} fast": cores[: given.fast],
        f"{given.fast} fast, {given.slow} slow": cores,
    }
    found = {name: loss(nodes, speeds) for name, speeds in ways.items()}
    rows = [
        (name, f"{sum(ways[name]):.1f}", f"{each:.3f}", f"{sum(ways[name]) / each:.2f}")
        for name, each in found.items()
    ]
    print_table(("cores", "sum of speeds", "time to the least", "worth in fast cores"), rows)
    print_result("unequal-cores", {"speed": given.speed, "loss": found})


if __name__ == "__main__":
    sys.exit(exit_code(main))
