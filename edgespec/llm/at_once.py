"""Several texts at once, each read on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeGuard, TypeVar

from edgespec.errors import InputError
from edgespec.system.waiting import require_waiting

if TYPE_CHECKING:
    from edgespec.llm.result import Result

TEXTS_AT_ONCE = 8
"""Number of texts that are made at once if nothing else was asked for."""

Prompt = str | Sequence[int]

T = TypeVar("T")
Outcome = TypeVar("Outcome")
Outcome_co = TypeVar("Outcome_co", covariant=True)


class Work(Protocol[Outcome_co]):
    """What is made on a thread: the stream of a text, or what behaves like one."""

    @property
    def tokens(self) -> int:
        """The number of tokens so far, for who shows the speed."""

    def cancel(self) -> None:
        """Ends the work after its current round; may be called from any thread."""

    def finish(self) -> Outcome_co:
        """Does the work, and returns what it has made."""


class TextsAtOnce:
    """Reads streams on threads, some at once.

    Args:
        parallel: number of texts at once.
    """

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._reading: set[Work[object]] = set()
        self._tokens = 0  # of the texts that have ended
        self._cancelled = False

    @property
    def tokens(self) -> int:
        """The number of new tokens so far, those of unfinished texts included."""
        return self._tokens + sum(stream.tokens for stream in tuple(self._reading))

    def cancel(self) -> None:
        """Ends all texts after their current round, and begins no more; also in signal handlers."""
        self._cancelled = True
        for stream in tuple(self._reading):
            stream.cancel()

    def read(
        self, items: Iterable[T], begin: Callable[[T], Work[Outcome]]
    ) -> Generator[tuple[T, Future[Outcome]]]:
        """Makes a text for each item.

        If the generator is closed early, or fails, the other texts end after their current round.

        Args:
            items: items, which are taken in order, each when its text is about to begin.
            begin: creates the stream of an item; called on a thread.

        Yields:
            Each item with its text, or with the error of `begin` or of the text, as they end. Items
            that were not begun before `cancel` are left out.
        """
        waiting = iter(items)
        running: dict[Future[Outcome], T] = {}
        threads = ThreadPoolExecutor(self._parallel, "edgespec-at-once")
        try:
            while True:
                free = 0 if self._cancelled else self._parallel - len(running)
                for item in islice(waiting, free):
                    running[threads.submit(self._text, begin, item)] = item
                if not running:
                    return
                for text in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(text), text
        finally:
            if running:
                self.cancel()
            threads.shutdown()

    def _text(self, begin: Callable[[T], Work[Outcome]], item: T) -> Outcome:
        stream = begin(item)
        self._reading.add(stream)
        try:
            if self._cancelled:  # before the stream was among those to cancel
                stream.cancel()
            result = stream.finish()
        finally:
            self._reading.discard(stream)
        self._tokens += stream.tokens  # only shown, so that a lost update would not matter
        return result


def are_prompts(prompt: object) -> TypeGuard[list[Prompt]]:
    """Whether this is a list of texts, or of lists of token ids, and not one prompt."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


def tokens_of_all(
    prompts: list[Prompt], tokens: Callable[[Prompt], list[int]], name: str = "prompts"
) -> list[list[int]]:
    """Converts prompts to token ids.

    Args:
        prompts: the prompts.
        tokens: converts one of them.
        name: what errors call the list.

    Raises:
        InputError: if a prompt is invalid; names its index.
    """
    found = []
    for index, prompt in enumerate(prompts):
        require_waiting()
        try:
            found.append(tokens(prompt))
        except InputError as error:
            raise type(error)(f"{name}[{index}]: {error}") from error
    return found


def results_of_all(
    prompts: list[list[int]], begin: Callable[[list[int]], Work[Result]], parallel: int
) -> list[Result]:
    """Makes the texts of all prompts, and returns them in the order of the prompts.

    Raises:
        EdgespecError: the first error, after the other texts have ended.
    """
    results: dict[int, Result] = {}
    texts = TextsAtOnce(parallel).read(range(len(prompts)), lambda index: begin(prompts[index]))
    with closing(texts):
        for index, text in texts:
            results[index] = text.result()
    return [results[index] for index in range(len(prompts))]
