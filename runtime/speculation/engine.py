"""The decoding loop: draft, verify, commit, observe.

Any number of threads read generations of one engine, which has no thread of its own: whoever waits
for a round makes the next pass, if nobody else does, and all sequences of that pass gain a round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from edgespec.errors import DeviceError, EdgespecError, InputError, ReentryError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.base import Drafter, SequenceStore
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import (
    PROMPT,
    Generation,
    Reading,
    Request,
    Round,
)
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.schedule import PassPart, Schedule
from edgespec.system.processes import listen_for_forks
from edgespec.system.shutdown import ENGINE_CALLS

_log = logging.getLogger(__name__)
_INTERRUPTED = "the pass was interrupted: generate again"
_OURS = (EdgespecError, MemoryError)  # other errors are of whom a signal has interrupted


class Engine:
    """Continues any number of sequences with one model; each step is one pass.

    The tokens of a sequence depend on the model and its request alone, never on drafters or on
    other sequences. All methods may be called by any thread.

    Args:
        target: the model.
        drafters: draft sources, the cheapest first.
        store: see `SequenceStore`; None if there is none.
        timings: what is left to find out of costs, see `Model.measuring`; a step of it is made
            before each pass of the first sequences behind their first tokens, so that none waits
            for all of them.

    Attributes:
        target: see above.
        drafters: those whose device has not failed.
    """

    def __init__(
        self,
        target: Model,
        drafters: Sequence[Drafter] = (),
        store: SequenceStore | None = None,
        timings: Sequence[Iterator[None]] = (),
    ) -> None:
        self.target = target
        self.drafters = drafters
        self._store = store
        self._timings = list(timings)
        self._dropped: list[TokenSequence] = []
        self._schedule = Schedule(target, store)
        # It may be taken again by the thread that has it: garbage collection may end a generation
        # at any time. It is never held during a pass. Unlike a condition's own methods, which
        # are Python, a signal's handler cannot keep it from being released.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._owner: int | None = None  # the thread that makes a pass, or has the engine for itself
        self._whole = True  # whether the accounts of memory are; see `_recover`
        self._closed = False
        self._lost = ""  # why no text can be made any more
        listen_for_forks(self)

    @property
    def running(self) -> list[Generation]:
        """The generations that go on or wait."""
        return [*self._schedule.waiting, *self._schedule.running]  # so that none is missed

    def add(self, request: Request) -> Generation:
        """Begins a generation, which goes on until it has a `finish`; `remove` it then.

        Pictures are looked at first, on the caller's thread, while others go on.

        Raises:
            DeviceError: if a picture cannot be looked at.
            InputError: if the engine was closed.
            MemoryLimitError: if it may need more slots than there are.
        """
        generation = Generation(request, self.target.sequence(list(request.prompt)))
        generation.sequence.salt = request.salt
        generation.sequence.adapters = request.adapters
        if request.look is not None:
            generation.sequence.pictures = request.look()
        try:
            with self._lock:
                self.require_open()
                self._schedule.add(generation)
        except BaseException:
            generation.cancelled = True  # if an interrupt came behind it
            raise
        return generation

    def remove(self, generation: Generation) -> None:
        """Ends a generation, finished or not, at once or behind the pass that is being made.

        Its slots are left to later sequences that begin alike.
        """
        generation.cancelled = True
        self._release_soon()

    def drop(self, kept: TokenSequence) -> None:
        """Frees what a session keeps, at once or behind the pass that is being made."""
        self._dropped.append(kept)
        self._release_soon()

    def measure(self) -> None:
        """Finds out what passes cost, if that is not known; sequences may go on meanwhile.

        Raises:
            InputError: if the engine was closed.
        """
        self.require_open()
        while self._timings:
            with self.exclusive():
                self._time_a_pass()

    def forget(self) -> None:
        """Forgets what earlier generations taught the drafters, and the slots that they left."""
        with self.exclusive():
            self._clear()

    def close(self) -> None:
        """Ends all generations behind the pass that is being made, and begins no more."""
        self._require_others_turn()
        with self._lock:
            self._closed = True
            for generation in self.running:
                generation.cancelled = True
        with self._alone():
            if not self._lost:
                self._remove_ended()
                self._clear()
            self.drafters = []
            self._timings = []

    def generate(self, request: Request) -> Generator[Round, None, Generation]:
        """Makes one generation, perhaps beside others.

        Yields:
            Its rounds. Closing the iterator ends it.

        Raises:
            EdgespecError: as `add` and `next_round`.
        """
        generation = self.add(request)
        try:
            while (made := self.next_round(generation)) is not None:
                yield made
        finally:
            self.remove(generation)
        return generation

    def next_round(self, generation: Generation) -> Round | None:
        """Returns the next round of a generation, which may need several passes; None at its end.

        Raises:
            DeviceError: if a pass of it failed, or was interrupted in the thread that made it.
            EdgespecError: see `Generation.error`.
        """
        with ENGINE_CALLS:
            self._require_whole()
            self._require_others_turn()
            while True:
                try:
                    if not self._has_turn(generation):
                        return generation.take_round()
                    self._make_pass()
                    self._whole = True
                except BaseException as error:
                    self._judge(error)
                    raise
                finally:
                    try:
                        self._release()
                    finally:  # which a signal's handler may have interrupted
                        self._release(last=True)

    def step(self) -> dict[Generation, Round]:
        """Makes a pass: draft, verify, commit, observe.

        Returns:
            The rounds of all sequences that were part of it, which `next_round` returns, too.
        """
        with self._alone():
            return self._make_pass()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """No pass is made meanwhile, so that models, slots and drafters can be used.

        Raises:
            InputError: if the engine was closed.
        """
        with self._alone():
            self.require_open()
            yield

    def require_open(self) -> None:
        """Checks that the engine was not closed.

        Raises:
            InputError: if it was closed, or lost, as by a fork in the middle of a pass.
        """
        self._require_whole()
        if self._closed:
            raise InputError("the model was closed: load it again")

    def _require_whole(self) -> None:
        if self._lost:
            raise InputError(self._lost)

    def after_fork(self) -> None:
        """See `ForkListener`. A pass that another thread was making has no end in this process."""
        if self._owner is not None or not self._lock.acquire(blocking=False):
            self._lost = (
                "this process was forked while another thread made a text: load the model again "
                "here, or start processes by the method spawn of multiprocessing"
            )
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._owner = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with ENGINE_CALLS:
            self._require_others_turn()
            try:
                self._has_turn()
                yield
                self._whole = True
            except BaseException as error:
                self._judge(error)
                raise
            finally:
                try:
                    self._release()
                finally:  # see `next_round`
                    self._release(last=True)

    def _require_others_turn(self) -> None:
        if self._owner == threading.get_ident():
            raise ReentryError(
                "this thread makes a text already, which a signal's handler, say, broke off for "
                "this: let the handler call `Stream.cancel`, or do it behind the text"
            )

    def _has_turn(self, generation: Generation | None = None) -> bool:
        """Waits for this thread's turn; False if the generation's reader need not wait."""
        with self._lock:
            while generation is None or not generation.is_answered:
                if generation is not None:  # a model that is lost can still be closed
                    self._require_whole()
                if self._owner is None:
                    self._owner = threading.get_ident()
                    self._whole = False
                    for model in self._models():
                        model.computes = False
                    return True
                self._changed.wait()
            return False

    def _release_soon(self) -> None:
        """Frees what has ended, unless a thread will do so behind its pass."""
        taken = False
        try:
            with self._lock:
                if self._owner is None and not self._lost:
                    taken = True
                    self._owner = threading.get_ident()
        finally:
            if taken:
                try:
                    self._release()
                finally:  # see `next_round`
                    self._release(last=True)

    def _release(self, last: bool = False) -> None:
        """Lets other threads make passes, if this thread does.

        Args:
            last: whether this is not tried again: if it fails, no text can be made any more.
        """
        with self._lock:
            if self._owner != threading.get_ident():
                return
            try:
                if not self._lost:
                    if not self._whole:
                        self._recover()
                    self._whole = False
                    self._remove_ended()
                    self._whole = True
            except BaseException:
                if not last:
                    raise
                self._lost = "its memory cannot be used any more: load the model again"
            self._owner = None
            self._changed.notify_all()

    def _judge(self, error: BaseException) -> None:
        """Finds out whether an error of this thread's turn has left the accounts of memory whole.

        It has if it came from a step, which clears up behind itself, or while a graph computed. But
        a signal's handler, or Ctrl-C, may have come between any two steps of the main thread.
        """
        if self._owner == threading.get_ident():
            main = threading.current_thread() is threading.main_thread()
            of_a_step = isinstance(error, _OURS if main else Exception)
            self._whole = of_a_step or any(model.computes for model in self._models())

    def _recover(self) -> None:
        """Begins with empty memory, since some accounts of it were interrupted half-way.

        A slot that two sequences have would change their texts. Texts that run end with an error,
        and what waits goes on.
        """
        running = list(self._schedule.running)
        for generation in [*running, *self._schedule.waiting]:
            generation.sequence.reset()
            generation.reused = 0
            if (kept := generation.request.kept()) is not None:
                kept.reset()
        for generation in running:
            if not generation.has_ended:
                generation.fail(DeviceError(_INTERRUPTED))
            generation.finish = generation.finish or "cancelled"
            generation.drafters.clear()
            for drafter in self.drafters:
                with suppress(Exception):  # it may know nothing of it, or too little
                    drafter.end(generation)
            if self._store is not None:
                self._store.end(generation.sequence)
            while generation in self.running:  # twice, if it was interrupted as it was admitted
                self._schedule.remove(generation)
        for drafter in self.drafters:
            with suppress(Exception):
                drafter.forget()
        for model in self._models():
            model.reset()

    def _models(self) -> list[Model]:
        models = [getattr(drafter, "model", None) for drafter in self.drafters]
        return [self.target, *(model for model in models if model is not None)]

    def _clear(self) -> None:
        self.target.prefixes.clear()
        for drafter in self.drafters:
            drafter.forget()

    def _remove_ended(self) -> None:
        while self._dropped:
            self.target.prefixes.drop(self._dropped.pop())
        while ended := [each for each in self.running if each.has_ended]:
            for generation in ended:
                self._end(generation)

    def _end(self, generation: Generation) -> None:
        sequence = generation.sequence
        if generation in self._schedule.running:
            while generation.drafters:
                generation.drafters.pop().end(generation)
            if generation.error is None:
                self.target.prefixes.add(sequence, sequence.length)
                if (kept := generation.request.kept()) is not None:
                    self.target.prefixes.keep(kept, sequence)
            if self._store is not None:
                self._store.end(sequence)
        generation.finish = generation.finish or "cancelled"
        sequence.free()
        self._schedule.remove(generation)  # last, so that `_recover` knows of it until then

    def _make_pass(self) -> dict[Generation, Round]:
        """Makes a pass, as the only thread that does.

        An error ends the sequences that are part of it, and the others go on. One that is not of
        ours, such as of a signal's handler, is for the thread that makes the pass alone: the
        sequences learn that it was interrupted.
        """
        parts: list[PassPart] = []
        try:
            for generation in self._schedule.admit():
                try:
                    for drafter in self.drafters:
                        if drafter.begin(generation):
                            generation.drafters.append(drafter)
                except _OURS as error:
                    generation.fail(error)
            self._remove_ended()
            parts = self._schedule.parts()
            if self._timings and not all(part.is_prompt for part in parts):
                self._time_a_pass()
            return self._round(parts) if parts else {}
        except _OURS as error:
            if not parts:
                raise
            for part in parts:
                part.generation.fail(error)
            return {}
        except BaseException:
            for part in parts:
                part.generation.fail(DeviceError(_INTERRUPTED))
            raise

    def _time_a_pass(self) -> None:
        try:
            if self._timings:
                next(self._timings[0])
        except (StopIteration, EdgespecError):  # a text's own pass says what is wrong
            self._timings.pop(0)

    def _round(self, parts: Sequence[PassPart]) -> dict[Generation, Round]:
        begin = time.perf_counter()
        plan = self._draft(parts)
        forecast = None if plan is None else plan.choose()
        drafted = time.perf_counter()
        batch = [_rows(part) for part in parts]
        rounds = dict[Generation, Round]()
        try:
            with ExitStack() as beside:
                for each in () if plan is None else plan.beside:
                    beside.enter_context(each)
                logits = self.target.forward(batch)
            verified = time.perf_counter()
            for part, rows, found in zip(parts, batch, logits, strict=True):
                tokens, accepted = self._commit(part, rows, found)
                source = PROMPT if part.is_prompt else part.proposal.source
                rounds[part.generation] = made = Round(
                    tokens,
                    len(part.proposal),
                    accepted,
                    source,
                    time.perf_counter() - begin,
                    drafted - begin,
                    verified - drafted,
                    None if part.is_prompt else forecast,
                    part.generation.take_logprobs(),
                    part.begun,
                )
                part.generation.add(made)
                if part.is_prompt:  # others that begin alike need not read it, but for its end
                    sequence = part.generation.sequence
                    request = part.generation.request
                    end = sequence.length if sequence.length in request.turns else 0
                    end = len(request.prompt) - 1 if part.complete else end
                    self.target.prefixes.add(sequence, end)
                if self._store is not None:
                    self._store.look(part.generation.sequence)
        finally:
            for rows in batch:  # which an error or interrupt may have left
                if rows.slots:
                    rows.accept([])
        return rounds

    def _draft(self, parts: Sequence[PassPart]) -> PassPlan | None:
        """Lets all sources propose nodes; returns the pass's plan, None if nothing may draft."""
        drafting = [part for part in parts if part.depth > 0 and part.generation.drafters]
        if not drafting:
            return None
        plan = PassPlan(self.target.cost, parts, drafting)
        for drafter in self.drafters:
            if any(drafter in part.generation.drafters for part in drafting):
                proposals = [part.proposal for part in drafting]
                try:
                    drafter.draft(plan)
                except DeviceError as error:
                    for part, proposal in zip(drafting, proposals, strict=True):
                        part.proposal = proposal
                    self._give_up(drafter, error)
        return plan

    def _give_up(self, failed: Drafter, why: DeviceError) -> None:
        """Drafts no more with a drafter whose device has failed, and with others of its model."""
        model = getattr(failed, "model", failed)
        lost = [each for each in self.drafters if getattr(each, "model", each) is model]
        names = ", ".join(each.name for each in lost)
        _log.warning("nothing is drafted by %s any more: %s", names, why)
        self.drafters = [each for each in self.drafters if each not in lost]
        for generation in self._schedule.running:
            for each in lost:
                if each in generation.drafters:
                    generation.drafters.remove(each)
                    each.end(generation)

    def _commit(self, part: PassPart, rows: Rows, logits: Floats) -> tuple[tuple[int, ...], int]:
        """Appends what the target chose, and lets drafters observe it.

        Returns:
            The new tokens, and the number of accepted nodes.
        """
        generation = part.generation
        read = len(part.reading)
        if not part.complete:
            _accept(generation, rows, range(read))
            return (), 0
        try:
            verdict = generation.verify(part.proposal, logits)
        except _OURS as error:  # the others go on
            rows.accept([])
            generation.fail(error)
            return (), 0
        _accept(generation, rows, [*range(read), *[read + node for node in verdict.nodes]])
        generation.tokens.extend(verdict.tokens)
        if generation.drafters:
            reading = Reading(rows, logits, verdict.tokens)
            for drafter in generation.drafters:
                drafter.observe(generation, reading)
        return verdict.tokens, len(verdict.nodes)


def _rows(part: PassPart) -> Rows:
    """Returns the rows of what is read, and of the tree below its last token."""
    read = len(part.reading)
    tokens = part.reading
    parents = [AFTER, *range(read - 1)]
    if not part.complete:
        return Rows(part.generation.sequence, tokens, parents, [], certain=read)
    tree = part.proposal
    tokens = tokens + tree.tokens
    parents += [read + parent for parent in tree.parents]  # ROOT is -1: the last token read
    wanted = list(range(read - 1, len(tokens)))
    # A prompt's last token is not certain: whoever begins with the same prompt reads it again.
    return Rows(part.generation.sequence, tokens, parents, wanted, certain=read - 1)


def _accept(generation: Generation, rows: Rows, accepted: Sequence[int]) -> None:
    """Makes rows part of the sequence, and keeps what draft heads read of them."""
    rows.accept(accepted)
    if rows.features is not None:
        generation.features.append(rows.features[list(accepted)], rows.sequence.length)
