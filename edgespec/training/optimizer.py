"""A head that is being trained: its weights, their average, and AdamW's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from edgespec.errors import InputError
from edgespec.runtime.arrays import Floats
from edgespec.training.device import TorchDevice
from edgespec.training.drafting import HeadModule, Step, TextBatch
from edgespec.training.loss import ProjectedLoss
from edgespec.training.vocabulary import DraftIds, offsets

if TYPE_CHECKING:
    from edgespec.training.shards import TrainingWindow

_WARM_UP = 50  # steps
_LARGEST_NORM = 1.0  # of the gradients
_AVERAGED = 0.99  # share of the average that a step leaves as it was
_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Target:
    """What a head takes from its target and leaves as it is.

    Attributes:
        embedded: rows of the embedding by tokens, both on the device.
        projection: [D, H] float32 rows of the output projection for the draft vocabulary.
        ids: the draft vocabulary.
    """

    embedded: Callable[[Tensor], Tensor]
    projection: Floats
    ids: DraftIds


@dataclass(frozen=True)
class Accepted:
    """How often a target accepted each depth of drafted chains.

    Attributes:
        reached: by depth, how many drafts there were all of whose tokens before were accepted.
        accepted: how many of these had the next one accepted, too.
    """

    reached: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    def __add__(self, other: Accepted) -> Accepted:
        reached, accepted = (
            tuple(map(sum, zip_longest(one, another, fillvalue=0)))
            for one, another in ((self.reached, other.reached), (self.accepted, other.accepted))
        )
        return Accepted(reached, accepted)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of accepted tokens by depth."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return tuple(accepted / max(reached, 1) for accepted, reached in pairs)


class TrainedHead:
    """A head, its optimizer, and the average of its weights over the last steps.

    The average is what is evaluated and saved: it takes the place of a decaying learning rate, so
    that the training may end at any time.

    Args:
        head: the head, with weights as they are before the training.
        target: what it takes from the target.
        device: where it is trained.
        learning_rate: AdamW's learning rate, after a warm-up.
        seed: seed of where drafts begin.

    Attributes:
        rate: AdamW's learning rate, after a warm-up.
        device: where it is trained.
        steps: steps of the optimizer.
    """

    def __init__(
        self,
        head: HeadModule,
        target: Target,
        device: TorchDevice,
        learning_rate: float,
        seed: int,
    ) -> None:
        self.device = device.device
        self._target = target
        self.rate = learning_rate
        self._seed = seed
        self.head = head.to(self.device)
        self.average = deepcopy(self.head)
        self._autocast = device.autocast
        self._projection = torch.from_numpy(target.projection).to(self.device, device.half)
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
        with self._autocast:
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
    def acceptance(self, batches: Iterable[TextBatch]) -> Accepted:
        """Measures how often a target accepts each depth of a drafted chain.

        A depth counts where all before it were accepted, so that its inputs are what they would be
        in decoding: where text, target's likeliest tokens and head agree up to there.

        Args:
            batches: texts that the head does not learn from.

        """
        ids = self._target.ids.tokens
        reached = [0] * self.head.depths
        accepted = [0] * self.head.depths
        for batch in batches:
            with self._autocast:
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
        return Accepted(tuple(reached), tuple(accepted))

    @torch.no_grad()
    def batch(self, windows: Sequence[TrainingWindow]) -> TextBatch:
        """Returns texts side by side, each with room for a draft of all depths."""
        count, length = len(windows), max(len(window.tokens) for window in windows)
        length = max(length, self.head.depths + 3)

        def padded(name: str, kind: type[np.generic]) -> Tensor:
            parts = [getattr(window, name) for window in windows]
            made = np.zeros((count, length, *parts[0].shape[1:]), kind)
            for row, part in zip(made, parts, strict=True):
                row[: len(part)] = part
            return torch.from_numpy(made).to(self.device)

        tokens = padded("tokens", np.int64)
        ids = padded("top_ids", np.int64)
        lengths = torch.tensor([len(window.tokens) for window in windows], device=self.device)
        real = torch.arange(length, device=self.device) < lengths[:, None]
        labels, shares = self._target.ids.labels(ids, padded("top_logits", np.float16))
        return TextBatch(
            padded("features", np.float16).float(),
            self._target.embedded(tokens),
            tokens,
            ids[..., 0],
            labels,
            shares * real[..., None],
            real,
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
        """Returns the averaged weights, and the projection with its tokens if that is stored."""
        found = {
            name: each.detach().cpu().to(torch.float16).numpy()
            for name, each in self.average.state_dict().items()
        }
        if not self.head.projects:
            return found
        shifts, proposed = offsets(self._target.ids.ids, self.head.shape.vocabulary)
        projection = self._target.projection.astype(np.float16)
        return {**found, "lm_head.weight": projection, "d2t": shifts, "t2d": proposed}


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)
    }
