"""Graphs that other programs exported, with past and present, as optimum does.

Such a graph reads rows that follow one another, behind a past that it is given whole and returns
with their keys and values. So the pool's slots are gathered for it, and each branch of a tree is a
call of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from edgespec.bundle import LOGITS
from edgespec.errors import DeviceError, first_line
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.engines.callers import raise_if_callers
from edgespec.runtime.engines.ort_session import CpuSession, session_options

_PARTS = ("key", "value")
_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class AdoptedGraph:
    """A graph of another program in a session of ONNX Runtime on the CPU.

    It takes and gives what a native graph does. A row's logits are the same in any company but for
    the last bits, since products over other numbers of rows may add up in another order.

    Args:
        graph: ONNX file, beside the file of its weights.
        threads: number of threads.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
    """

    def __init__(self, graph: Path, threads: int) -> None:
        self._session = CpuSession(graph, session_options(threads))
        self._types = {each.name: _TYPES.get(each.type) for each in self._session.get_inputs()}
        names = {each.name for each in self._session.get_outputs()}
        count = sum(name.startswith("present.") for name in names) // len(_PARTS)
        self._presents = [f"present.{layer}.{part}" for layer in range(count) for part in _PARTS]

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Floats]:
        """Makes a pass; see `NativeGraph`.

        Raises:
            DeviceError: if an operator refuses its inputs.
        """
        wanted: list[int] = feeds["logit_rows"].tolist()
        asked = set(wanted)
        order = dict[int, int]()
        logits = list[Floats]()
        for chain, past in _chains(feeds):
            places = [place for place, row in enumerate(chain) if row in asked]
            logits.append(self._read(feeds, np.array(chain), past, places))
            for place in places:
                order[chain[place]] = len(order)
        found = np.concatenate(logits)[[order[row] for row in wanted]]
        return {LOGITS: found.astype(np.float32, copy=False)}

    def _read(
        self, feeds: Mapping[str, Array], rows: Array, past: Array, places: list[int]
    ) -> Floats:
        """Reads rows that follow one another, and writes their keys and values to their slots.

        Args:
            feeds: the inputs of the pass.
            rows: [n] their numbers.
            past: [m] slots of what is before them, in order.
            places: which of the rows logits are wanted of.

        Returns:
            [number of places, V] their logits.
        """
        end = len(past) + len(rows)
        inputs: dict[str, Array] = {
            "input_ids": feeds["input_ids"][rows][None],
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(len(past), end)[None],
            "logit_rows": np.array(places or [0]),  # some operators refuse products of no rows
        }
        read = {
            name: inputs[name].astype(kind, copy=False)
            for name, kind in self._types.items()
            if name in inputs
        }
        pools = [
            feeds[f"pool.{n}"][part] for n in range(len(self._presents) // 2) for part in (0, 1)
        ]
        for name, pool in zip(self._presents, pools, strict=True):
            read[name.replace("present", "past_key_values")] = pool.take(past, axis=1)[None]
        try:
            logits, *presents = self._session.run([LOGITS, *self._presents], read)
        except Exception as error:  # its exceptions have no narrower base class
            raise_if_callers(error)
            raise DeviceError(
                f"a pass failed ({first_line(error)}): another export of the model may do"
            ) from error
        slots = feeds["write"][rows]
        for pool, present in zip(pools, presents, strict=True):
            pool[:, slots] = present[0, :, len(past) : end]
        own: Floats = logits[0]
        return own[: len(places)] if "logit_rows" in self._types else own[places]


def _chains(feeds: Mapping[str, Array]) -> Iterator[tuple[list[int], Array]]:
    """Parts rows into chains, each behind those that it needs.

    Yields:
        Numbers of rows that follow one another, and the slots of all that is before them.
    """
    parents = feeds["parent"].tolist()
    starts = feeds["starts"].tolist()
    chains: list[list[int]] = []
    of_last: dict[int, list[int]] = {}  # by the last row of a chain
    for row, parent in enumerate(parents):
        chain = of_last.pop(parent, None) if parent >= 0 else None
        if chain is None:
            chains.append(chain := [])
        chain.append(row)
        of_last[row] = chain
    for chain in chains:
        sequence = int(feeds["sequence"][chain[0]])
        ancestors = list[int]()
        row = parents[chain[0]]
        while row >= 0:
            ancestors.append(row)
            row = parents[row]
        context = feeds["context"][starts[sequence] : starts[sequence + 1]]
        yield chain, np.concatenate([context, feeds["write"][ancestors[::-1]]])
