"""Calls of native graphs, and the same calls of portable graphs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from edgespec.bundle.sublayers import pool_parts
from edgespec.runtime.sequences.model import RotationTable

UNSEEN = -1e30
_KV = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}
_SLOTS = 128  # of a pool, of which sequences have random ones
_NATIVE = ("write", "parent", "sequence", "context", "starts")  # inputs of native graphs alone


class Calls:
    """Calls of a native graph over several sequences, one behind the other in a pool.

    Args:
        role: the role that the graph is of.
    """

    def __init__(self, role):
        self._role = role
        self._rng = np.random.default_rng(0)
        self._free = self._rng.permutation(_SLOTS).astype(np.int32)
        self._contexts = []
        kv = role.precision.kv
        self.pools = {}
        for each in role.native.pools:
            shape = (2, each.kv_heads, _SLOTS)
            self.pools[f"pool.{each.layer}"] = np.zeros((*shape, each.dim), _KV[kv])
            if kv == "int8":
                self.pools[f"scales.{each.layer}"] = np.zeros(shape, np.float32)

    def prompts(self, lengths):
        """Inputs of a call that begins sequences, which keep their rows."""
        self._contexts = [np.zeros(0, np.int32)] * len(lengths)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        first = np.diff(sequence, prepend=-1) > 0
        feeds = self._feeds(sequence, np.where(first, -1, np.arange(len(sequence)) - 1))
        self._contexts = np.split(feeds["write"], np.cumsum(lengths)[:-1])
        self._free = self._free[len(sequence) :]
        return feeds

    def trees(self, rows):
        """Inputs of a call of random trees behind the sequences."""
        sequence = np.sort(self._rng.integers(0, len(self._contexts), rows))
        parents = np.full(rows, -1)
        for row in range(rows):
            earlier = np.flatnonzero(sequence[:row] == sequence[row])
            if len(earlier) and self._rng.random() < 0.9:
                parents[row] = self._rng.choice(earlier)
        return self._feeds(sequence, parents)

    def _feeds(self, sequence, parents):
        role = self._role
        rows = len(sequence)
        lengths = [len(each) for each in self._contexts]
        depths = np.zeros(rows, int)
        for row, parent in enumerate(parents):
            depths[row] = 0 if parent < 0 else depths[parent] + 1
        ints = {
            "write": self._free[:rows],
            "parent": parents,
            "sequence": sequence,
            "context": np.concatenate(self._contexts),
            "starts": np.cumsum([0, *lengths]),
        }
        feeds = {name: np.asarray(values, np.int32) for name, values in ints.items()}
        feeds["input_ids"] = self._rng.integers(0, role.vocab_size, rows)
        feeds["logit_rows"] = self._rng.permutation(rows)
        positions = np.take(lengths, sequence) + depths
        for table in role.rope_tables:
            if table.name in role.native.ropes:
                turns = RotationTable(table)
                feeds |= zip(turns.inputs, turns.at(positions, positions.max()), strict=True)
        return feeds | self.pools


def bias_of(feeds, capacity, parts):
    """What each row of a native graph's call sees, [S, capacity + S]: 0, or `UNSEEN`.

    Its name has further parts: "sight" if a row sees what the row does that it names, "chunks" if
    it sees its chunk of the text alone, and the length of these or of its window.
    """
    window = next((int(part) for part in parts if part.isdecimal()), 0)
    parents = feeds["parent"]
    rows = len(feeds["parent"])
    bias = np.full((rows, capacity + rows), UNSEEN, np.float32)
    for row in range(rows):
        first, end = feeds["starts"][feeds["sequence"][row] :][:2]
        own, seen = (
            [*feeds["context"][first:end], *(capacity + np.array(_path(parents, each)))]
            for each in (row, row + max(feeds["sight"][row], 0) if "sight" in parts else row)
        )
        begin = max(len(own) - window, 0) if window else 0
        if "chunks" in parts:
            begin = (len(own) - 1) // window * window
        bias[row, seen[begin:]] = 0
    return bias


def _path(parents, row):
    """The numbers of a row's ancestors and of its own."""
    return [] if row < 0 else [*_path(parents, parents[row]), row]


class PortableGraph:
    """A portable graph in ONNX Runtime, called with a native graph's inputs."""

    def __init__(self, graph, providers=("CPUExecutionProvider",)):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(graph, options, [*providers], enable_fallback=0)
        self.inputs = {each.name: each.shape for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]

    def given(self, feeds):
        """Returns the inputs for the call of a native graph."""
        given = {name: each for name, each in feeds.items() if name not in _NATIVE}
        capacity = next((each.shape[2] for each in feeds.values() if each.ndim == 4), 0)
        for name, pool in feeds.items():
            if name.startswith("pool."):
                given |= zip(pool_parts(name), np.split(pool, 2), strict=True)
        for name in self.inputs:
            if name.startswith("bias"):
                given[name] = bias_of(feeds, capacity, name.split(".")[1:])
        return {name: given[name] for name in self.inputs}

    def __call__(self, feeds):
        """Returns outputs by name."""
        results = self._session.run(None, self.given(feeds))
        return dict(zip(self._outputs, results, strict=True))
