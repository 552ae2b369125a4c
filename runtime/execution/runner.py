"""One text's progress through a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from edgespec.errors import DeviceError, EdgespecError
from edgespec.runtime.arrays import Array, Floats, Mask
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.paths import NOWHERE, Drafted, Path
from edgespec.runtime.shapes import BORDER, RECENT, ROW_BUCKETS, SCRATCH_ROWS, WINDOW, row_bucket

Results = Mapping[str, Array]

_UNKNOWN = -1  # token of a row that was never computed

# That ONNX Runtime adds up in one part.
_NEAR_ROWS = 128

_CAUSAL: Mask = np.tri(ROW_BUCKETS[-1], dtype=np.bool_)


class Runner:
    """One text in a model: its KV cache, how much of it is text, and scratch rows behind that.

    A text that has ended leaves its rows here: another that begins alike goes on from them.

    Attributes:
        model: the compiled model.
        tokens: what the committed rows stand for.
        scratch: rows behind those that hold a draft's levels.
    """

    _verified: Rows  # of the last `verify`

    def __init__(self, model: Model) -> None:
        self.model = model
        self._all = range(len(model.executables))
        self._failures = _NamedFailures(model.device)
        self.restart()

    def restart(self) -> None:
        """Begin anew, with caches of its own: those of before may be damaged."""
        model, rows = self.model, self.model.sizes.cache_rows
        first = model.shapes.capacity_bucket(1)
        self.tokens: list[int] = []  # before what may fail: they are not to be trusted then
        self.scratch = 0
        self._drafts: list[int] = []  # tokens of the scratch rows of whole passes
        self._new_kv: list[object] = [None] * len(self._all)
        self._drafted = Drafted()
        self._reused: list[int] = []  # of each row of the last `verify`, where its leading rows are
        with self._failures:
            self._caches = [each.new_cache(first, rows) for each in model.executables]

    @property
    def length(self) -> int:
        """Committed rows."""
        return len(self.tokens)

    @property
    def bytes(self) -> int:
        """Of its caches as they are, idle rows included."""
        return self.bytes_for(0)

    def bytes_for(self, length: int) -> int:
        """Of its caches, once a text has so many tokens."""
        seen = self.model.role.visible(length)
        rows = max(self._caches[0].capacity, self.model.shapes.capacity_bucket(seen))
        return rows * sum(cache.row_bytes for cache in self._caches)

    def known(self, text: Sequence[int]) -> int:
        """How many rows a text begins with.

        That of its last token is never among them: what follows it is still wanted.
        """
        return common_beginning(self.tokens, text[:-1])

    @property
    def reach(self) -> int:
        """Tokens one after the other that a call may hold behind the text."""
        if not self.model.ordered:
            return ROW_BUCKETS[-1]
        return min(RECENT, self._ceiling(self.length) - self.length)

    @property
    def room(self) -> int:
        """Rows that a cache may have for the text and what is drafted behind it."""
        most = self.model.sizes.cache_rows or sys.maxsize
        return min(most, self._ceiling(self.length))

    def resume(self, text: Sequence[int]) -> None:
        """Keep the rows that a text begins with, see `known`, and forget all others."""
        kept = self.known(text)
        self.forget_scratch()
        fitting = self.model.shapes.capacity_bucket(min(len(text), self._ceiling(kept)))
        if self._caches[0].capacity > fitting:  # idle rows cost time in every pass
            self._shrink(kept, fitting)
        del self.tokens[kept:]

    def snapshot(self, rows: int) -> list[Array]:
        """The first committed rows of each stage's cache, [layers, 2, KV, rows, hd] each."""
        with self._failures:
            return [cache.read(rows) for cache in self._caches]

    def restore(self, tokens: Sequence[int], caches: Sequence[Array]) -> None:
        """Hold what a runner of the same model held when it was asked for a `snapshot`."""
        self.resume(())
        if not tokens:
            return
        self.reserve(len(tokens))
        with self._failures:
            for cache, rows in zip(self._caches, caches, strict=True):
                cache.load(rows)
        self.tokens.extend(tokens)

    def prefill(self, tokens: Sequence[int]) -> Results:
        """Commit these tokens, chunk by chunk; scratch rows are forgotten.

        Returns:
            The graph's results for the last one, [1, …] each, valid until the next call.
        """
        self.forget_scratch()
        for rows in self.chunks(len(tokens)):
            part, tokens = tokens[:rows], tokens[rows:]
            causal = _CAUSAL[: len(part), : len(part)]
            results = self._run(Rows(part, range(len(part)), causal), self._all, last_only=True)
            self._store(self._all, range(len(part)), self.length)
            self.tokens.extend(part)
        return {name: rows[:1] for name, rows in results.items()}

    def chunks(self, rows: int) -> list[int]:
        """Rows of each call that `prefill` makes for so many tokens, none across the border."""
        most = min(self.model.sizes.prefill_chunk, self.model.shapes.rows[-1])
        before = min(rows, self._ceiling(self.length) - self.length)
        return [*_parts(before, most), *_parts(rows - before, most)]

    def skip(self, rows: int) -> None:
        """Commit rows that were never computed, to time calls at any length; they hold zeros."""
        self.tokens += [_UNKNOWN] * rows
        self.reserve(self.length)

    def verify(self, rows: Rows) -> Results:
        """Run rows without keeping anything; `commit` keeps what the verdict accepts.

        What a draft by this model's own leading stages has computed is not computed again.

        Returns:
            The graph's results, [n or more, …] each, valid until the next call.
        """
        most, self._verified = self.model.sizes.cache_rows, rows
        if 0 < most < self.length + self.scratch + len(rows.tokens):
            self.forget_scratch()  # rows that no draft ran would need a larger cache than planned
        if self._near_rows(len(rows.tokens)) > _NEAR_ROWS:
            self.forget_scratch()  # what was drafted among so many may differ in its last bits
        exact = self._drafted.exact
        if not exact:
            return self._run(rows, self._all)
        self._reused = self._run_leading(rows)
        hidden = self._drafted.hidden(self._reused)
        return self._run(rows, self._all[exact:], hidden=hidden)

    def commit(self, rows: Sequence[int]) -> None:
        """Make these rows of the last `verify` text, in this order."""
        exact = self._drafted.exact
        if exact:
            places = [self.length + self._reused[row] for row in rows]
            self._move(self._all[:exact], places)
        self._store(self._all[exact:], rows, self.length)
        self.tokens += [int(self._verified.tokens[row]) for row in rows]
        self.forget_scratch()

    def score(self, tokens: Sequence[int], most: int) -> Iterator[Results]:
        """Commit these tokens by verifications of `most` rows or fewer: what follows each is told.

        Yields:
            The graph's results for a part of them, [n, …] each, valid until the next.
        """
        while tokens:
            rows = min(most, self.reach)
            part, tokens = tokens[:rows], tokens[rows:]
            results = self.verify(Rows.chain(part))
            yield {name: found[: len(part)] for name, found in results.items()}
            self.commit(range(len(part)))

    def draft(self, rows: Rows, path: Path | None = None) -> Results:
        """Run rows and keep them as scratch, visible to later rows whose mask says so.

        Args:
            rows: what to run.
            path: the stages to run; None: all. All calls of a draft take the same path.

        Returns:
            The graph's results, [n or more, …] each, valid until the next call.
        """
        if path is None:
            results = self._run(rows, self._all)
            self._store(self._all, range(len(rows.tokens)), self.length + self.scratch)
            self.scratch += len(rows.tokens)
            self._drafts.extend(rows.tokens)
        else:
            self._drafted.exact = path.exact
            before, rest = self.scratch, path.stages[path.exact :]
            hidden = self._run_exact(rows)
            results = self._run(rows, rest, hidden=hidden)
            self._store(rest, range(len(rows.tokens)), self.length + before)
        return results

    def keep(self, text: Sequence[int], drafts: Sequence[int] = ()) -> None:
        """Make scratch rows text, and others the first scratch rows; forget the rest.

        Args:
            text: the rows that become text, ascending.
            drafts: those that stay scratch rows, ascending, all of them behind `text`.
        """
        self._move(self._all, [self.length + row for row in (*text, *drafts)])
        tokens = self._drafts
        self.tokens += [tokens[row] for row in text]
        self.forget_scratch()
        self.scratch, self._drafts = len(drafts), [tokens[row] for row in drafts]

    def forget_scratch(self) -> None:
        """Drop what drafts have left behind the text."""
        self.scratch, self._drafts = 0, []
        self._drafted = Drafted()

    def _run_leading(self, rows: Rows) -> list[int]:
        """Have the leading stages' part of a verification in scratch; where each row is there.

        Rows that the draft never ran, its last level and what other sources added, run now.
        """
        places: list[int] = []
        for token, parent in zip(rows.tokens, rows.parents, strict=True):
            above = START if parent == START else places[parent]
            places.append(self._drafted.place(above, int(token)))
        fresh = [row for row, place in enumerate(places) if place == NOWHERE]
        if fresh:
            for number, row in enumerate(fresh):
                places[row] = self.scratch + number
            mask = np.zeros((len(fresh), self.scratch + len(fresh)), np.bool_)
            for number, row in enumerate(fresh):
                mask[number, [places[seen] for seen in np.flatnonzero(rows.mask[row])]] = True
            self._run_exact(
                Rows(
                    [int(rows.tokens[row]) for row in fresh],
                    [int(rows.depths[row]) for row in fresh],
                    mask,
                    [
                        START if rows.parents[row] == START else places[rows.parents[row]]
                        for row in fresh
                    ],
                )
            )
        return places

    def _run_exact(self, rows: Rows) -> Floats:
        """Run the leading stages and keep what they compute as scratch; its hidden rows [n, D]."""
        stages, n = self._all[: self._drafted.exact], len(rows.tokens)
        hidden: Floats = self._run(rows, stages)["next_hidden"][:n].copy()
        self._store(stages, range(n), self.length + self.scratch)
        self._drafted.add(rows, self.scratch, hidden)
        self.scratch += n
        return hidden

    def _run(
        self,
        rows: Rows,
        stages: Sequence[int],
        last_only: bool = False,
        hidden: Floats | None = None,
    ) -> Results:
        model = self.model
        bucket = model.shapes.row_bucket(len(rows.tokens))
        # Fixed shapes are few: logits of all rows, though one alone is wanted.
        logit_rows = model.shapes.rows[0] if last_only and not model.shapes.capacities else bucket
        if model.ordered:
            self.reserve(self.length + 1)  # a full cache may lie before the border
        capacity = self._caches[0].capacity
        feeds = model.feeds(bucket, capacity, logit_rows, self._scratch_bucket())
        feeds.fill(rows, self.length, last_only)
        begin = time.perf_counter()
        with self._failures:
            for stage in stages:
                inputs = feeds.stages[stage]
                if hidden is not None:
                    inputs["hidden"][: len(hidden)] = hidden
                outputs = model.executables[stage].run(inputs, self._caches[stage])
                self._new_kv[stage] = outputs.new_kv
                hidden = outputs.results.get("next_hidden")
        model.seconds += time.perf_counter() - begin
        return outputs.results

    def _store(self, stages: Sequence[int], rows: Sequence[int], start: int) -> None:
        self.reserve(start + len(rows))
        with self._failures:
            for stage in stages:
                self._caches[stage].write(self._new_kv[stage], rows, start)

    def _move(self, stages: Sequence[int], rows: Sequence[int]) -> None:
        """Make cache rows, ascending, those right behind the committed ones."""
        with self._failures:
            for stage in stages:
                self._caches[stage].move(rows, self.length)

    def _ceiling(self, length: int) -> int:
        """Rows that a cache may have, and positions that calls may reach, at such a length."""
        return BORDER if self.model.ordered and length < BORDER else sys.maxsize

    def _scratch_bucket(self) -> int:
        """Scratch rows that inputs have room for."""
        if not self.model.ordered:
            return 0
        if self.model.shapes.capacities:
            return SCRATCH_ROWS
        return row_bucket(self.scratch) if self.scratch else 0

    def _near_rows(self, rows: int) -> int:
        """Rows that ordered attention takes beside the cache, in a call of so many."""
        if not self.model.ordered or not self._drafted.exact:
            return 0
        return WINDOW + self._scratch_bucket() + self.model.shapes.row_bucket(rows)

    def _shrink(self, kept: int, capacity: int) -> None:
        """Have caches of so many rows that hold the first ones of those there are."""
        if not kept:
            self.restart()
            return
        most = self.model.sizes.cache_rows
        with self._failures:
            for number, executable in enumerate(self.model.executables):
                rows = self._caches[number].read(kept)
                self._caches[number] = executable.new_cache(capacity, most)
                self._caches[number].load(rows)

    def reserve(self, rows: int) -> None:
        """Have a capacity of so many rows at least."""
        if rows > self._caches[0].capacity:
            with self._failures:
                for cache in self._caches:
                    cache.grow(self.model.shapes.capacity_bucket(rows))


def _parts(rows: int, most: int) -> list[int]:
    return [most] * (rows // most) + [rows % most] * (rows % most > 0)


def common_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens in which two texts begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


class _NamedFailures:
    """Makes whatever an engine raises an error that names its device.

    Kept and no generator: it stands around all calls of a decoding round.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Engines' own errors share no base class but Exception.
        if isinstance(error, Exception) and not isinstance(error, EdgespecError):
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DeviceError(f"{self._device} failed ({reason}): use another device") from error
