"""Calls of native graphs as whoever runs them makes them, for one text."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from edgespec.bundle.sublayers import rope_inputs
from edgespec.runtime.kernels import library

_KV = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}


class NativeText:
    """A text and its graph; all that the text has lies in arrays of so many slots."""

    def __init__(self, folder, role, slots=256, threads=1):
        native = role.native
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(str(library()))
        self._session = ort.InferenceSession(
            folder / native.graph, options, ["CPUExecutionProvider"]
        )
        self._tables = [table for table in role.rope_tables if table.name in native.ropes]
        kv = _KV[role.precision.kv]
        self._held = {}
        for each in native.pools:
            shape = (2, each.kv_heads, slots)
            self._held[f"pool.{each.layer}"] = np.zeros((*shape, each.dim), kv)
            if kv is np.int8:
                self._held[f"scales.{each.layer}"] = np.zeros(shape, np.float32)
        for each in native.recurrent:
            self._held[f"rows.{each.layer}"] = np.zeros((slots, each.width), np.float32)
            if each.state:
                self._held[f"states.{each.layer}"] = np.zeros((1, *each.state), np.float32)
        self._recurrent = native.recurrent
        self._before = max((each.before for each in native.recurrent), default=0)
        self._free, self._slots, self._write = [*range(slots)], [], []
        self._in_state = 0  # rows of the text that are in states

    def run(self, tokens, parents, certain=0):
        """Returns all rows' logits, [S, V]; the text continues with the first `certain` rows."""
        length, count = len(self._slots), len(tokens)
        self._write, depths = self._free[:count], []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        ints = {
            "write": self._write, "parent": parents, "sequence": [0] * count,
            "context": self._slots, "starts": [0, length],
        }  # fmt: skip
        if self._recurrent:
            recent = self._slots[max(0, self._in_state - self._before) :]
            ints |= {"recent_write": self._write, "recent": recent}
            ints["recent_starts"] = [0, len(recent)]
            if any(each.state for each in self._recurrent):
                held = len(recent) - (length - self._in_state)
                ints["carry"] = [(0 if self._in_state else -1, 0, held, certain)]
        feeds = {name: np.array(values, np.int32) for name, values in ints.items()}
        feeds["input_ids"] = np.array(tokens, np.int64)
        feeds["logit_rows"] = np.arange(count)
        for table in self._tables:
            frequencies = np.array(table.inv_freq)
            angles = (length + np.array(depths))[:, None] * frequencies
            factor = np.where(frequencies == 0, 1.0, table.attention_factor)
            for name, turn in zip(rope_inputs(table.name), (np.cos, np.sin), strict=True):
                feeds[name] = (turn(angles) * factor).astype(np.float32)
        logits, *self.more = self._session.run(None, feeds | self._held)
        self._in_state = length + certain
        self.accept(range(certain))
        return logits

    def accept(self, rows):
        """Continues the text with rows of the last call, behind those that it has already."""
        slots = [self._write[row] for row in rows]
        self._slots += slots
        self._free = [each for each in self._free if each not in slots]
