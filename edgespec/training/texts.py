"""The texts that a head learns from: given ones, or a target's own answers and continuations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgespec.errors import InputError
from edgespec.measuring.prompts import read_prompts
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.files import read_utf8
from edgespec.training.prompts import Prompt, mixed_prompt

_MIX = 50_000  # prompts that are built in
_SEEN = 500  # of them, of which it is counted what tokens they use
_PROMPT_SHARE = 4  # a prompt cut from a text is one part in so many of a window
_TEMPERATURES = (0.0, 0.8)  # of texts in turn
_PROMPTS = ".jsonl"

Enough = Callable[[], bool]
"""Whether texts are to end where they are."""

Write = Callable[[Sequence[Sequence[int]], Sequence[float], int, Enough], list[list[int]]]
"""Goes on with prompts at temperatures, by a seed; see `TargetWriter.write`."""


class Windows(Protocol):
    """Texts of a limited length, by number.

    Attributes:
        count: how many there are.
        tokens: tokens of the texts as they were given.
        about: what they are, in words.
    """

    count: int
    tokens: Sequence[int]
    about: str

    def kind(self, number: int) -> str:
        """Returns what kind of text a number has."""

    def windows(
        self, numbers: Sequence[int], at_once: int, enough: Enough
    ) -> Iterator[list[list[int]]]:
        """Yields the token ids of texts in their order, some at once."""


class GivenTexts:
    """Given text, cut into windows.

    Args:
        tokens: the text.
        beginning: tokens before each window.
        length: tokens of a window, its beginning included.

    Raises:
        InputError: if the text is too short for two windows.
    """

    def __init__(self, tokens: Sequence[int], beginning: Sequence[int], length: int) -> None:
        self.tokens = tokens
        self.about = "given texts, as they are"
        self._beginning = list(beginning)
        self._length = length - len(beginning)
        self.count = len(tokens) // self._length
        if self.count < 2:
            raise InputError(
                f"the text has {len(tokens)} tokens: give at least {2 * self._length}, better a "
                "hundred thousand and more"
            )

    def kind(self, number: int) -> str:
        """See `Windows`."""
        return "text"

    def windows(
        self, numbers: Sequence[int], at_once: int, enough: Enough
    ) -> Iterator[list[list[int]]]:
        """See `Windows`."""
        yield [self.window(number) for number in numbers]

    def window(self, number: int) -> list[int]:
        """Returns the token ids of a window."""
        start = number * self._length
        return [*self._beginning, *self.tokens[start : start + self._length]]


class Continuations:
    """A target's own continuations of prompts, greedy and sampled in turn.

    Args:
        write: writes them.
        prompts: the prompts, whose tokens are found when they are needed.
        tokenizer: the target's.
        length: tokens of a window; longer prompts are cut.

    Raises:
        InputError: if there are too few.
    """

    def __init__(
        self, write: Write, prompts: Sequence[Prompt], tokenizer: Tokenizer, length: int
    ) -> None:
        if len(prompts) < 2:
            raise InputError(
                f"there are {len(prompts)} prompts: give at least two, better hundreds"
            )
        self._write = write
        kinds = sorted({prompts[number].kind for number in range(min(len(prompts), _SEEN))})
        self.about = f"the model's own answers to prompts ({', '.join(kinds)}), greedy and sampled"
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._most = length * 3 // 4
        self.count = len(prompts)
        seen = range(min(self.count, _SEEN))
        self.tokens: Sequence[int] = [token for each in seen for token in self._prompt(each)]

    def kind(self, number: int) -> str:
        """See `Windows`."""
        return self._prompts[number].kind

    def windows(
        self, numbers: Sequence[int], at_once: int, enough: Enough
    ) -> Iterator[list[list[int]]]:
        """See `Windows`; what is drawn follows from the first number of those at once."""
        for start in range(0, len(numbers), at_once):
            chosen = numbers[start : start + at_once]
            heat = [_TEMPERATURES[number % 2] for number in chosen]
            yield self._write([self._prompt(number) for number in chosen], heat, chosen[0], enough)

    def _prompt(self, number: int) -> list[int]:
        return self._prompts[number].tokens(self._tokenizer)[: self._most]


class _Mix(Sequence[Prompt]):
    """The built-in mix."""

    def __len__(self) -> int:
        return _MIX

    def __getitem__(self, number: Any) -> Any:
        return mixed_prompt(number)


def texts_of(
    files: Sequence[Path], tokenizer: Tokenizer, length: int, write: Write | None
) -> Windows:
    """Returns the windows of files, or of the built-in mix of prompts.

    Args:
        files: UTF-8 texts; with `write` also .jsonl files with a prompt per line; none: the mix.
        tokenizer: the target's.
        length: tokens of a window.
        write: continues what the files begin; None: they are read as they are.

    Raises:
        InputError: if a file is not UTF-8, is empty, or all together are too short.
        OSError: if a file cannot be read.
    """
    if not files:
        if write is None:
            raise InputError("there is no text: give --text, or leave out --no-generate")
        return Continuations(write, _Mix(), tokenizer, length)
    prompts = list[Prompt]()
    tokens = list[int]()
    for file in files:
        text = read_utf8(file, "the training text")
        if not text.strip():
            raise InputError(f"{file} is empty: give a text of ten thousand words and more")
        if file.suffix == _PROMPTS:
            if write is None:
                raise InputError(f"{file} holds prompts: leave out --no-generate, or give texts")
            prompts += (Prompt(file.stem, each) for each in read_prompts([file]))
        else:
            tokens += tokenizer.encode(text, add_special=False)
    beginning = tokenizer.encode("")
    if write is None:
        return GivenTexts(tokens, beginning, length)
    if tokens:
        cut = GivenTexts(tokens, beginning, length)
        begun = (cut.window(number)[: length // _PROMPT_SHARE] for number in range(cut.count))
        prompts += (Prompt(cut.kind(0), "", ids=tuple(each)) for each in begun)
    return Continuations(write, prompts, tokenizer, length)


def shuffled(count: int, *seed: int) -> list[int]:
    """Returns the numbers below `count` in an order that follows from the seed."""
    order: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return order
