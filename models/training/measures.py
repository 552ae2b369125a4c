"""What is measured of the pair: loss, agreement of the draft with the target, repetition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import data
import torch
from loop import report
from network import generate, logits_of, pieces, read_folder
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

RANKS = 4
ROWS = 4
"""Rows whose logits exist at a time."""

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
OWN_ROWS = 32
PROMPT = 128
SEED = 12345


def rows_of(ids: Tensor, length: int) -> Tensor:
    """Cut ``ids`` into windows (rows, length + 1), each label seen once."""
    count = (len(ids) - 1) // length
    return ids[torch.arange(count)[:, None] * length + torch.arange(length + 1)]


@torch.no_grad()
def loss(model: LlamaForCausalLM, windows: Tensor) -> float:
    """Mean next-token loss over ``windows`` (rows, length + 1), in nats per token."""
    total = 0.0
    for rows in torch.split(windows, ROWS):
        logits = logits_of(model, rows[:, :-1]).flatten(0, 1)
        labels = rows[:, 1:].flatten()
        total += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return total / windows[:, 1:].numel()


@torch.no_grad()
def compare(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, windows: Tensor, start: int = 0
) -> dict[str, float]:
    """How well the draft predicts the target when both read the same text.

    Args:
        draft: The draft.
        target: The target.
        windows: Text both read (rows, length + 1).
        start: Positions before this one are context only.

    Returns:
        ``rank1`` to ``rank4``: share of positions at which the draft's token of that rank is the
        target's arg-max. ``acceptance``: mean over positions of the sum over tokens of
        min(draft, target) at temperature 1, which is the chance that speculative sampling
        (Leviathan et al. 2023) accepts one drafted token. ``kl``: mean KL(target || draft), nats.
        ``target_loss`` and ``draft_loss``: mean loss on the text itself, nats per token.
    """
    hits = torch.zeros(RANKS)
    sums = torch.zeros(4)
    positions = 0
    for rows in torch.split(windows, ROWS):
        text = rows[:, :-1]
        following = rows[:, start + 1 :, None]
        wanted = logits_of(target, text, start).log_softmax(-1)
        given = logits_of(draft, text, start).log_softmax(-1)
        best = given.topk(RANKS, dim=-1).indices
        hits += (best == wanted.argmax(-1, keepdim=True)).sum((0, 1))
        chance = wanted.exp()
        sums[0] += torch.minimum(chance, given.exp()).sum()
        sums[1] += (chance * (wanted - given)).sum()
        sums[2] -= wanted.gather(-1, following).sum()
        sums[3] -= given.gather(-1, following).sum()
        positions += following.numel()
    result = {f"rank{i + 1}": float(hit) / positions for i, hit in enumerate(hits)}
    names = ("acceptance", "kl", "target_loss", "draft_loss")
    return result | {name: float(s) / positions for name, s in zip(names, sums, strict=True)}


def repeated(ids: Sequence[int], size: int = 8) -> float:
    """The share of ``ids``' runs of ``size`` tokens that occurred before in ``ids``."""
    runs = Counter(tuple(ids[i : i + size]) for i in range(len(ids) - size + 1))
    total = sum(runs.values())
    return (total - len(runs)) / total if total else 0.0


def mean(found: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(found) / len(found)


def evaluate(work: Path, target_folder: Path, draft_folder: Path, length: int, tokens: int) -> None:
    """Print every measurement as JSON lines, sampled text last.

    Args:
        work: The run's folder, with the held-out tokens.
        target_folder: The target's checkpoint folder.
        draft_folder: The draft's checkpoint folder.
        length: Window length for held-out code, in tokens.
        tokens: Tokens to generate for each prompt.
    """
    target = read_folder(target_folder)
    draft = read_folder(draft_folder)
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))

    def show(name: str, texts: list[Tensor], last: int | None) -> None:
        """Report on the last tokens of texts; None: on all of them."""
        # The token at position p is predicted at position p - 1.
        starts = [0 if last is None else text.shape[1] - 1 - last for text in texts]
        found = [compare(draft, target, *each) for each in zip(texts, starts, strict=True)]
        shares = [repeated(row[-tokens:].tolist()) for text in texts for row in text]
        count = sum(text[:, start + 1 :].numel() for text, start in zip(texts, starts, strict=True))
        facts = {"measure": name, "tokens": count, "repeated_8grams": mean(shares)}
        report(facts | {key: mean([each[key] for each in found]) for key in found[0]})

    heldout = data.load(work, "heldout")
    show("held-out code", [rows_of(heldout, length)], None)
    # Prompts from held-out code, which the draft has never seen continued.
    prompts = pieces(heldout, OWN_ROWS, PROMPT, SEED)
    for heat in (0.0, 0.8):
        own = generate(target, prompts, tokens, heat, SEED)
        show(f"own text after held-out code, T={heat}", [own], tokens)
    for heat in (0.0, 0.8):
        given = [
            torch.tensor([[0, *tokenizer.encode(prompt, add_special_tokens=False).ids]])
            for prompt in PROMPTS
        ]
        texts = [generate(target, ids, tokens, heat, n) for n, ids in enumerate(given)]
        show(f"own text after {len(PROMPTS)} prompts, T={heat}", texts, tokens)
        for text in texts if heat > 0 else texts[:2]:
            print("-" * 30, f"T={heat}", "-" * 30)
            print(tokenizer.decode(text[0].tolist(), skip_special_tokens=False))
