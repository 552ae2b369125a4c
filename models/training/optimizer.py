"""Optimizers and learning-rate schedule shared by target and draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Rates:
    """Learning rates and schedule.

    Attributes:
        muon: Peak rate of the layers' matrices.
        adamw: Peak rate of embedding and norms.
        warmup: Tokens over which the rate rises linearly.
        decay: Share of the run, at its end, over which the rate falls linearly to zero.
    """

    muon: float = 0.02
    adamw: float = 4e-3
    warmup: int = 300_000
    decay: float = 0.5


class Optimizers:
    """Muon (Jordan et al. 2024) for the layers' matrices, AdamW (Loshchilov & Hutter 2019) else.

    The schedule is warm-up, stable, decay (Hu et al. 2024): a run can be lengthened or shortened
    on resumption until its decay has begun.
    """

    def __init__(self, model: nn.Module, rates: Rates) -> None:
        """Sort ``model``'s parameters into the two optimizers."""
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self.rates = rates
        self.muon = torch.optim.Muon(matrices, lr=rates.muon, momentum=0.95, weight_decay=0.0)
        self.adamw = torch.optim.AdamW(
            rest, lr=rates.adamw, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def step(self, seen: int, done: float) -> float:
        """Update the parameters and clear their gradients.

        Args:
            seen: Tokens seen so far.
            done: Share of the run that is over, between 0 and 1.

        Returns:
            The share of the peak rates that was applied.
        """
        left = (1 - done) / max(1e-9, self.rates.decay)
        share = max(0.0, min(1.0, left, (seen + 1) / max(1, self.rates.warmup)))
        for optimizer, peak in ((self.muon, self.rates.muon), (self.adamw, self.rates.adamw)):
            for group in optimizer.param_groups:
                group["lr"] = peak * share
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad(set_to_none=True)
        return share

    def state(self) -> dict[str, Any]:
        """What is needed to resume."""
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Resume from :meth:`state`."""
        self.muon.load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])
