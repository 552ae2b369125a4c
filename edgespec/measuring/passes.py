"""What a pass costs on this machine, and how near that is to the limit of its memory."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from edgespec.bundle import TARGET, Bundle
from edgespec.bundle.manifest import Role
from edgespec.runtime.kernels import multiply_add
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.system.bandwidth import best_rate

ROWS = (1, 2, 4, 8, 16)
"""Numbers of rows that are told of."""

_TOKEN = 1  # of all rows: what a pass costs does not depend on it
_BEHIND, _REPEATS = 256, 5
PROMPT = 512
"""Rows of a prompt whose time is told."""

_PROMPTS = 3
_BLOCKS = 1 << 16  # that a thread multiplies in a call, some milliseconds


class PassTimer:
    """Times passes of a model over rows that follow each other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._sequence = model.sequence([])

    def seconds(
        self,
        rows: int,
        length: int,
        clock: Callable[[], float] = time.perf_counter,
        scored: int | None = None,
    ) -> float:
        """Returns the seconds of a pass behind a text, for which the cache is given slots unread.

        Args:
            rows: number of rows.
            length: tokens of the text; not fewer than before.
            clock: tells seconds.
            scored: how many of the last rows have logits; None: all.
        """
        model = self._model
        sequence = self._sequence
        sequence.append(model.pool.take(length - sequence.length))
        first = 0 if scored is None else rows - scored
        parents = [AFTER, *range(rows - 1)]
        call = Rows(sequence, [_TOKEN] * rows, parents, list(range(first, rows)))
        begin = clock()
        model.forward([call])
        seconds = clock() - begin
        call.accept([])
        return seconds

    def close(self) -> None:
        """Frees the slots."""
        self._sequence.free()


def pass_seconds(model: Model, rows: Sequence[int] = ROWS) -> dict[int, float]:
    """Returns the least wall time of a pass of each number of rows, which take turns."""
    timer = PassTimer(model)
    least = defaultdict[int, float](lambda: float("inf"))
    limit = model.pool.limit
    length = _BEHIND if limit is None else min(_BEHIND, limit - max(rows))
    for _ in range(1 + _REPEATS):
        for count in rows:
            least[count] = min(least[count], timer.seconds(count, length))
    timer.close()
    return dict(least)


def prompt_seconds(model: Model) -> tuple[int, float]:
    """Returns the rows of a prompt, `PROMPT` where the pool allows, and the least time of one."""
    timer = PassTimer(model)
    limit = model.pool.limit
    rows = PROMPT if limit is None else min(PROMPT, limit)
    least = min(timer.seconds(rows, 0, scored=1) for _ in range(_PROMPTS))
    timer.close()
    return rows, least


def integer_rate(threads: int, seconds: float) -> float:
    """Returns the products a second that so many threads multiply and add, at best.

    They are those of a quantized matrix, a level times an activation's, by the instructions that
    the kernels use. What they read lies in registers and in the first cache.

    Args:
        threads: number of threads.
        seconds: how long is multiplied.
    """
    return best_rate(lambda _: multiply_add(_BLOCKS), threads, seconds)


def prompt_products(role: Role) -> int:
    """Returns the products of weights and activations that a row of a prompt takes.

    Of the output projection there are none, since the last row alone is scored.
    """
    tables = 1 if role.tied or not role.writes else 2
    return role.active_parameters - tables * role.vocab_size * role.hidden_size


def row_bytes(bundle: Bundle) -> int:
    """Returns the bytes of weights that a pass of the target over one row reads.

    Of the embedding that is next to nothing, and of experts what is chosen.
    """
    file = bundle.path / bundle.manifest.roles[TARGET].native.graph
    graph = onnx.load(file, load_external_data=False).graph
    tensors = {each.name: each for each in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    shares = dict[str, float]()
    for node in graph.node:
        share = 0.0 if node.op_type == "BlockEmbedding" else 1.0
        if node.op_type == "ExpertLinear":
            (experts,) = (each.i for each in node.attribute if each.name == "experts")
            maker = makers[node.input[1]]
            chosen = (
                numpy_helper.to_array(tensors[maker.input[1]]) if maker.op_type == "TopK" else 1
            )
            share = float(np.max(chosen)) / experts
        for name in node.input:
            shares[name] = max(shares.get(name, 0.0), share)
    sizes = {
        name: [int(entry.value) for entry in each.external_data if entry.key == "length"]
        or [len(each.raw_data)]
        for name, each in tensors.items()
    }
    return int(sum(shares.get(name, 0.0) * size[0] for name, size in sizes.items()))
