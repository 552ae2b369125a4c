"""The rounds of all texts of a model: texts that decode at the same time share passes.

Each text is read by a thread of its own, which asks for its next round and holds the model's lock
while it makes one. If other texts decode too, the thread makes a round of all of them at once, and
their threads take what they gained without waiting for the lock.

Prompts are read a chunk at a time, and before each chunk all texts that wait get a round, so that
others are held up for one chunk at most, however many prompts there are. These are read one after
the other, the shortest first: that way the first tokens come earliest on average, and a question
need not wait for a book. So that a book is read as well, each fourth chunk is of the oldest prompt.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from edgespec.errors import DeviceError
from edgespec.runtime.decoding.drafts import SharedDrafts
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.decoding.generate import (
    PROMPT,
    Answer,
    Asked,
    Pass,
    Passed,
    Round,
    TextSteps,
)
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters.base import LATEST_WEIGHT
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import Call, Called, Chunk
from edgespec.runtime.trees.company import Company
from edgespec.runtime.trees.offers import Granted, Offer, grant

_AHEAD = 2  # rounds that a text may be ahead of its reader, so that threads need not keep step
_OLDEST_EVERY = 4  # chunks: one of so many is of the oldest prompt


class TextRounds:
    """The rounds of one text; give it to `Rounds.add`.

    Args:
        rounds: the rounds of all texts.
        pipeline: drafter and target.
        steps: the text, from its first step on.
        models: models whose time inside the engines counts.
        prompt: token ids of its prompt.
        cancelled: whether the text is to end; may be asked at any time and by any thread.
        each_round: is called behind each round, while no pass of the text is made.

    Attributes:
        pipeline: drafter and target.
        unread: number of tokens of the prompt that are not read yet.
        cancelled: whether the text is to end.
        reading: whether the prompt is still being read.
        over: whether the text has ended.
        closed: whether its reader wants no more of it.
        ready: rounds that nobody has asked for yet, and the seconds inside the engines.
        asked: the pass that it waits for, or what its draft waits for.
        rows, tokens: what a round has lately been: rows to verify, and tokens gained.
        drafting, verifying: the same in seconds of its draft and its pass; of calls that texts
            share its part.
        drafted: seconds of its draft of this round, so far.
        caller: the text in the draft model, if its last draft made calls that texts can share.
    """

    def __init__(
        self,
        rounds: Rounds,
        pipeline: Serial,
        steps: TextSteps,
        models: Sequence[Model],
        prompt: Sequence[int],
        cancelled: Callable[[], bool],
        each_round: Callable[[], None],
    ) -> None:
        self.pipeline = pipeline
        self.unread = len(prompt) - pipeline.target.known(prompt)
        self.cancelled = cancelled
        self.reading, self.over, self.closed = True, False, False
        self.ready = deque[tuple[Round, float]]()
        self.asked: Asked | None = None
        self.rows, self.tokens, self.drafting, self.verifying = 1, 1.0, 0.0, 0.0
        self.caller: Runner | None = None
        self._calling: Runner | None = None
        self.drafted = 0.0
        self._rounds, self._steps, self._models = rounds, steps, models
        self._prompt_tokens, self._each_round = len(prompt), each_round
        self._company = Company()
        self._engines, self._begun = 0.0, False
        self._error: Exception | None = None

    def next(self) -> tuple[Round, float] | None:
        """Fetches the next round, or makes it; the lock must not be held.

        Returns:
            The round, and the seconds that it took inside the engines. None if the text is over or
            cancelled.

        Raises:
            DeviceError: if an engine failed, or another text's thread was interrupted in a round of
                both.
        """
        while not self._is_answered():
            with self._rounds.lock.unless(self._is_answered) as held:
                if held:
                    self._rounds.make(self)
        if self.cancelled():
            return None
        if self.ready:
            return self.ready.popleft()
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """Ends the text, also while another thread makes a round of it."""
        self.over = self.closed = True

    @property
    def waits(self) -> bool:
        """Whether it may be given a further round, or chunk of its prompt."""
        return len(self.ready) < _AHEAD and not (self.over or self.cancelled())

    @property
    def shares(self) -> bool:
        """Whether its passes can be shared: drafting during a pass needs one of its own."""
        return type(self.pipeline) is Serial

    def go_on(self, company: Company) -> None:
        """Takes a step to the next pass or round.

        Args:
            company: the other texts of the round.
        """
        self._company = company
        self._calling, self.drafted = None, 0.0
        self._send(self._company if self._begun else None)

    def answer(self, passed: Passed, seconds: float) -> None:
        """Takes the step behind a pass of this duration."""
        self._engines += seconds
        own = passed.shared.share if passed.shared else seconds
        self.verifying += (own - self.verifying) * LATEST_WEIGHT
        self._send(passed)

    def granted(self, answer: Granted) -> None:
        """Takes the step behind an `Offer`, to its pass."""
        self._send(answer)

    def called(self, answer: Called | None, seconds: float) -> None:
        """See `edgespec.runtime.decoding.drafts.Drafting`."""
        self._engines += seconds
        if answer is not None:
            self.drafted += answer.cost.share
        self._send(answer)

    def fail(self, error: Exception) -> None:
        """Ends the text with an error, which its own thread gets."""
        self.over, self.asked, self._error = True, None, error

    def _is_answered(self) -> bool:
        return bool(self.ready) or self.over or self.cancelled()

    def _send(self, answer: Answer) -> None:
        chunk, self.asked = isinstance(self.asked, Chunk), None
        begin, before = time.perf_counter(), sum(model.seconds for model in self._models)
        try:
            step = self._steps.send(answer)
            if isinstance(step, Round):
                self._each_round()
        except StopIteration:
            self.over = True
            return
        except Exception as error:
            self.fail(error)
            return
        except BaseException:  # such as Ctrl-C, of whichever thread makes this round
            self.fail(DeviceError("the text was interrupted with another one: make it again"))
            raise
        self._engines += sum(model.seconds for model in self._models) - before
        if not chunk:  # what later drafts take, too
            self.drafted += time.perf_counter() - begin
        if isinstance(step, Round):
            self._finish(step)
            return
        self.asked = step
        if chunk:  # its thread makes way for those of others
            self._hand_out(Round((), 0, 0, PROMPT, 0.0))
        if isinstance(step, Call):
            self._calling = step.runner
        elif isinstance(step, Pass):
            self.rows, self.caller = len(step.rows.tokens), self._calling
            self.drafting += (self.drafted - self.drafting) * LATEST_WEIGHT

    def _finish(self, step: Round) -> None:
        self.reading = self.reading and not step.tokens
        self.unread = self._prompt_tokens - self.pipeline.target.length
        if not self.reading:
            self.tokens += (len(step.tokens) - self.tokens) * LATEST_WEIGHT
        self._hand_out(step)
        self._begun = True

    def _hand_out(self, step: Round) -> None:
        self.ready.append((step, self._engines))
        self._engines = 0.0


class Rounds:
    """All texts of a model that are being made.

    Args:
        target: the target model.
        lock: is held while a round is made.

    Attributes:
        lock: the same.
    """

    def __init__(self, target: Model, lock: FairLock) -> None:
        self.lock = lock
        self._passes, self._drafts = JointPasses(target), SharedDrafts()
        self._most_rows = target.shapes.rows[-1]
        self._texts: list[TextRounds] = []  # the oldest first
        self._chunks = 0  # of all prompts

    def add(self, text: TextRounds) -> None:
        """Adds a text. Hold the lock."""
        self._forget_closed()
        self._texts.append(text)

    def make(self, text: TextRounds) -> None:
        """Makes a round of a text, and of all that can share its pass. Hold the lock.

        Args:
            text: has no round ready. If its prompt is not read yet, a chunk of the prompt whose
                turn it is is read, which may be another's.
        """
        self._forget_closed()
        waiting = [each for each in self._texts if each is not text and each.waits]
        others = [each for each in waiting if not each.reading]
        if not text.reading:
            self._share([text, *others])
            return
        if any(not each.ready for each in others):
            self._share(others)
            self.lock.look()  # their threads need not wait for the chunk
        self._next_prompt(text).go_on(Company())

    def _next_prompt(self, asking: TextRounds) -> TextRounds:
        self._chunks += 1
        prompts = [each for each in self._texts if each.reading and (each.waits or each is asking)]
        if self._chunks % _OLDEST_EVERY == 0:
            return prompts[0]
        return min(prompts, key=lambda each: each.unread)

    def _forget_closed(self) -> None:
        for text in self._texts:
            if text.closed:
                self._passes.leave(text.pipeline.target)
                if text.caller is not None:
                    self._drafts.leave(text.caller)
        self._texts = [text for text in self._texts if not text.closed]

    def _share(self, texts: Sequence[TextRounds]) -> None:
        """Makes a round of each of these texts."""
        sharing = [each for each in texts if each.shares]
        tables = self._passes.tables([each.pipeline.target for each in sharing])
        seated = dict(zip(sharing, tables, strict=True))
        for text in texts:
            if text.asked is None:
                text.go_on(self._company(text, seated) if text.shares else Company())
        self._drafts.make(texts)
        self._share_rows(seated)
        for text in texts:
            if isinstance(text.asked, Pass) and not text.shares:
                begin = time.perf_counter()
                try:
                    results = text.pipeline.verify(text.asked.rows)
                except Exception as error:
                    text.fail(error)
                else:
                    text.answer(Passed(results), time.perf_counter() - begin)
        waiting = [each for each in sharing if isinstance(each.asked, Pass)]
        asked = [(t.pipeline.target, t.asked.rows) for t in waiting if isinstance(t.asked, Pass)]
        try:
            for cost, made in self._passes.timed(asked):
                shared = cost if len(texts) > 1 else None
                for number, results in made:
                    waiting[number].answer(Passed(results, shared), cost.seconds)
        except Exception as error:
            for text in waiting:
                if text.asked is not None:
                    text.fail(error)

    def _share_rows(self, seated: Mapping[TextRounds, int | None]) -> None:
        """Tells texts how much of their trees they may verify, see `offers.grant`."""
        for table in dict.fromkeys(seated.values()):
            mine = [text for text in seated if seated[text] == table]
            offers = [(text, text.asked) for text in mine if isinstance(text.asked, Offer)]
            if len(mine) == 1 or table is None or not offers:
                for text, offer in offers:
                    text.granted(offer.alone())
                continue
            passes = [text.asked for text in mine if isinstance(text.asked, Pass)]
            others = [text for text in seated if text not in mine]
            granted = grant(
                [offer for _, offer in offers],
                rows=len(offers) + sum(len(each.rows.tokens) for each in passes),
                most_rows=self._most_rows,
                texts=sum(text.asked is not None for text in seated),
                seconds=sum(each.drafted for each in seated)
                + sum(each.verifying for each in others),
            )
            for (text, _), answer in zip(offers, granted, strict=True):
                text.granted(answer)

    def _company(self, text: TextRounds, seated: Mapping[TextRounds, int | None]) -> Company:
        # Among them are those whose draft model reads: what holds up all holds up them, too.
        others = [each for each in seated if each is not text]
        table = seated[text]
        beside = [each for each in others if table is not None and seated[each] == table]
        rows = sum(each.rows for each in beside)
        apart = sum(each.verifying for each in others if each not in beside)
        coming = sum(each.reading and each.waits for each in self._texts)
        return Company(
            texts=len(beside),
            rows=rows,
            tokens=sum(each.tokens for each in others),
            seconds=sum(each.drafting for each in others) + apart,
            drafting=sum(each.caller is not None for each in others),
            coming=coming,
            room=max(self._most_rows - rows, 1),
        )
