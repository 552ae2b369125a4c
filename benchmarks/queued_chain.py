r"""Measures what rows and chains of drafted tokens take on a device, in each form of its graph.

    python benchmarks/queued_chain.py BUNDLE --device webgpu:0

The draft of a bundle, or its target if it has none, makes chains behind a text: with logits that
come back for each token, with rows that the device ranks, and queued, so that the host waits once.
A row is a chain of one. Forms are standard operators, fused ones, and these in half precision
(docs/graph.md), as far as the device has them. All take turns. Cells are the least of several:
milliseconds of wall time, and of the processor's (`time.process_time`), which tell the host's share
where a driver leaves the device's work out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from common import count, exit_code, names, print_result, print_table

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.bundle.options import GraphForm
from edgespec.errors import InputError
from edgespec.llm.load.portable import in_halves, portable_graph
from edgespec.runtime.engines.portable import (
    accuracy_level,
    computing_nodes,
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

    from edgespec.bundle import Bundle, Role

_FORMS = ("standard", "fused", "halves")
_TEXT = 32  # rows that chains stand behind


def _files(bundle: Bundle, name: str, device: str) -> dict[str, Path]:
    """Returns the graphs of a role for a device, by form."""
    half = examined(device).half
    level = accuracy_level(device)
    files = {"standard": portable_graph(bundle, name, GraphForm(level, half))}
    fused = fused_operators(device)
    if fused is not None:
        files["fused"] = portable_graph(bundle, name, GraphForm(level, half, fused))
        if (file := in_halves(files["fused"])) is not None:
            files["halves"] = file
    return files


class _Chains:
    """Makes chains behind a text with a model on a device.

    Args:
        role: the role.
        file: its graph.
        device: name of the device.
        length: tokens of a chain.
    """

    def __init__(self, role: Role, file: Path, device: str, length: int) -> None:
        graph = open_graph(device, file, 1, role.vocab_size)
        if not isinstance(graph, RankingGraph):
            raise InputError(f"{device} queues no calls: use cuda:0 or webgpu:0")
        pool = KVPool(role.native.pools, graph.kv, None, graph)
        ropes = [RotationTable(each) for each in role.rope_tables if each.name in role.native.ropes]
        self._model = Model(graph, pool, ropes, device=device)
        self._sequence = self._model.sequence([7] * _TEXT)
        rows = Rows(self._sequence, [7] * _TEXT, [AFTER, *range(_TEXT - 1)], [])
        self._model.forward([rows])
        rows.accept(range(_TEXT))
        self._length = length

    def row(self) -> list[int]:
        """The best token behind one row."""
        return self._alone(lambda rows: int(ranked_rows(self._model, [rows])[0].tokens[0, 0]), 1)

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

    def _alone(self, best: Callable[[Rows], int], length: int | None = None) -> list[int]:
        slots: list[int] = []
        tokens = [9]
        for _ in range(length or self._length):
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
    parser.add_argument("--forms", type=lambda text: names(text, _FORMS), default=_FORMS)
    given = parser.parse_args()
    bundle = bundles.load(given.bundle)
    name = DRAFT if DRAFT in bundle.manifest.roles else TARGET
    role = bundle.manifest.roles[name]
    found = _files(bundle, name, given.device)
    files = {form: file for form, file in found.items() if form in given.forms}
    ways: dict[tuple[str, str], Callable[[], list[int]]] = {}
    for form, file in files.items():
        chains = _Chains(role, file, given.device, given.length)
        ways[form, "a row"] = chains.row
        ways[form, "logits"] = chains.by_logits
        ways[form, "ranked"] = chains.ranked
        ways[form, "queued"] = chains.queued
    made = {key: way() for key, way in ways.items()}
    least = {key: (float("inf"), float("inf")) for key in ways}
    for _ in range(given.repeats):
        for key, way in ways.items():
            begin = time.perf_counter(), time.process_time()
            way()
            took = time.perf_counter() - begin[0], time.process_time() - begin[1]
            least[key] = min(least[key][0], took[0]), min(least[key][1], took[1])
    nodes = {form: computing_nodes(file) / role.layers for form, file in files.items()}
    rows = [
        (form, f"{nodes[form]:.1f}", way, *(f"{1e3 * each:.2f}" for each in took))
        for (form, way), took in least.items()
    ]
    chain = f"chain of {given.length}"
    print_table(("graph", "nodes a layer", chain, "wall, ms", "processor, ms"), rows)
    same = {
        form: made[form, "logits"] == made[form, "ranked"] == made[form, "queued"] for form in files
    }
    seconds = {" ".join(key): {"wall": w, "processor": own} for key, (w, own) in least.items()}
    facts = {"device": given.device, "nodes": nodes, "same": same, "seconds": seconds}
    print_result("queued-chain", facts)


if __name__ == "__main__":
    sys.exit(exit_code(main))
