r"""Measures what a chain of drafted tokens takes on a device, queued and call by call.

    python benchmarks/queued_chain.py BUNDLE --device webgpu:0

The draft of a bundle, or its target if it has none, makes chains behind a text: with logits that
come back for each token, with rows that the device ranks, and queued, so that the host waits once.
All take turns. Cells are the least of several: milliseconds of wall time, and of the processor's
(`time.process_time`), which tell the host's share where a driver leaves the device's work out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from common import count, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError
from edgespec.llm.load.portable import portable_graph
from edgespec.runtime.engines.portable import (
    accuracy_level,
    examined,
    fused_operators,
    open_graph,
)
from edgespec.runtime.sequences.model import (
    AFTER,
    Model,
    RankingGraph,
    RotationTable,
    Rows,
)
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.queue import ranked_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgespec.bundle import Bundle

_TEXT = 32  # rows that chains stand behind


class _Chains:
    """Makes chains behind a text with a model on a device.

    Args:
        bundle: the bundle.
        device: name of the device.
        length: tokens of a chain.
    """

    def __init__(self, bundle: Bundle, device: str, length: int) -> None:
        name = DRAFT if DRAFT in bundle.manifest.roles else TARGET
        role = bundle.manifest.roles[name]
        half = examined(device).half
        file = portable_graph(
            bundle, name, accuracy_level(device), half, fused=fused_operators(device)
        )
        graph = open_graph(device, file, 1, role.vocab_size)
        if not isinstance(graph, RankingGraph):
            raise InputError(f"{device} queues no calls: use cuda:0 or webgpu:0")
        pool = KVPool(role.native.pools, graph.kv, None, graph)
        ropes = [RotationTable(each) for each in role.rope_tables if each.name in role.native.ropes]
        self._model = Model(graph, pool, ropes, device=device)
        self._model.ranking = graph
        self._sequence = self._model.sequence([7] * _TEXT)
        rows = Rows(self._sequence, [7] * _TEXT, [AFTER, *range(_TEXT - 1)], [])
        self._model.forward([rows])
        rows.accept(range(_TEXT))
        self._length = length

    def by_logits(self) -> list[int]:
        """Each call waits for the logits of the one before."""
        return self._alone(lambda rows: int(self._model.forward([rows])[0][0].argmax()))

    def ranked(self) -> list[int]:
        """Each call waits for the best tokens of the one before."""
        return self._alone(lambda rows: int(ranked_rows(self._model, [rows])[0].tokens[0, 0]))

    def queued(self) -> list[int]:
        """No call waits for another."""
        rows = Rows(self._sequence, [9], [AFTER], [0])
        [found] = ranked_rows(self._model, [rows], self._length - 1)
        self._model.pool.free([*rows.slots, *found.slots])
        return [int(token) for token in found.tokens[:, 0]]

    def _alone(self, best: Callable[[Rows], int]) -> list[int]:
        slots: list[int] = []
        tokens = [9]
        for _ in range(self._length):
            rows = Rows(self._sequence, [tokens[-1]], [AFTER], [0], slots)
            tokens.append(best(rows))
            slots = [*slots, *rows.slots]
        self._model.pool.free(slots)
        return tokens[1:]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--device", default="webgpu:0")
    parser.add_argument("--length", type=count, default=5)
    parser.add_argument("--repeats", type=count, default=20)
    given = parser.parse_args()
    chains = _Chains(bundles.load(given.bundle), given.device, given.length)
    ways = {"logits": chains.by_logits, "ranked": chains.ranked, "queued": chains.queued}
    made = {name: way() for name, way in ways.items()}
    least = {name: (float("inf"), float("inf")) for name in ways}
    for _ in range(given.repeats):
        for name, way in ways.items():
            begin = time.perf_counter(), time.process_time()
            way()
            took = time.perf_counter() - begin[0], time.process_time() - begin[1]
            least[name] = min(least[name][0], took[0]), min(least[name][1], took[1])
    rows = [(name, *(f"{1e3 * each:.2f}" for each in took)) for name, took in least.items()]
    print_table((f"chain of {given.length}", "wall, ms", "processor, ms"), rows)
    same = len({tuple(each) for each in made.values()}) == 1
    seconds = {name: {"wall": wall, "processor": own} for name, (wall, own) in least.items()}
    print_result("queued-chain", {"device": given.device, "same": same, "seconds": seconds})


if __name__ == "__main__":
    sys.exit(exit_code(main))
