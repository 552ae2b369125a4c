"""The texts that a head learns from: given ones, or a target's own continuations of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from edgespec.api.llm import LLM
from edgespec.errors import InputError
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

    def window(self, number: int) -> list[int]:
        """Returns the token ids of a text."""


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

    def window(self, number: int) -> list[int]:
        """See `Windows`."""
        start = number * self._length
        return [*self._beginning, *self.tokens[start : start + self._length]]


class Continuations:
    """A target's own continuations of prompts.

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

    def window(self, number: int) -> list[int]:
        """See `Windows`; the seed is the number, so that it is always the same text."""
        prompt = self._prompts[number]
        made = self._llm.generate(
            prompt,
            max_new_tokens=self._length - len(prompt),
            temperature=_TEMPERATURE,
            seed=number,
        )
        return [*prompt, *made.tokens]


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
    prompts, tokens = list[list[int]](), list[int]()
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
        prompts += (cut.window(n)[: length // _PROMPT_SHARE] for n in range(cut.count))
    return Continuations(llm, prompts, length)


def _chat(llm: LLM, prompt: str) -> list[int]:
    if not llm.tokenizer.has_chat_template:
        return llm.tokenizer.encode(prompt)
    return llm.chat_tokens([{"role": "user", "content": prompt}])


def shuffled(count: int, *seed: int) -> list[int]:
    """Returns the numbers below `count` in an order that follows from the seed."""
    order: list[int] = np.random.default_rng(seed).permutation(count).tolist()
    return order
