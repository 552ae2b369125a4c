"""A model on an engine, and one text's progress through it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.bundle import Bundle, Role
from edgespec.errors import BundleError
from edgespec.runtime.buckets import ROW_BUCKETS, capacity_bucket, row_bucket
from edgespec.runtime.engines import Array, Engine, Executable, StageFile, StageOutputs

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Results = Mapping[str, Array]

_CAUSAL: Mask = np.tri(ROW_BUCKETS[-1], dtype=np.bool_)


@dataclass(frozen=True)
class TextSizes:
    """How large texts and the calls that read them get, so that memory holds them.

    Attributes:
        prefill_chunk: rows of one call that reads a text, one of `ROW_BUCKETS`.
        cache_rows: rows that a cache is expected to grow to; 0: not known.
    """

    prefill_chunk: int = ROW_BUCKETS[-1]
    cache_rows: int = 0


class Model:
    """One role of a bundle, compiled; shared by any number of texts, one call at a time.

    Attributes:
        role: the manifest's description.
        device: where it runs, as `engine:device`.
        seconds: time spent inside the engine so far.
        sizes: of the texts to come.
    """

    def __init__(self, role: Role, executable: Executable, device: str) -> None:
        self.role = role
        self.device = device
        self.seconds = 0.0
        self.executable = executable
        self.sizes = TextSizes()
        self._feeds: dict[tuple[int, int, int], _Feeds] = {}
        self._rope = _Rope(role)

    @classmethod
    def load(cls, bundle: Bundle, name: str, engine: Engine, threads: int) -> Model:
        """Compile the role `name` of a bundle.

        Raises:
            BundleError: if its stages are of a later kind.
            DeviceError: if the engine refuses it.
        """
        role = bundle.manifest.roles[name]
        if len(role.stages) != 1:
            raise BundleError(
                f"{bundle.path}: {name} has {len(role.stages)} stages, this edgespec runs 1: "
                "install a newer edgespec, or export the checkpoint with this one"
            )
        stage = StageFile(
            graph=bundle.path / role.stages[0].graph,
            data=bundle.path / role.stages[0].data,
            key=f"{bundle.digest}-{name}",
            cache_shape=(role.layers, 2, role.kv_heads, role.head_dim),
            kv_dtype={"fp16": "float16", "fp32": "float32"}[role.precision.kv],
            block_size=role.precision.block_size,
            results=tuple(
                (output.name, output.dtype, tuple(map(int, output.shape[1:])))
                for output in role.stages[0].results
            ),
        )
        return cls(role, engine.compile(stage, threads), engine.name)

    def feeds(self, rows: int, capacity: int, logit_rows: int) -> _Feeds:
        """The input buffers of one shape, made once."""
        shape = (rows, capacity, logit_rows)
        if shape not in self._feeds:
            # Texts grow: buffers of smaller capacities are not needed again soon.
            self._feeds = {k: v for k, v in self._feeds.items() if k[1] == capacity}
            self._feeds[shape] = _Feeds(self.role, self._rope, shape)
        return self._feeds[shape]


@dataclass(frozen=True)
class Rows:
    """New rows of one call.

    Attributes:
        tokens: [n] ids.
        depths: [n] positions, counted from the end of the committed text.
        mask: [n, scratch + n] what each row sees of the scratch rows and of these rows. All see
            the committed text.
    """

    tokens: Sequence[int] | npt.NDArray[np.int64]
    depths: Sequence[int] | npt.NDArray[np.int64]
    mask: Mask


class Runner:
    """One text in a model: its KV cache, how much of it is text, and scratch rows behind that.

    Attributes:
        model: the compiled model.
        length: committed rows; the tokens they stand for are part of the text for good.
        scratch: rows behind `length` that hold a draft's levels.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.length = 0
        self.scratch = 0
        self._cache = model.executable.new_cache(capacity_bucket(1), model.sizes.cache_rows)
        self._outputs: StageOutputs | None = None

    def prefill(self, tokens: Sequence[int]) -> Results:
        """Commit these tokens, chunk by chunk; scratch rows are forgotten.

        Returns:
            The graph's results for the last one, [1, …] each, valid until the next call.
        """
        self.scratch = 0
        for rows in self.chunks(len(tokens)):
            part, tokens = tokens[:rows], tokens[rows:]
            causal = _CAUSAL[: len(part), : len(part)]
            outputs = self._run(Rows(part, range(len(part)), causal), last_only=True)
            self._store(range(len(part)), self.length)
            self.length += len(part)
        return outputs.results

    def chunks(self, rows: int) -> list[int]:
        """Rows of each call that `prefill` makes for so many tokens."""
        most = self.model.sizes.prefill_chunk
        return [most] * (rows // most) + [rows % most] * (rows % most > 0)

    def skip(self, rows: int) -> None:
        """Commit rows that were never computed, to time calls at any length; they hold zeros."""
        self.length += rows
        self._make_room(self.length)

    def verify(self, rows: Rows) -> Results:
        """Run rows without keeping anything; `commit` keeps what the verdict accepts.

        Returns:
            The graph's results, [n or more, …] each, valid until the next call.
        """
        return self._run(rows, last_only=False).results

    def commit(self, rows: Sequence[int]) -> None:
        """Make these rows of the last `verify` text, in this order."""
        self._store(rows, self.length)
        self.length += len(rows)

    def draft(self, rows: Rows) -> Results:
        """Run rows and keep them as scratch, visible to later rows whose mask says so.

        Returns:
            The graph's results, [n or more, …] each, valid until the next call.
        """
        results = self._run(rows, last_only=False).results
        self._store(range(len(rows.tokens)), self.length + self.scratch)
        self.scratch += len(rows.tokens)
        return results

    def keep(self, scratch: Sequence[int]) -> None:
        """Make these scratch rows text, in this order (ascending), and forget the others."""
        self._cache.move([self.length + row for row in scratch], self.length)
        self.length += len(scratch)
        self.scratch = 0

    def _run(self, rows: Rows, last_only: bool) -> StageOutputs:
        n = len(rows.tokens)
        bucket = row_bucket(n)
        feeds = self.model.feeds(bucket, self._cache.capacity, 1 if last_only else bucket)
        feeds.fill(rows, self.length, self.scratch, last_only)
        begin = time.perf_counter()
        self._outputs = self.model.executable.run(feeds.arrays, self._cache)
        self.model.seconds += time.perf_counter() - begin
        return self._outputs

    def _store(self, rows: Sequence[int], start: int) -> None:
        assert self._outputs is not None
        self._make_room(start + len(rows))
        self._cache.write(self._outputs.new_kv, rows, start)

    def _make_room(self, rows: int) -> None:
        if rows > self._cache.capacity:
            self._cache.grow(capacity_bucket(rows))


class _Feeds:
    """Input buffers of one shape (S rows, capacity C, R rows of logits), filled for each call."""

    def __init__(self, role: Role, rope: _Rope, shape: tuple[int, int, int]) -> None:
        rows, capacity, logit_rows = shape
        self._capacity = capacity
        self._off = np.float32(role.bias_off)
        self._rope_table = rope.table(capacity + rows)
        self._places = np.zeros((2, rows), np.int64)  # ids and positions
        self._rope = np.zeros((2, rows, role.head_dim), np.float32)
        self._bias = np.full((rows, capacity + rows), self._off, np.float32)
        self._logit_rows = np.arange(logit_rows, dtype=np.int64)
        self.arrays: dict[str, Array] = {
            "input_ids": self._places[0],
            "rope_cos": self._rope[0],
            "rope_sin": self._rope[1],
            "attention_bias": self._bias,
            "lengths": np.array([capacity, rows], np.int64),
            "logit_rows": self._logit_rows,
        }

    def fill(self, rows: Rows, length: int, scratch: int, last_only: bool) -> None:
        """Describe these rows; rows of padding see themselves, since all-masked rows give NaN."""
        n, capacity, bias = len(rows.tokens), self._capacity, self._bias
        self._places[:, :n] = rows.tokens, rows.depths
        positions = self._places[1] + length
        # Real rows lie within the table; what padding holds there does not matter.
        self._rope_table.take(positions, axis=1, out=self._rope, mode="clip")
        bias.fill(self._off)
        bias[:n, :length] = 0
        if scratch:
            np.copyto(bias[:n, length : length + scratch], 0, where=rows.mask[:, :scratch])
        np.copyto(bias[:n, capacity : capacity + n], 0, where=rows.mask[:, scratch:])
        for row in range(n, len(bias)):
            bias[row, capacity + row] = 0
        if last_only:
            self._logit_rows[0] = n - 1


class _Rope:
    """Table of cosines and sines by position, float32 [2, positions, hd], grown as texts grow.

    Angles are float64: at position 100,000 float32 angles are off by more than a hundredth. The
    first half of sin is negated, as the graph's rotation expects.
    """

    def __init__(self, role: Role) -> None:
        self._inv_freq = np.asarray(role.inv_freq, np.float64)
        self._table = np.zeros((2, 0, role.head_dim), np.float32)

    def table(self, positions: int) -> Floats:
        """The table for `positions` positions at least."""
        if positions > self._table.shape[1]:
            angles = np.arange(positions, dtype=np.float64)[:, None] * self._inv_freq
            cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
            self._table = np.stack([np.hstack([cos, cos]), np.hstack([-sin, sin])])
        return self._table
