"""A head that is being trained: its weights, their average, and AdamW's state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import InputError
from edgespec.runtime.arrays import Floats
from edgespec.training.drafting import HeadModule, Step, TextBatch
from edgespec.training.loss import ProjectedLoss
from edgespec.training.vocabulary import DraftIds, offsets

if TYPE_CHECKING:
    from edgespec.training.shards import TrainingWindow
    from edgespec.training.target_graph import TokenTiles

_WARM_UP = 50  # steps
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

    embedding: TokenTiles
    projection: Floats
    norm: Floats
    ids: DraftIds


class TrainedHead:
    """A head, its optimizer, and the average of its weights over the last steps.

    The average is what is evaluated and saved: it takes the place of a decaying learning rate, so
    that the training may end at any time.

    Args:
        head: the head, with weights as they are before the training.
        target: what it takes from the target.
        learning_rate: AdamW's learning rate, after a warm-up.
        seed: seed of where drafts begin.

    Attributes:
        rate: AdamW's learning rate, after a warm-up.
        device: where it is trained.
        steps: steps of the optimizer.
    """

    def __init__(self, head: HeadModule, target: Target, learning_rate: float, seed: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._target = target
        self.rate = learning_rate
        self._seed = seed
        self.head = head.to(self.device)
        self.average = deepcopy(self.head)
        self._half = self._half_precision()
        self._projection = torch.from_numpy(target.projection).to(self.device, self._half)
        self._optimizer = torch.optim.AdamW(
            self.head.parameters(), learning_rate, _BETAS, weight_decay=0.0, fused=True
        )
        self.steps = 0

    def step(self, batch: TextBatch) -> float:
        """Makes one step of the optimizer; returns the loss per token, over all depths.

        Raises:
            InputError: if the loss is not finite. The weights are as they were before.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, (self.steps + 1) / _WARM_UP)
        self._optimizer.zero_grad()
        random = torch.Generator().manual_seed((self._seed << 32) + self.steps)
        total = torch.zeros((), device=self.device)
        weights = 0.0
        with self._autocast():
            for predicted in self.head.unroll(batch, random):
                weight = self.head.decay**predicted.depth
                total = total + weight * self._loss(self.head, predicted, batch)[0]
                weights += weight
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

    def _loss(self, head: HeadModule, step: Step, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """Returns the mean loss of a depth, and the head's choices [B, n]."""
        labels, shares = (
            each.gather(1, step.at[..., None].expand(-1, -1, each.shape[-1]))
            for each in (batch.labels, batch.shares)
        )
        before = None if step.before is None else step.before.flatten(0, 1)
        total, chosen, overlaps = ProjectedLoss.apply(  # type: ignore[no-untyped-call]
            step.rows.flatten(0, 1),
            self._projection,
            labels.flatten(0, 1),
            shares.flatten(0, 1),
            before,
            head.after,
        )
        counted = shares.sum(-1)
        further = head.further_loss(step, overlaps.view(step.at.shape), counted)
        return total / counted.sum().clamp(min=1) + further, chosen.view(step.at.shape)

    @torch.no_grad()
    def acceptance(self, batches: Iterable[TextBatch]) -> list[float]:
        """Measures how often a target accepts each depth of a drafted chain.

        A depth counts where all before it were accepted, so that its inputs are what they would be
        in decoding: where text, target's likeliest tokens and head agree up to there.

        Args:
            batches: texts that the head does not learn from.

        Returns:
            The share of accepted tokens by depth.
        """
        ids = torch.from_numpy(self._target.ids.ids).to(self.device)
        reached = np.zeros(self.head.depths)
        accepted = np.zeros(self.head.depths)
        for batch in batches:
            with self._autocast():
                alive = torch.ones_like(batch.real)
                for predicted in self.average.unroll(batch):
                    at = predicted.at
                    depth = predicted.depth
                    tokens = ids[self._loss(self.average, predicted, batch)[1]]
                    alive = alive[:, : at.shape[1]] & batch.real.gather(1, at)
                    right = tokens == batch.choices.gather(1, at)
                    reached[depth] += int(alive.sum())
                    accepted[depth] += int((alive & right).sum())
                    # The next depth reads the text, which must be what was drafted.
                    behind = (at + 1).clamp(max=batch.tokens.shape[1] - 1)
                    alive = alive & right & (tokens == batch.tokens.gather(1, behind))
        shares: list[float] = (accepted / reached.clip(min=1)).tolist()
        return shares

    def batch(self, windows: Sequence[TrainingWindow]) -> TextBatch:
        """Returns texts side by side."""
        length = max(len(window.tokens) for window in windows)
        parts = [self._padded(window, length) for window in windows]
        together = (np.stack(each) for each in zip(*parts, strict=True))
        return TextBatch(*(torch.from_numpy(each).to(self.device) for each in together))

    def _padded(self, window: TrainingWindow, length: int) -> list[np.ndarray]:
        tokens = np.asarray(window.tokens, np.int64)
        labels, shares = self._target.ids.labels(
            np.asarray(window.top_ids, np.int64), np.asarray(window.top_logits, np.float32)
        )
        arrays = (
            np.asarray(window.features, np.float32),
            self._target.embedding.rows(tokens),
            tokens,
            np.asarray(window.top_ids[:, 0], np.int64),
            labels,
            shares,
            np.ones(len(tokens), np.bool_),
        )
        missing = length - len(tokens)
        if not missing:
            return list(arrays)
        return [np.pad(each, [(0, missing), *[(0, 0)] * (each.ndim - 1)]) for each in arrays]

    def _half_precision(self) -> torch.dtype:
        """Products in half precision, where the processor has them; else float32."""
        if self.device.type == "cuda":
            return torch.bfloat16
        able = torch.cpu.get_capabilities()
        fast = able.get("avx512_bf16") or able.get("amx_bf16")
        return torch.bfloat16 if fast else torch.float32

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self._half is torch.bfloat16
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
            first = _part(state, "exp_avg.")
            second = _part(state, "exp_avg_sq.")
            for name, each in self.head.named_parameters():
                self._optimizer.state[each] = {
                    "step": torch.tensor(float(steps), device=self.device),
                    "exp_avg": first[name].to(self.device),
                    "exp_avg_sq": second[name].to(self.device),
                }

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the averaged weights and the projection in half precision, and its tokens."""
        found = {
            name: each.detach().cpu().to(torch.float16).numpy()
            for name, each in self.average.state_dict().items()
        }
        shifts, proposed = offsets(self._target.ids.ids, self.head.shape.vocabulary)
        projection = self._target.projection.astype(np.float16)
        return {**found, "lm_head.weight": projection, "d2t": shifts, "t2d": proposed}


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)
    }
