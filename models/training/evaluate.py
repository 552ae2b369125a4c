"""Measure a pair of checkpoint folders on held-out code and on the target's own text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data
import measures
import torch
from checkpoint import read_folder
from loop import report
from network import Decoder
from sampling import generate, pieces
from tokenizers import Tokenizer
from torch import Tensor

PROMPTS = (
    '''def running_maximum(numbers: list[int]) -> list[int]:
    """Return the largest number seen so far at each position.

    >>> running_maximum([1, 3, 2])
    [1, 3, 3]
    """
''',
    '''def is_palindrome(text: str) -> bool:
    """Check whether text reads the same backwards.

    >>> is_palindrome("level")
    True
    """
''',
    '''from collections import Counter


def most_common_word(text: str) -> str:
    """Return the word that occurs most often in text."""
''',
    '''import os


def find_files(folder, suffix):
    """Yield the paths of all files below folder that end in suffix."""
''',
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
""",
)
DTYPE = torch.float32
OWN_ROWS, PROMPT = 32, 128


def prompt_texts(target: Decoder, tokenizer: Tokenizer, tokens: int, heat: float) -> list[Tensor]:
    """The target's continuations of ``PROMPTS``, each (1, prompt + tokens)."""
    texts = []
    for index, prompt in enumerate(PROMPTS):
        ids = torch.tensor([[0, *tokenizer.encode(prompt).ids]])
        texts.append(generate(target, ids, tokens, heat, index, DTYPE))
    return texts


def repetition(texts: list[Tensor], tokens: int) -> float:
    """Mean share of repeated runs of 8 tokens in the last ``tokens`` tokens of each text."""
    shares = [measures.repeated(row[-tokens:].tolist()) for text in texts for row in text]
    return sum(shares) / len(shares)


def along(draft: Decoder, target: Decoder, texts: list[Tensor], tokens: int) -> dict[str, float]:
    """Mean comparison over the last ``tokens`` tokens of each of ``texts``."""
    # The token at position p is predicted at position p - 1.
    found = [
        measures.compare(draft, target, text, text.shape[1] - 1 - tokens, DTYPE) for text in texts
    ]
    return {key: sum(one[key] for one in found) / len(found) for key in found[0]}


def report_own(
    draft: Decoder, target: Decoder, name: str, texts: list[Tensor], tokens: int
) -> None:
    """Print the measurements of the last ``tokens`` tokens of texts, the target's own."""
    line: dict[str, Any] = {"measure": name, "tokens": sum(map(len, texts)) * tokens}
    line["repeated_8grams"] = repetition(texts, tokens)
    report(rounded(line | along(draft, target, texts, tokens)))


def evaluate(work: Path, target_folder: Path, draft_folder: Path, length: int, tokens: int) -> None:
    """Print every measurement as JSON lines, sampled text last.

    Args:
        work: The run's folder, with the held-out tokens.
        target_folder: The target's checkpoint folder.
        draft_folder: The draft's checkpoint folder.
        length: Window length for held-out code, in tokens.
        tokens: Tokens to generate for each prompt.
    """
    target, draft = read_folder(target_folder), read_folder(draft_folder)
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    heldout = data.load(work, "heldout")
    windows = measures.rows_of(heldout, length)
    line: dict[str, Any] = {"measure": "held-out code", "tokens": windows[:, 1:].numel()}
    line["repeated_8grams"] = repetition([windows], tokens)
    report(rounded(line | measures.compare(draft, target, windows, 0, DTYPE)))
    # Prompts from held-out code, which the draft has never seen continued.
    prompts = pieces(heldout, OWN_ROWS, PROMPT, seed=12345)
    for heat in (0.0, 0.8):
        own = [generate(target, prompts, tokens, heat, 12345)]
        report_own(draft, target, f"own text after held-out code, T={heat}", own, tokens)
    for heat in (0.0, 0.8):
        texts = prompt_texts(target, tokenizer, tokens, heat)
        report_own(draft, target, f"own text after {len(PROMPTS)} prompts, T={heat}", texts, tokens)
        for text in texts if heat > 0 else texts[:2]:
            print("-" * 30, f"T={heat}", "-" * 30)
            print(tokenizer.decode(text[0].tolist(), skip_special_tokens=False))


def rounded(line: dict[str, Any]) -> dict[str, Any]:
    """``line`` with its floats to four places."""
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
