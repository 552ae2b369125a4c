"""The state of one text in a model: its cache, and which tokens the cache's rows stand for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from edgespec.bundle import FEATURES
from edgespec.bundle.caches import CacheGroup
from edgespec.bundle.sublayers import CHUNK
from edgespec.runtime.arrays import Array, Floats, Mask
from edgespec.runtime.engines import Cache, Recurrence, StageOutputs
from edgespec.runtime.execution.failures import NamedFailures
from edgespec.runtime.execution.features import FeatureWindow, feature_width, side_by_side
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.paths import NOWHERE, Drafted, StagePath
from edgespec.runtime.execution.snapshot import Snapshot
from edgespec.runtime.shapes import (
    BORDER,
    RECENT,
    ROW_BUCKETS,
    SCRATCH_ROWS,
    WINDOW,
    kept_rows,
    row_bucket,
)

Results = Mapping[str, Array]

_UNKNOWN = -1  # the token of a row that was never computed

# ONNX Runtime adds up the values of so many rows in one part, and of more in several.
_NEAR_ROWS = 128

_CAUSAL: Mask = np.tri(ROW_BUCKETS[-1], dtype=np.bool_)


class Runner:
    """The state of one text in one model: committed cache rows, and scratch rows behind them.

    Rows stay when a text has ended, so that a later text with the same beginning reuses them.

    Attributes:
        model: the compiled model.
        tokens: the tokens of the committed rows.
        scratch: number of rows behind the committed ones that hold a draft's tokens.
        features: features of the last committed rows; None if the model gives none.
    """

    _verified: Rows  # of the last `verify`

    def __init__(self, model: Model) -> None:
        self.model = model
        self._all = range(len(model.executables))
        self._failures = NamedFailures(model.device)
        width = feature_width(model.role)
        self.features = FeatureWindow(width) if width else None
        self.restart()

    def restart(self) -> None:
        """Forget everything and make new caches: the old ones may be damaged."""
        model, rows = self.model, self.model.sizes.cache_rows
        first = model.shapes.capacity_bucket(1)
        self.tokens: list[int] = []  # before what may fail: they are not to be trusted then
        self.scratch = 0
        self._drafts: list[int] = []  # tokens of the scratch rows of whole passes
        self._new_kv: list[Sequence[object]] = [()] * len(self._all)
        self._new_rows: list[Sequence[Array]] = [()] * len(self._all)
        self._drafted = Drafted()
        self._reused: list[int] = []  # of each row of the last `verify`, where its leading rows are
        self._tapped: Floats | None = None  # [rows, F] features of the last call's rows
        self._forget_features(0)
        with self._failures:
            self._caches = [each.new_cache(first, rows) for each in model.executables]

    @property
    def length(self) -> int:
        """Committed rows."""
        return len(self.tokens)

    @property
    def bytes(self) -> int:
        """Bytes that its caches take now, idle rows included."""
        return self.bytes_for(0)

    def bytes_for(self, length: int) -> int:
        """Returns the bytes that its caches take once the text has so many tokens."""
        seen = self.model.role.visible(min(length, self.model.sizes.cache_rows or length))
        rows = max(self._caches[0].capacity, self.model.shapes.capacity_bucket(seen))
        states = sum(each.nbytes for each in self._recurrences)
        return sum(cache.bytes_at(rows) for cache in self._caches) + states

    def known(self, text: Sequence[int]) -> int:
        """Returns how many committed rows can be kept for a text.

        The row of the text's last token is not among them, because its logits are still wanted.
        Recurrent layers and those with a window can go back by some tokens only, or begin anew.
        """
        shared = common_beginning(self.tokens, text[:-1])
        return shared if shared >= self._earliest else 0

    @property
    def reach(self) -> int:
        """The longest chain of tokens that one call may hold behind the committed text."""
        most = RECENT if self.model.ordered else ROW_BUCKETS[-1]
        return min(most, self._next_border(self.length) - self.length)

    @property
    def room(self) -> int:
        """The most cache rows that the text and the drafts behind it may take together."""
        most = self.model.sizes.cache_rows or sys.maxsize
        return min(most, self._ceiling(self.length))

    def resume(self, text: Sequence[int]) -> None:
        """Keep the rows that a text can reuse, see `known`, and forget all others."""
        self._keep_first(self.known(text), len(text))

    def snapshot(self, length: int) -> Snapshot:
        """Returns a copy of what is held of the first `length` tokens."""
        length = min(length, self.length)
        if length < self._earliest:
            length = 0
        features = None if self.features is None else self.features.first(length)
        with self._failures:
            caches = [rows for cache in self._caches for rows in cache.read(length)]
        states = [each.copy(length) for each in self._recurrences] if length else []
        return Snapshot(self.tokens[:length], caches, features, states)

    def part(self, start: int, stop: int) -> Snapshot | None:
        """Returns a copy of what is held of the tokens from `start` up to, not including, `stop`.

        Layers with a window may hold the last rows of these only, but all that later rows see.

        Returns:
            None if the text has gone on too far for what later rows need.
        """
        if stop < self._earliest:
            return None
        features = None
        if self.features is not None:
            features = self.features.first(stop)[-(stop - start) :]
        with self._failures:
            caches = [rows for cache in self._caches for rows in cache.read(stop, start)]
        states = [each.copy(stop) for each in self._recurrences]
        return Snapshot(self.tokens[start:stop], caches, features, states)

    def restore(self, snapshot: Snapshot) -> None:
        """Take over what another runner of the same model gave as a `snapshot`.

        Nothing is taken over if it was shortened so far that a window reaches back beyond its rows.
        """
        self.resume(())
        if not snapshot.tokens or not self._reach_back(snapshot):
            return
        self._load(snapshot.caches, len(snapshot.tokens))
        for recurrence, states in zip(self._recurrences, snapshot.states, strict=True):
            recurrence.load(states, len(snapshot.tokens))
        self.tokens.extend(snapshot.tokens)
        if self.features is not None and snapshot.features is not None:
            self.features.reset(len(snapshot.tokens) - len(snapshot.features))
            self.features.append(snapshot.features)

    def fits(self, snapshot: Snapshot) -> bool:
        """Returns whether the arrays of a snapshot, perhaps from a file, suit this model."""
        rows, width = len(snapshot.tokens), feature_width(self.model.role)
        features = snapshot.features
        known = features is None or (
            features.dtype == np.float32
            and features.ndim == 2
            and len(features) <= rows
            and features.shape[1] == width
        )
        states, own = snapshot.states, self._recurrences
        recurs = len(states) == (len(own) if rows else 0) and all(
            each.fits(state) for each, state in zip(own, states, strict=False)
        )
        return known and recurs and self._caches_fit(snapshot.caches, rows)

    def prefill(self, tokens: Sequence[int], hidden: Floats | None = None) -> Results:
        """Commit these tokens, chunk by chunk; scratch rows are forgotten.

        Args:
            tokens: at least one.
            hidden: [n, …] what enters the first stage besides tokens; None if nothing does.

        Returns:
            The graph's results for the last token, [1, …] each, valid until the next call.
        """
        self.forget_scratch()
        for rows in self.chunks(len(tokens)):
            part, tokens = tokens[:rows], tokens[rows:]
            causal = _CAUSAL[: len(part), : len(part)]
            entering, hidden = (None, None) if hidden is None else (hidden[:rows], hidden[rows:])
            parents = range(START, len(part) - 1)
            chain = Rows(part, range(len(part)), causal, parents, last_only=True)
            results = self._run(chain, self._all, hidden=entering)
            self._store(self._all, range(len(part)), self.length)
            self._keep_features(range(len(part)))
            self._extend(part)
        last = {name: len(part) - 1 for name in (FEATURES, "next_hidden")}  # these have all rows
        return {name: rows[last.get(name, 0) :][:1] for name, rows in results.items()}

    def rewind(self, length: int) -> None:
        """Forget the committed rows behind the first `length`, and scratch rows."""
        self.forget_scratch()
        del self.tokens[length:]
        if not length:
            for cache in self._caches:
                cache.clear()
        for each in self._recurrences:
            each.cut(length)
        if self.features is not None:
            self.features.truncate(length)

    def chunks(self, rows: int) -> list[int]:
        """Returns the rows of each call that `prefill` makes for so many tokens.

        No call reaches across a border, see `edgespec.runtime.shapes.BORDER` and `CHUNK`.
        """
        most = min(self.model.sizes.prefill_chunk, self.model.shapes.rows[-1])
        parts, length, end = list[int](), self.length, self.length + rows
        while length < end:
            before = min(end, self._next_border(length)) - length
            parts += _parts(before, most)
            length += before
        return parts

    def skip(self, rows: int) -> None:
        """Commit rows of zeros that were never computed, to time calls at any length."""
        self._extend([_UNKNOWN] * rows)
        self._forget_features(self.length)
        self.reserve(self.length)

    def verify(self, rows: Rows) -> Results:
        """Run rows without keeping anything; `commit` and `stay` keep rows.

        Rows that a draft has run through the leading stages are not run through them again.

        Returns:
            The graph's results, [n or more, …] each, valid until the next call.
        """
        most, self._verified = self.model.sizes.cache_rows, rows
        places = self._drafted.places(rows) if self._drafted.exact else []
        fresh = places.count(NOWHERE)
        too_many = 0 < most < self.length + self.scratch + len(rows.tokens)  # than was planned for
        # Among more near rows than this, last bits may differ from those of plain decoding.
        drafting = rows.scratch > 0  # these rows see scratch rows
        if (too_many and not drafting) or self._near_rows(len(rows.tokens), fresh) > _NEAR_ROWS:
            self.forget_scratch()
        exact = self._drafted.exact
        if not exact:
            return self._run(rows, self._all)
        self._reused = self._run_leading(rows, places)
        hidden = self._drafted.hidden(self._reused)
        results = self._run(rows, self._all[exact:], hidden=hidden)
        self._tapped = side_by_side(self._drafted.features(self._reused), self._tapped)
        return results

    @property
    def joins(self) -> bool:
        """Whether its next verification can share a pass with those of other texts."""
        free = not (self.scratch and self.model.ordered) and not self._drafted.exact
        return self.model.joins_texts and free

    @property
    def before_border(self) -> bool:
        """Whether calls may use no larger capacity than `BORDER`."""
        return self._ceiling(self.length) == BORDER

    def holds(self, cache: Cache) -> bool:
        """Whether it has this cache for its first stage."""
        return self._caches[0] is cache

    def sit(self, caches: Sequence[Cache]) -> None:
        """Moves to other caches, one for each stage."""
        if self._drafted.exact:
            self.forget_scratch()
        self._refill(caches, self.length + self.scratch)

    def stand(self) -> None:
        """Moves to caches of its own."""
        capacity = self.model.shapes.capacity_bucket(max(self.length + self.scratch, 1))
        most = self.model.sizes.cache_rows
        with self._failures:
            self.sit([each.new_cache(capacity, most) for each in self.model.executables])

    def take(self, rows: Rows, outputs: Sequence[StageOutputs], text: int, first: int) -> None:
        """Takes its part of a pass that several texts shared, as if `verify` had made it.

        Args:
            rows: the rows of this text.
            outputs: what each stage returned.
            text: number of this text in the pass.
            first: the first of its rows among those of all texts.
        """
        self._verified, self._tapped = rows, None
        mine = slice(first, first + len(rows.tokens))
        for stage, each in enumerate(outputs):
            self._new_kv[stage], self._new_rows[stage] = each.new_kv_of(text), ()
            if FEATURES in each.results:
                self._tapped = side_by_side(self._tapped, each.results[FEATURES][mine].copy())

    def commit(self, rows: Sequence[int]) -> None:
        """Commit these rows of the last `verify`, in this order."""
        exact = self._drafted.exact
        if exact:
            places = [self.length + self._reused[row] for row in rows]
            self._move(self._all[:exact], places)
        self._store(self._all[exact:], rows, self.length)
        self._keep_features(rows)
        self._extend([int(self._verified.tokens[row]) for row in rows])
        self.forget_scratch()

    def stay(self) -> None:
        """Keep the rows of the last `verify` as scratch, visible to later rows of the draft."""
        tokens = self._verified.tokens
        self._store(self._all, range(len(tokens)), self.length + self.scratch)
        self.scratch += len(tokens)
        self._drafts.extend(tokens)

    def score(self, tokens: Sequence[int], most: int) -> Iterator[Results]:
        """Commit these tokens in verifications of at most `most` rows, and give their logits.

        Yields:
            The graph's results for the next part of the tokens, [n, …] each, valid until the next.
        """
        while tokens:
            rows = min(most, self.reach)
            part, tokens = tokens[:rows], tokens[rows:]
            results = self.verify(Rows.chain(part))
            yield {name: found[: len(part)] for name, found in results.items()}
            self.commit(range(len(part)))

    def draft(
        self, rows: Rows, path: StagePath | None = None, hidden: Floats | None = None
    ) -> Results:
        """Run rows and keep them as scratch, visible to later rows whose mask says so.

        Args:
            rows: what to run.
            path: the stages to run; None: all. All calls of a draft take the same path.
            hidden: [n, D] hidden rows that enter the second stage, where the first is left out;
                None: all stages of the path run.

        Returns:
            The graph's results, [n or more, …] each, valid until the next call.
        """
        if path is None:
            results = self._run(rows, self._all[hidden is not None :], hidden=hidden)
            self._verified = rows
            self.stay()
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

    def _run_leading(self, rows: Rows, places: list[int]) -> list[int]:
        """Run those rows of a verification through the leading stages that no draft has run.

        Args:
            rows: all of the verification's rows.
            places: the scratch row of each, or `NOWHERE`; filled in here.

        Returns:
            The same list: now all rows have a scratch row.
        """
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
        """Run rows through the leading stages, keep them as scratch, return hidden rows [n, D]."""
        stages, n = self._all[: self._drafted.exact], len(rows.tokens)
        hidden: Floats = self._run(rows, stages)["next_hidden"][:n].copy()
        self._store(stages, range(n), self.length + self.scratch)
        self._drafted.add(rows, self.scratch, hidden, self._tapped)
        self.scratch += n
        return hidden

    def _run(
        self,
        rows: Rows,
        stages: Sequence[int],
        hidden: Floats | None = None,
    ) -> Results:
        model = self.model
        if not (model.role.trees or rows.is_chain):
            raise ValueError("rows branch, and this model's masks allow chains only")
        bucket = model.shapes.row_bucket(len(rows.tokens))
        # Fixed shapes are few: logits of all rows, though one alone is wanted.
        one = rows.last_only and not model.shapes.capacities
        logit_rows = model.shapes.rows[0] if one else bucket
        if model.ordered:
            self.reserve(self.length + 1)  # a full cache may lie before the border
        capacity = self._caches[0].capacity
        feeds = model.feeds(bucket, capacity, logit_rows, self._scratch_bucket(self.scratch))
        feeds.fill(rows, self.length)
        tapped = None
        begin = time.perf_counter()
        with self._failures:
            for stage in stages:
                inputs = feeds.stages[stage]
                if hidden is not None:
                    inputs["hidden"][: len(hidden)] = hidden
                outputs = model.executables[stage].run(inputs, self._caches[stage])
                self._new_kv[stage] = outputs.new_kv_of(0)
                self._new_rows[stage] = outputs.new_rows
                hidden = outputs.results.get("next_hidden")
                if FEATURES in outputs.results:
                    own = outputs.results[FEATURES][: len(rows.tokens)].copy()
                    tapped = side_by_side(tapped, own)
        model.seconds += time.perf_counter() - begin
        self._tapped = tapped
        return outputs.results

    def _store(self, stages: Sequence[int], rows: Sequence[int], start: int) -> None:
        self.reserve(start + len(rows))
        with self._failures:
            for stage in stages:
                cache = self._caches[stage]
                cache.write(self._new_kv[stage], rows, start)
                if cache.recurrence is not None:
                    cache.recurrence.write(self._new_rows[stage], rows, start)

    def _move(self, stages: Sequence[int], rows: Sequence[int]) -> None:
        """Make cache rows, ascending, those right behind the committed ones."""
        with self._failures:
            for stage in stages:
                self._caches[stage].move(rows, self.length)

    def _extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens of committed rows."""
        self.tokens += tokens
        for each in self._recurrences:
            each.settle(self.length)

    @property
    def _recurrences(self) -> list[Recurrence]:
        """What recurrent layers hold in each stage that has some."""
        return [each.recurrence for each in self._caches if each.recurrence is not None]

    @property
    def _earliest(self) -> int:
        """The smallest length that the text can be cut to, besides 0."""
        windows = (cache.earliest for cache in self._caches)
        return max(*windows, *(each.earliest for each in self._recurrences), 0)

    def _next_border(self, length: int) -> int:
        """Returns the position that no call behind so many committed rows may reach across."""
        if self.model.role.recurrent:
            return (length // CHUNK + 1) * CHUNK  # borders of `BORDER` are among these
        return self._ceiling(length)

    def _ceiling(self, length: int) -> int:
        """Returns the most rows that the cache may have while the text has such a length."""
        return BORDER if self.model.ordered and length < BORDER else sys.maxsize

    def _scratch_bucket(self, scratch: int) -> int:
        """Returns the scratch rows that inputs have room for, where there are so many."""
        if not self.model.ordered:
            return 0
        if self.model.shapes.capacities:
            return SCRATCH_ROWS
        return row_bucket(scratch) if scratch else 0

    def _near_rows(self, rows: int, fresh: int) -> int:
        """Returns the rows that ordered attention takes beside the cache in a verification.

        Args:
            rows: of the verification.
            fresh: those of them that the leading stages still have to run.
        """
        if not self.model.ordered or not self._drafted.exact:
            return 0
        scratch = self._scratch_bucket(self.scratch + fresh)
        return WINDOW + scratch + self.model.shapes.row_bucket(rows)

    def _shrink(self, kept: int, capacity: int) -> None:
        """Replace the caches by smaller ones that hold the first `kept` rows."""
        if not kept:
            self.restart()
            return
        most = self.model.sizes.cache_rows
        with self._failures:
            for number, executable in enumerate(self.model.executables):
                self._refill([executable.new_cache(capacity, most)], kept, number)

    def _refill(self, caches: Sequence[Cache], kept: int, first: int = 0) -> None:
        """Moves the first `kept` rows to these caches, those of the stages from `first` on."""
        with self._failures:
            for number, cache in enumerate(caches, first):
                old, self._caches[number] = self._caches[number], cache
                cache.clear()
                cache.load(old.read(kept), kept)
                if old.recurrence is not None and cache.recurrence is not None:
                    cache.recurrence.load(old.recurrence.copy(kept), kept)

    def _keep_first(self, kept: int, length: int) -> None:
        """Forget all rows but the first `kept`, before a text of such a length."""
        fitting = self.model.shapes.capacity_bucket(min(length, self._ceiling(kept)))
        if self._caches[0].capacity > fitting:  # idle rows cost time in every pass
            self._shrink(kept, fitting)
        self.rewind(kept)

    def _load(self, caches: Sequence[Array], length: int) -> None:
        """Overwrite the first `length` rows of the caches."""
        self.reserve(length)
        parts = iter(caches)
        with self._failures:
            for cache, groups in zip(self._caches, self._groups, strict=True):
                cache.load([next(parts) for _ in groups], length)

    def _caches_fit(self, caches: Sequence[Array], length: int) -> bool:
        with self._failures:
            empty = [rows for cache in self._caches for rows in cache.read(0)]
        groups = [group for groups in self._groups for group in groups]
        return len(caches) == len(empty) and all(
            each.dtype == own.dtype
            and each.ndim == own.ndim
            and each.shape == (*own.shape[:3], each.shape[3], own.shape[4])
            and each.shape[3] in _rows_of(group, length)
            for each, own, group in zip(caches, empty, groups, strict=True)
        )

    def _reach_back(self, snapshot: Snapshot) -> bool:
        """Whether layers with a window find all rows in a snapshot that they see."""
        length = len(snapshot.tokens)
        groups = (group for groups in self._groups for group in groups)
        return all(
            group.window is None or rows.shape[3] >= min(length, group.window - 1)
            for rows, group in zip(snapshot.caches, groups, strict=True)
        )

    @property
    def _groups(self) -> list[tuple[CacheGroup, ...]]:
        """The groups of layers that the cache of each stage has."""
        return [stage.cache_groups for stage in self.model.role.stages]

    def _keep_features(self, rows: Sequence[int]) -> None:
        """Add the features of these rows of the last call, which follow the committed ones."""
        if self.features is not None and self._tapped is not None:
            self.features.append(self._tapped[list(rows)])

    def _forget_features(self, length: int) -> None:
        if self.features is not None:
            self.features.reset(length)

    def reserve(self, rows: int) -> None:
        """Grow the caches to a capacity of at least so many rows."""
        if rows > self._caches[0].capacity:
            with self._failures:
                for cache in self._caches:
                    cache.grow(self.model.shapes.capacity_bucket(rows))


def _rows_of(group: CacheGroup, length: int) -> range:
    """Returns the numbers of rows that a snapshot of so many tokens may hold of a group."""
    least = length if group.window is None else 0
    return range(least, kept_rows(length, group.window) + 1)


def _parts(rows: int, most: int) -> list[int]:
    return [most] * (rows // most) + [rows % most] * (rows % most > 0)


def common_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two texts, in tokens."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
