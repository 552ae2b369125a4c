"""Calls of portable graphs, made from those of native graphs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

UNSEEN = -1e30


def bias_of(feeds, capacity, window=0):
    """What each row of a native graph's call sees, [S, capacity + S]: 0, or `UNSEEN`."""
    parents, rows = feeds["parent"], len(feeds["parent"])
    bias = np.full((rows, capacity + rows), UNSEEN, np.float32)
    for row in range(rows):
        ancestors, each = [], row
        while each >= 0:
            ancestors.append(capacity + each)
            each = parents[each]
        first, end = feeds["starts"][feeds["sequence"][row] :][:2]
        seen = [*feeds["context"][first:end], *ancestors[::-1]]
        bias[row, seen[-window:]] = 0
    return bias


def portable_feeds(feeds):
    """The inputs of a portable graph from those of a native one; pools may be of float16."""
    capacity = next(each.shape[2] for name, each in feeds.items() if name.startswith("pool."))
    dropped = ("write", "parent", "sequence", "context", "starts")
    found = {name: each for name, each in feeds.items() if name not in dropped}
    return _Feeds(found, feeds, capacity)


class _Feeds(dict):
    """Inputs, of which biases are made when they are asked for."""

    def __init__(self, found, native, capacity):
        super().__init__(found)
        self._native, self._capacity = native, capacity

    def __missing__(self, name):
        assert name.startswith("bias")
        window = int(name.partition(".")[2] or 0)
        return bias_of(self._native, self._capacity, window)


class PortableGraph:
    """A portable graph in ONNX Runtime, called with a native graph's inputs."""

    def __init__(self, graph, threads=1):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(graph, options, ["CPUExecutionProvider"])
        self.inputs = [each.name for each in self._session.get_inputs()]
        self.outputs = [each.name for each in self._session.get_outputs()]

    def __call__(self, feeds):
        """Returns outputs by name."""
        all_feeds = portable_feeds(feeds)
        results = self._session.run(None, {name: all_feeds[name] for name in self.inputs})
        return dict(zip(self.outputs, results, strict=True))
