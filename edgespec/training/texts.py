"""The texts that a head learns from: given ones, or a target's own continuations of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

import numpy as np

from edgespec.errors import InputError
from edgespec.llm.at_once import TEXTS_AT_ONCE, TextsAtOnce
from edgespec.llm.llm import LLM
from edgespec.llm.stream import Stream
from edgespec.measuring.prompts import read_prompts
from edgespec.system.files import read_utf8

_PROMPT_SHARE = 4  # a prompt cut from a text is one part in so many of a window
_TEMPERATURE = 0.8
_PROMPTS = ".jsonl"


class Windows(Protocol):
    """Texts of a limited length, by number.

    Attributes:
        count: how many there are.
        tokens: tokens of the texts as they were given.
    """

    count: int
    tokens: Sequence[int]

    def windows(self, numbers: Sequence[int]) -> Generator[tuple[int, list[int]]]:
        """Yields each text's number and token ids, in the order in which they end."""


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
        self._beginning = list(beginning)
        self._length = length - len(beginning)
        self.count = len(tokens) // self._length
        if self.count < 2:
            raise InputError(
                f"the text has {len(tokens)} tokens: give at least {2 * self._length}, better a "
                "hundred thousand and more"
            )

    def windows(self, numbers: Sequence[int]) -> Generator[tuple[int, list[int]]]:
        """See `Windows`."""
        for number in numbers:
            start = number * self._length
            yield number, [*self._beginning, *self.tokens[start : start + self._length]]


class Continuations:
    """A target's own continuations of prompts, several at once.

    Args:
        llm: the target.
        prompts: token ids of each prompt.
        length: tokens of a window; longer prompts are cut.
    """

    def __init__(self, llm: LLM, prompts: Sequence[Sequence[int]], length: int) -> None:
        if len(prompts) < 2:
            raise InputError(
                f"there are {len(prompts)} prompts: give at least two, better hundreds"
            )
        self._llm = llm
        self._prompts = [list(each[: length * 3 // 4]) for each in prompts]
        self._length = length
        self.count = len(prompts)
        self.tokens: Sequence[int] = [token for each in self._prompts for token in each]

    def windows(self, numbers: Sequence[int]) -> Generator[tuple[int, list[int]]]:
        """See `Windows`; the seed is the number, so that it is always the same text."""
        with closing(TextsAtOnce(TEXTS_AT_ONCE).read(numbers, self._begun)) as texts:
            for number, text in texts:
                yield number, [*self._prompts[number], *text.result().tokens]

    def _begun(self, number: int) -> Stream:
        prompt = self._prompts[number]
        new = self._length - len(prompt)
        return self._llm.stream(prompt, max_new_tokens=new, temperature=_TEMPERATURE, seed=number)


def texts_of(llm: LLM, files: Sequence[Path], length: int, generate: bool) -> Windows:
    """Returns the windows of files.

    Args:
        llm: the target.
        files: UTF-8 texts; with `generate` also .jsonl files with a prompt per line.
        length: tokens of a window.
        generate: whether the target continues what the files begin.

    Raises:
        InputError: if a file is not UTF-8, is empty, or all together are too short.
        OSError: if a file cannot be read.
    """
    beginning = llm.tokenizer.encode("")
    prompts = list[list[int]]()
    tokens = list[int]()
    for file in files:
        text = read_utf8(file, "the training text")
        if not text.strip():
            raise InputError(f"{file} is empty: give a text of ten thousand words and more")
        if file.suffix == _PROMPTS:
            if not generate:
                raise InputError(f"{file} holds prompts: leave out --no-generate, or give texts")
            prompts += (_chat(llm, each) for each in read_prompts([file]))
        else:
            tokens += llm.tokenizer.encode(text, add_special=False)
    if not generate:
        return GivenTexts(tokens, beginning, length)
    if tokens:
        cut = GivenTexts(tokens, beginning, length)
        prompts += (text[: length // _PROMPT_SHARE] for _, text in cut.windows(range(cut.count)))
    return Continuations(llm, prompts, length)


def _chat(llm: LLM, prompt: str) -> list[int]:
    if not llm.tokenizer.has_chat_template:
        return llm.tokenizer.encode(prompt)
    return llm.chat_tokens([{"role": "user", "content": prompt}])


def shuffled(count: int, *seed: int) -> list[int]:
    """Returns the numbers below `count` in an order that follows from the seed."""
    order: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return order
