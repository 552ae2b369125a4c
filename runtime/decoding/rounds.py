"""The rounds of all texts of a model: texts that decode at the same time share passes.

Each text is read by a thread of its own, which asks for its next round and holds the model's lock
for that time. If other texts decode too, the thread makes a round of all of them at once, and what
the others gained waits for their threads. A prompt is read a chunk at a time, and before each chunk
all texts that wait get a round, so that a long prompt holds them up for one chunk at most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from edgespec.errors import DeviceError
from edgespec.runtime.decoding.drafts import SharedDrafts
from edgespec.runtime.decoding.generate import PROMPT, Pass, Passed, Round, TextSteps
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters.base import LATEST_WEIGHT
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import Call, Called, Chunk
from edgespec.runtime.trees.company import Company, PassCost

_AHEAD = 2  # rounds that a text may be ahead of its reader, so that threads need not keep step


class TextRounds:
    """The rounds of one text, which `Rounds.begin` returns.

    Attributes:
        pipeline: drafter and target.
        reading: whether the prompt is still being read.
        over: whether the text has ended.
        closed: whether its reader wants no more of it.
        ready: rounds that nobody has asked for yet, and the seconds inside the engines.
        asked: the pass that it waits for, or what its draft waits for.
        rows, tokens, seconds: what a round has lately been: rows to verify, tokens gained, and the
            seconds of its draft, of calls that texts share its part.
        caller: the text in the draft model, if its last draft made calls that texts can share.
    """

    def __init__(
        self, rounds: Rounds, pipeline: Serial, steps: TextSteps, models: Sequence[Model]
    ) -> None:
        self.pipeline = pipeline
        self.reading, self.over, self.closed = True, False, False
        self.ready = deque[tuple[Round, float]]()
        self.asked: Pass | Call | Chunk | None = None
        self.rows, self.tokens, self.seconds = 1, 1.0, 0.0
        self.caller: Runner | None = None
        self._calling: Runner | None = None
        self._drafting = 0.0  # seconds of its draft so far
        self._rounds, self._steps, self._models = rounds, steps, models
        self._company = Company()
        self._engines, self._begun = 0.0, False
        self._error: Exception | None = None

    def next(self) -> tuple[Round, float] | None:
        """Makes or fetches the next round; None if the text is over. Hold the model's lock.

        Returns:
            The round, and the seconds that it took inside the engines.

        Raises:
            DeviceError: if an engine failed, or another text's thread was interrupted in a round of
                both.
        """
        while not self.ready and not self.over:
            self._rounds.make(self)
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
        """Whether it decodes and may be given a further round."""
        return not (self.reading or self.over) and len(self.ready) < _AHEAD

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
        self._calling, self._drafting = None, 0.0
        self._send(self._company if self._begun else None)

    def answer(self, passed: Passed, seconds: float) -> None:
        """Takes the step behind a pass of this duration."""
        self._engines += seconds
        self._send(passed)

    def called(self, answer: Called | None, seconds: float) -> None:
        """See `edgespec.runtime.decoding.drafts.Drafting`."""
        self._engines += seconds
        if answer is not None:
            self._drafting += answer.cost.share
        self._send(answer)

    def fail(self, error: Exception) -> None:
        """Ends the text with an error, which its own thread gets."""
        self.over, self.asked, self._error = True, None, error

    def _send(self, answer: Passed | Called | Company | None) -> None:
        chunk, self.asked = isinstance(self.asked, Chunk), None
        begin, before = time.perf_counter(), sum(model.seconds for model in self._models)
        try:
            step = self._steps.send(answer)
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
            self._drafting += time.perf_counter() - begin
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
            self.seconds += (self._drafting - self.seconds) * LATEST_WEIGHT

    def _finish(self, step: Round) -> None:
        self.reading = self.reading and not step.tokens
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
    """

    def __init__(self, target: Model) -> None:
        self._passes, self._drafts = JointPasses(target), SharedDrafts()
        self._most_rows = target.shapes.rows[-1]
        self._texts: list[TextRounds] = []

    def begin(self, pipeline: Serial, steps: TextSteps, models: Sequence[Model]) -> TextRounds:
        """Adds a text.

        Args:
            pipeline: its drafter and target.
            steps: the text, from its first step on.
            models: models whose time inside the engines counts.
        """
        self._forget_closed()
        text = TextRounds(self, pipeline, steps, models)
        self._texts.append(text)
        return text

    def make(self, text: TextRounds) -> None:
        """Makes a round of a text that has none ready, and of all that can share its pass."""
        self._forget_closed()
        others = [each for each in self._texts if each is not text and each.waits]
        if not text.reading:
            self._share([text, *others])
            return
        if any(not each.ready for each in others):
            self._share(others)
        text.go_on(Company())

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
        for text in texts:
            if text.asked is None:
                text.go_on(self._company(text, sharing) if text.shares else Company())
        self._drafts.make(texts)
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
        passes, begin = self._passes.verify(asked), time.perf_counter()
        while True:
            try:
                made = next(passes, None)
            except Exception as error:
                for text in waiting:
                    if text.asked is not None:
                        text.fail(error)
                return
            if made is None:
                return
            seconds = time.perf_counter() - begin
            cost = PassCost(len(made), sum(len(asked[n][1].tokens) for n, _ in made), seconds)
            for number, results in made:
                shared = cost if len(texts) > 1 else None
                waiting[number].answer(Passed(results, shared), seconds)
            begin = time.perf_counter()

    def _company(self, text: TextRounds, texts: Sequence[TextRounds]) -> Company:
        # Among them are those whose draft model reads: what holds up all holds up them, too.
        others = [each for each in texts if each is not text]
        rows = sum(each.rows for each in others)
        return Company(
            texts=len(others),
            rows=rows,
            tokens=sum(each.tokens for each in others),
            seconds=sum(each.seconds for each in others),
            drafting=sum(each.caller is not None for each in others),
            room=max(self._most_rows - rows, 1),
        )
