"""The training loop of both models; it saves checkpoints and prints JSON lines now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from network import arithmetic
from torch import Tensor, nn


@dataclass(frozen=True)
class Run:
    """The length of a training run, its batch sizes and learning rates.

    Attributes:
        state: File of the resumable state; training continues from it if it exists.
        tokens: Tokens to see at most.
        minutes: Minutes of wall clock to take at most; the schedule follows whichever of the two
            limits is nearer, so that a run on a busy machine still ends with its decay.
        batch: Windows per step.
        length: Tokens per window.
        seed: Decides initial weights and order.
        muon_rate: Peak learning rate of the layers' matrices.
        adamw_rate: Peak learning rate of embedding and norms.
        warmup: Tokens over which the rates rise linearly.
        decay: Share of the run, at its end, over which the rates fall linearly to zero.
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
    muon_rate: float
    adamw_rate: float
    warmup: int
    decay: float
    save_seconds: float = 120.0
    log_steps: int = 25
    judge_steps: int = 400


class Optimizers:
    """Muon (Jordan et al. 2024) for the layers' matrices, AdamW (Loshchilov & Hutter 2019) else.

    The schedule is warm-up, stable, decay (Hu et al. 2024): a run can be lengthened or shortened
    on resumption until its decay has begun.
    """

    def __init__(self, model: nn.Module, run: Run) -> None:
        """Sort ``model``'s parameters into the two optimizers."""
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self._run = run
        self.all = {
            "muon": torch.optim.Muon(matrices, lr=run.muon_rate, momentum=0.95, weight_decay=0.0),
            "adamw": torch.optim.AdamW(
                rest, lr=run.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
            ),
        }

    def step(self, seen: int, done: float) -> float:
        """Update the parameters and clear their gradients.

        Args:
            seen: Tokens seen so far.
            done: Share of the run that is over, between 0 and 1.

        Returns:
            The share of the peak rates that was applied.
        """
        left = (1 - done) / max(1e-9, self._run.decay)
        share = max(0.0, min(1.0, left, (seen + 1) / max(1, self._run.warmup)))
        peaks = self._run.muon_rate, self._run.adamw_rate
        for optimizer, peak in zip(self.all.values(), peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return share


def train(
    model: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    batches: Callable[[int], Iterator[Tensor]],
    judge: Callable[[], dict[str, float]],
    run: Run,
) -> None:
    """Train ``model`` until ``run.tokens`` tokens have been seen or ``run.minutes`` are over.

    Args:
        model: The model to train in place.
        loss_of: Loss in nats per token of one batch (batch, length + 1).
        batches: Batches after the given number of steps.
        judge: Held-out measurements, logged now and then.
        run: Length, sizes, rates and where the state lies.
    """
    optimizers = Optimizers(model, run)
    step = 0
    seen = 0
    begun = time.monotonic()
    if run.state.exists():
        state = torch.load(run.state, weights_only=True)
        model.load_state_dict(state["model"])
        for name, each in optimizers.all.items():
            each.load_state_dict(state[name])
        step = state["step"]
        seen = state["seen"]
        begun -= state["seconds"]
        report({"resumed_at_tokens": seen})

    def checkpoint() -> None:
        state = {"model": model.state_dict(), "step": step, "seen": seen}
        state |= {name: each.state_dict() for name, each in optimizers.all.items()}
        partial = run.state.with_suffix(".partial")  # an interruption leaves the old file
        torch.save({**state, "seconds": time.monotonic() - begun}, partial)
        partial.replace(run.state)

    saved = logged = time.monotonic()
    logged_at = seen
    losses = torch.zeros(0)
    stream = batches(step)
    done = seen / run.tokens
    while done < 1:
        with arithmetic():
            loss = loss_of(next(stream))
        loss.backward()  # type: ignore[no-untyped-call]
        share = optimizers.step(seen, done)
        step = step + 1
        seen = seen + run.batch * run.length
        losses = torch.cat((losses, loss.detach().view(1)))
        now = time.monotonic()
        done = max(seen / run.tokens, (now - begun) / (60 * run.minutes))
        if step % run.log_steps == 0:
            rate = (seen - logged_at) / (now - logged)
            line = {"step": step, "tokens": seen, "loss": round(float(losses.mean()), 4)}
            report(line | {"rate": round(share, 4), "tokens_per_second": round(rate)})
            logged = now
            logged_at = seen
            losses = torch.zeros(0)
        if now - saved > run.save_seconds:
            checkpoint()
            saved = now
        if step % run.judge_steps == 0:
            report({"step": step, "tokens": seen} | judge())
            logged = time.monotonic()
    checkpoint()
    report({"tokens": seen} | judge())


def report(line: dict[str, Any]) -> None:
    """Print one JSON line, its floats to four places."""
    short = {name: round(v, 4) if isinstance(v, float) else v for name, v in line.items()}
    print(json.dumps(short), flush=True)
