"""The draft: distilled from the target, on code and on the target's own text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import data
import measures
import torch
from checkpoint import load_folder, read_folder
from loop import Run, report, train
from losses import Losses
from network import ARITHMETIC, Decoder
from optimizer import Rates
from sampling import generate, pieces
from torch import Tensor

PROMPT = 128
"""Tokens of code before the target's own text in a row of samples."""

TEMPERATURES = (0.8, 0.0)
"""The target's own text is sampled and greedy in turns, since drafts are used for both."""


@dataclass(frozen=True)
class Recipe:
    """What the draft learns from.

    Attributes:
        work: The run's folder, with the tokens of both sides.
        target: The target's checkpoint folder.
        init: Checkpoint folder to start the draft from, or None to start from noise.
        own_rows: Rows of the target's own text to generate.
        own_every: Number of steps per step that uses a batch of these rows.
        hard: Share of the target's probability that is moved to its arg-max.
        compiled: Whether to compile, which needs a C++ compiler.
    """

    work: Path
    target: Path
    init: Path | None
    own_rows: int = 1536
    own_every: int = 4
    hard: float = 0.2
    compiled: bool = True


def samples(recipe: Recipe, target: Decoder, ids: Tensor, length: int, seed: int) -> Tensor:
    """The target's own text (rows, length + 1), generated once and kept beside the tokens."""
    path = recipe.work / "own_text.pt"
    if path.exists():
        kept: Tensor = torch.load(path, weights_only=True)
        return kept
    per_call = 128
    parts: list[Tensor] = []
    for first in range(0, recipe.own_rows, per_call):
        prompts = pieces(ids, min(per_call, recipe.own_rows - first), PROMPT, seed + first)
        heat = TEMPERATURES[len(parts) % len(TEMPERATURES)]
        parts.append(generate(target, prompts, length + 1 - PROMPT, heat, seed + first))
        report({"own_rows": first + len(prompts)})
    text = torch.cat(parts)
    torch.save(text, path)
    return text


def distill(recipe: Recipe, draft: Decoder, rates: Rates, run: Run) -> None:
    """Train ``draft`` until ``run.tokens`` tokens have been seen."""
    target = read_folder(recipe.target).to(ARITHMETIC).requires_grad_(False)
    if recipe.init is not None:
        load_folder(draft, recipe.init)
    ids, heldout = data.load(recipe.work, "train"), data.load(recipe.work, "heldout")
    own = samples(recipe, target, ids, run.length, run.seed)
    judged = measures.rows_of(heldout[:20_000], run.length)
    teach = torch.compile(target, dynamic=False) if recipe.compiled else target
    learn = torch.compile(draft, dynamic=False) if recipe.compiled else draft
    losses = Losses(recipe.compiled)

    def loss_of(batch: Tensor) -> Tensor:
        inputs = batch[:, :-1]
        with torch.no_grad():
            taught = teach(inputs).flatten(0, 1)
        return losses.distillation(
            learn(inputs).flatten(0, 1),
            draft.embed_tokens.weight,
            taught,
            target.embed_tokens.weight,
            recipe.hard,
        )

    def batches(done: int) -> Iterator[Tensor]:
        code = data.windows(ids, run.length, run.batch, run.seed + 1000, skip=done)
        pieces = cycle(torch.split(own, run.batch)[: len(own) // run.batch])
        for step in range(done, 1 << 62):
            yield next(pieces) if step % recipe.own_every == recipe.own_every - 1 else next(code)

    def judge() -> dict[str, float]:
        return {f"heldout_{k}": v for k, v in measures.compare(draft, target, judged).items()}

    train(draft, loss_of, batches, judge, rates, run)
