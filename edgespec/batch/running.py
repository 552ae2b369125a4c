"""A batch from its input to its output, over as many starts as it takes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edgespec.batch.answering import Answerer, Task, answer_id
from edgespec.batch.files import Journal, Requests, Start
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.llm.at_once import TextsAtOnce
from edgespec.llm.llm import LLM
from edgespec.system.files import replaced, sync_folder

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """A batch and its files.

    Attributes:
        requests: the input.
        output: file of all answers, written at the end.
        bundle: digest of the bundle.
        model: name of the model for clients.
    """

    requests: Requests
    output: Path
    bundle: str
    model: str

    @property
    def key(self) -> str:
        """The name of the batch, which follows from input, bundle and model name."""
        facts = json.dumps([self.requests.digest, self.bundle, self.model])
        return hashlib.sha256(facts.encode()).hexdigest()

    @property
    def partial(self) -> Path:
        """The file of the journal."""
        return Path(f"{self.output}.partial")

    def failures(self) -> int | None:
        """Returns the number of errors in the output; None if it is not there yet.

        Raises:
            InputError: if the output exists and is not this batch's.
        """
        if not os.path.lexists(self.output):
            return None
        failed = 0
        try:
            with self.output.open("rb") as file:
                for line, data in zip(self.requests.lines, file, strict=True):
                    answer = json.loads(data)
                    if answer["id"] != answer_id(self.key, line.number):
                        raise ValueError("an answer to something else")
                    failed += answer["response"]["status_code"] >= 400
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.output} exists and is not this batch's output: give another name, or "
                "replace it with --restart"
            ) from error
        return failed

    def forget(self) -> None:
        """Deletes the journal, if there is one."""
        self.partial.unlink(missing_ok=True)

    def journal(self) -> Journal | None:
        """Opens the journal of an earlier start; None if there is none.

        Raises:
            InputError: if it is of another input or model.
        """
        if not self.partial.exists():
            return None
        journal = Journal(self.partial)
        start = journal.start
        for what, found, wanted in (
            ("input", start.input, self.requests.digest),
            ("bundle", start.bundle, self.bundle),
            ("model name", start.model, self.model),
        ):
            if found != wanted:
                journal.close()
                raise InputError(
                    f"{self.partial} was begun with another {what}: give the same {what} to go on, "
                    "or begin again with --restart"
                )
        return journal

    def begin(self, llm: LLM) -> Journal:
        """Creates the journal.

        Raises:
            InputError: if it cannot be written.
        """
        return Journal.begin(
            self.partial,
            Start(
                input=self.requests.digest,
                bundle=self.bundle,
                model=self.model,
                context=llm.context_length,
                engine=llm.engines[TARGET],
                created=self.requests.time,
            ),
        )

    def answer(
        self, llm: LLM, journal: Journal, texts: TextsAtOnce, report: Callable[[], None]
    ) -> bool:
        """Answers the requests that have no answer yet.

        Args:
            llm: model to use.
            journal: journal of this batch.
            texts: makes the texts; cancel it to stop after the current rounds.
            report: called after each answer.

        Returns:
            Whether all requests have their answers.

        Raises:
            EdgespecError: if the device or memory fails, or the journal cannot be written. Answers
                so far are kept.
        """
        answerer = Answerer(llm, self.model, self.key, journal.start.created)
        lines = (line for line in self.requests.lines if line.number not in journal)
        tasks = texts.read((Task(answerer, line) for line in lines), Task.begin)
        with closing(tasks):
            for task, made in tasks:
                if task.stopped(made):
                    continue
                journal.add(task.line.number, task.output(made))
                report()
        return len(journal) == len(self.requests.lines)

    def finish(self, journal: Journal) -> None:
        """Writes the output at once, and deletes the journal.

        Raises:
            InputError: if the output cannot be written; the journal is kept.
        """
        with replaced(self.output, private=True) as partial, partial.open("wb") as file:
            file.writelines(journal.outputs())
        sync_folder(self.output.resolve().parent)
        journal.close()
        self.forget()


def require_same(journal: Journal, llm: LLM) -> None:
    """Checks that a batch goes on as it was begun; another engine is only told.

    Raises:
        InputError: if the context is another one, which may change texts.
    """
    start = journal.start
    engine = llm.engines[TARGET]
    if llm.context_length != start.context:
        raise InputError(
            f"the batch was begun with a context of {start.context} tokens and would go on with "
            f"{llm.context_length}: give --context {start.context}, or begin again with --restart"
        )
    if engine != start.engine:
        _log.warning(
            "the first %d answers were made on %s and the others are made on %s: texts may differ "
            "at near-ties from those of one start",
            len(journal),
            start.engine,
            engine,
        )
