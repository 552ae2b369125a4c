"""A head that is being trained: its weights, their average, and AdamW's state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import InputError
from edgespec.runtime.arrays import Floats
from edgespec.training.head import DraftHead, ProjectedLoss
from edgespec.training.shape import HeadShape
from edgespec.training.shards import Window
from edgespec.training.target_graph import Matrix
from edgespec.training.vocabulary import DraftIds

_WARM_UP = 50  # steps
_DECAY = 0.8  # weight of a depth's loss, relative to the one before (Li et al., 2025)
_LARGEST_NORM = 1.0  # of the gradients
_AVERAGED = 0.99  # share of the average that a step leaves as it was
_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Target:
    """What a head takes from its target and leaves as it is.

    Attributes:
        embedding: the embedding.
        projection: [D, H] float32 rows of the output projection for the draft vocabulary.
        norm: [H] float32 weight of the final norm.
        ids: the draft vocabulary.
    """

    embedding: Matrix
    projection: Floats
    norm: Floats
    ids: DraftIds


@dataclass(frozen=True)
class Batch:
    """Texts side by side, padded to the longest.

    Attributes:
        features: [B, L, F].
        embedded: [B, L, H].
        tokens: [B, L] int64.
        choices: [B, L] int64, the target's likeliest next token.
        labels: [B, L, K] int64, numbers in the draft vocabulary of the target's likeliest tokens.
        shares: [B, L, K] their probabilities; 0 for padding.
        real: [B, L] whether a row is one of its text.
    """

    features: Tensor
    embedded: Tensor
    tokens: Tensor
    choices: Tensor
    labels: Tensor
    shares: Tensor
    real: Tensor


class TrainedHead:
    """A head, its optimizer, and the average of its weights over the last steps.

    The average is what is evaluated and saved: it takes the place of a decaying learning rate, so
    that the training may end at any time.

    Args:
        shape: sizes of the head.
        target: what it takes from the target.
        learning_rate: AdamW's learning rate, after a warm-up.
        depths: depths to train for.
        seed: seed of the random weights.
    """

    def __init__(
        self, shape: HeadShape, target: Target, learning_rate: float, depths: int, seed: int
    ) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._target, self._rate, self.depths = target, learning_rate, depths
        self.head = DraftHead(shape)
        self.head.start(torch.from_numpy(target.norm), seed)
        self.head.to(self._device)
        self.average = DraftHead(shape).to(self._device)
        self.average.load_state_dict(self.head.state_dict())
        self._half = self._half_precision()
        self._projection = torch.from_numpy(target.projection).to(self._device, self._half)
        self._optimizer = torch.optim.AdamW(
            self.head.parameters(), learning_rate, _BETAS, weight_decay=0.0, fused=True
        )
        self.steps = 0

    def step(self, windows: Sequence[Window]) -> float:
        """Makes one step of the optimizer; returns the loss per token, over all depths.

        Raises:
            InputError: if the loss is not finite. The weights are as they were before.
        """
        batch = self.batch(windows)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * min(1.0, (self.steps + 1) / _WARM_UP)
        self._optimizer.zero_grad()
        total, weights = torch.zeros((), device=self._device), 0.0
        with self._autocast():
            for predicted in self.head.unroll(batch.features, batch.embedded, self.depths):
                loss, _ = self._loss(predicted.rows, batch, predicted.depth)
                weight = _DECAY**predicted.depth
                total, weights = total + weight * loss, weights + weight
        total = total / weights
        found = float(total.detach())
        if not math.isfinite(found):
            raise InputError(
                f"the loss is {found} after {self.steps} steps: give a smaller --learning-rate; "
                "what was trained so far is kept"
            )
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), _LARGEST_NORM)
        self._optimizer.step()
        self.steps += 1
        self._take_average()
        return found

    def _take_average(self) -> None:
        kept = min(_AVERAGED, self.steps / (self.steps + 10))
        with torch.no_grad():
            for each, new in zip(self.average.parameters(), self.head.parameters(), strict=True):
                each.lerp_(new, 1 - kept)

    def _loss(self, rows: Tensor, batch: Batch, depth: int) -> tuple[Tensor, Tensor]:
        """Returns the mean loss of a depth, and the head's choices [B, n]."""
        labels, shares = batch.labels[:, depth + 1 :], batch.shares[:, depth + 1 :]
        flat = rows.flatten(0, 1), self._projection, labels.flatten(0, 1), shares.flatten(0, 1)
        losses, chosen = ProjectedLoss.apply(*flat)  # type: ignore[no-untyped-call]
        return losses.sum() / shares.sum().clamp(min=1), chosen.view(rows.shape[:2])

    @torch.no_grad()
    def acceptance(self, batches: Sequence[Sequence[Window]]) -> list[float]:
        """Measures how often a target accepts each depth of a drafted chain.

        A depth counts where all before it were accepted, so that its inputs are what they would be
        in decoding: where text, target's likeliest tokens and head agree up to there.

        Args:
            batches: texts that the head does not learn from.

        Returns:
            The share of accepted tokens by depth.
        """
        ids = torch.from_numpy(self._target.ids.ids).to(self._device)
        reached, accepted = np.zeros(self.depths), np.zeros(self.depths)
        for windows in batches:
            batch = self.batch(windows)
            alive = torch.ones_like(batch.real)
            with self._autocast():
                for predicted in self.average.unroll(batch.features, batch.embedded, self.depths):
                    depth = predicted.depth
                    _, chosen = self._loss(predicted.rows, batch, depth)
                    n = chosen.shape[1]
                    alive = alive[:, :n] & batch.real[:, depth + 1 :]
                    right = ids[chosen] == batch.choices[:, depth + 1 :]
                    reached[depth] += int(alive.sum())
                    accepted[depth] += int((alive & right).sum())
                    # The next depth reads the text, which must be what was drafted.
                    follows = torch.zeros_like(alive)
                    follows[:, : n - 1] = ids[chosen[:, :-1]] == batch.tokens[:, depth + 2 :]
                    alive = alive & right & follows
        shares: list[float] = (accepted / reached.clip(min=1)).tolist()
        return shares

    def batch(self, windows: Sequence[Window]) -> Batch:
        """Returns texts side by side."""
        length = max(len(window.tokens) for window in windows)
        parts = [self._padded(window, length) for window in windows]
        together = (np.stack(each) for each in zip(*parts, strict=True))
        return Batch(*(torch.from_numpy(each).to(self._device) for each in together))

    def _padded(self, window: Window, length: int) -> list[np.ndarray]:
        tokens = np.asarray(window.tokens, np.int64)
        labels, shares = self._target.ids.labels(
            np.asarray(window.top_ids, np.int64), np.asarray(window.top_logits, np.float32)
        )
        arrays = (
            np.asarray(window.features, np.float32), self._target.embedding.rows(tokens), tokens,
            np.asarray(window.top_ids[:, 0], np.int64), labels, shares,
            np.ones(len(tokens), np.bool_),
        )  # fmt: skip
        missing = length - len(tokens)
        if not missing:
            return list(arrays)
        return [np.pad(each, [(0, missing), *[(0, 0)] * (each.ndim - 1)]) for each in arrays]

    def _half_precision(self) -> torch.dtype:
        """Products in half precision, where the processor has them; else float32."""
        able = torch.cpu.get_capabilities()
        fast = self._device.type == "cuda" or able.get("avx512_bf16") or able.get("amx_bf16")
        return torch.bfloat16 if fast else torch.float32

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._half is torch.bfloat16
        )

    def state(self) -> dict[str, Tensor]:
        """Returns all tensors that `restore` needs."""
        found = {f"head.{name}": each for name, each in self.head.state_dict().items()}
        found |= {f"average.{name}": each for name, each in self.average.state_dict().items()}
        for name, each in self.head.named_parameters():
            for moment in ("exp_avg", "exp_avg_sq"):
                if each in self._optimizer.state:
                    found[f"{moment}.{name}"] = self._optimizer.state[each][moment]
        return {name: each.detach().cpu().contiguous() for name, each in found.items()}

    def restore(self, state: dict[str, Tensor], steps: int) -> None:
        """Takes over the state that another training gave after so many steps."""
        self.head.load_state_dict(_part(state, "head."))
        self.average.load_state_dict(_part(state, "average."))
        self.steps = steps
        if steps:
            first, second = _part(state, "exp_avg."), _part(state, "exp_avg_sq.")
            for name, each in self.head.named_parameters():
                self._optimizer.state[each] = {
                    "step": torch.tensor(float(steps), device=self._device),
                    "exp_avg": first[name].to(self._device),
                    "exp_avg_sq": second[name].to(self._device),
                }

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the averaged weights and the projection by name, in half precision."""
        found = {
            name: each.detach().cpu().to(torch.float16).numpy()
            for name, each in self.average.state_dict().items()
        }
        return {**found, "lm_head.weight": self._target.projection.astype(np.float16)}


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)
    }
