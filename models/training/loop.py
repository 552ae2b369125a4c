"""The training loop of both models; it saves checkpoints and prints JSON lines now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from network import Decoder
from optimizer import Optimizers, Rates
from torch import Tensor

LossOf = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Run:
    """The length of a training run and its batch sizes.

    Attributes:
        state: File of the resumable state; training continues from it if it exists.
        tokens: Tokens to see at most.
        minutes: Minutes of wall clock to take at most; the schedule follows whichever of the two
            limits is nearer, so that a run on a busy machine still ends with its decay.
        batch: Windows per step.
        length: Tokens per window.
        seed: Decides initial weights and order.
        save_seconds: Time between two saves, in seconds.
        log_steps: Steps between two log lines.
        judge_steps: Steps between two held-out measurements.
    """

    state: Path
    tokens: int
    minutes: float
    batch: int
    length: int
    seed: int
    save_seconds: float = 120.0
    log_steps: int = 25
    judge_steps: int = 400


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` so that an interruption leaves the old file or the new one."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def train(
    model: Decoder,
    loss_of: LossOf,
    batches: Callable[[int], Iterator[Tensor]],
    judge: Callable[[], dict[str, float]],
    rates: Rates,
    run: Run,
) -> None:
    """Train ``model`` until ``run.tokens`` tokens have been seen or ``run.minutes`` are over.

    Args:
        model: The model to train in place.
        loss_of: Loss in nats per token of one batch (batch, length + 1).
        batches: Batches after the given number of steps.
        judge: Held-out measurements, logged now and then.
        rates: Learning rates.
        run: Length, sizes and where the state lies.
    """
    optimizers = Optimizers(model, rates)
    step, seen, begun = 0, 0, time.monotonic()
    if run.state.exists():
        state = torch.load(run.state, weights_only=True)
        model.load_state_dict(state["model"])
        optimizers.load(state["optimizers"])
        step, seen = state["step"], state["seen"]
        begun -= state.get("seconds", 0.0)
        report({"resumed_at_tokens": seen})

    def checkpoint() -> None:
        save(
            run.state,
            {
                "model": model.state_dict(),
                "optimizers": optimizers.state(),
                "step": step,
                "seen": seen,
                "seconds": time.monotonic() - begun,
                "shape": model.shape.asdict(),
            },
        )

    saved = logged = time.monotonic()
    logged_at, losses = seen, torch.zeros(0)
    stream = batches(step)
    done = seen / run.tokens
    while done < 1:
        loss = loss_of(next(stream))
        loss.backward()  # type: ignore[no-untyped-call]
        share = optimizers.step(seen, done)
        step, seen = step + 1, seen + run.batch * run.length
        losses = torch.cat((losses, loss.detach().view(1)))
        now = time.monotonic()
        done = max(seen / run.tokens, (now - begun) / (60 * run.minutes))
        if step % run.log_steps == 0:
            rate = (seen - logged_at) / (now - logged)
            line = {"step": step, "tokens": seen, "loss": round(float(losses.mean()), 4)}
            report(line | {"rate": round(share, 4), "tokens_per_second": round(rate)})
            logged, logged_at, losses = now, seen, torch.zeros(0)
        if now - saved > run.save_seconds:
            checkpoint()
            saved = now
        if step % run.judge_steps == 0:
            report({"step": step, "tokens": seen} | judge())
            logged = time.monotonic()
    checkpoint()
    report({"tokens": seen} | judge())


def report(line: dict[str, Any]) -> None:
    """Print one JSON line."""
    print(json.dumps(line), flush=True)
