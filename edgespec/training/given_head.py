"""A head that was trained before, with which a training goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgespec.bundle import Bundle
from edgespec.errors import InputError
from edgespec.export.heads.attach import sizes_of
from edgespec.models.formats.parts import Parts
from edgespec.models.formats.tensors import TensorSource
from edgespec.models.heads.block_head import BlockHead
from edgespec.models.heads.head import Head
from edgespec.models.heads.mtp import usual_name
from edgespec.models.heads.opening import load_head
from edgespec.runtime.arrays import Floats, Ids
from edgespec.training.drafting import HeadModule
from edgespec.training.options import DSPARK, EAGLE3, GATED, KINDS, MTP, TrainingOptions
from edgespec.training.shape import rope_theta
from edgespec.training.target_graph import TargetGraph

_PROJECTION = "lm_head.weight"


class GivenHead:
    """A head of a target.

    Args:
        path: its folder or file.
        bundle: the target's bundle.

    Attributes:
        head: its description.
        ids: the tokens that it may propose.
        kind: one of `KINDS`.

    Raises:
        CheckpointError: if it is damaged, or another target's.
        InputError: if heads like it are not trained.
        UnsupportedModelError: if it needs something that is not implemented.
    """

    def __init__(self, path: Path, bundle: Bundle) -> None:
        self._path = path
        self._target = bundle.target
        found = load_head(path, sizes_of(bundle.target, bundle.path))
        self._tensors = found.tensors
        head = found.head
        if head.architecture not in KINDS or not isinstance(head, Head | BlockHead):
            raise self._refused(f"is of the form {head.architecture}")
        gated = isinstance(head, Head) and head.layer.gate is not None
        self.kind = GATED if gated and head.architecture == EAGLE3 else head.architecture
        self.head = head
        self.ids: Ids = found.ids
        self._model = {} if found.model is None else found.model.values
        if self.kind == MTP:
            self._tensors = _of_checkpoint(found.tensors)

    def _refused(self, why: str) -> InputError:
        return InputError(
            f"{self._path} {why}, which training can't go on with: give a head of `train-draft`, "
            "or leave out --init"
        )

    def chosen(self, options: TrainingOptions) -> TrainingOptions:
        """Returns options with what the head decides.

        Raises:
            InputError: if they ask for another kind.
        """
        if options.kind not in (EAGLE3, self.kind):
            raise InputError(
                f"{self._path} is of kind {self.kind}: leave out --kind {options.kind}"
            )
        steps = options.steps
        if isinstance(self.head, BlockHead):
            steps = self.head.size - (not self.head.from_anchor)
        elif self.head.masks is not None:
            steps = self.head.masks.rows
        return replace(options, kind=self.kind, taps=self.head.taps, steps=steps)

    def sizes(self) -> dict[str, Any]:
        """Returns the fields of its shape, see `new_head`."""
        head = self.head
        attention = head.attention
        inv_freq = self._target.inv_freq if head.rope is None else head.rope.inv_freq
        found: dict[str, Any] = {
            "hidden": head.hidden_size,
            "intermediate": self._mlp_width(),
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "taps": head.taps,
            "vocabulary": head.vocab_size,
            "draft_vocabulary": len(self.ids),
            "eps": head.norm.eps,
            "theta": rope_theta(tuple(map(float, inv_freq))),
            "context": head.context_length,
        }
        if isinstance(head, BlockHead):
            rank = 0 if head.markov is None else head.markov.previous.in_features
            return {
                **found,
                "layers": len(head.layers),
                "mask_token": head.mask_token,
                "block": head.size,
                "markov_rank": rank,
            }
        if self.kind == MTP:
            return {
                **found,
                "offset": head.norm.offset,
                "gated": attention.gated,
                "turned": 2 * int(np.count_nonzero(inv_freq)),
                "model": self._model,
            }
        if head.masks is None:
            return {**found, "gated": self.kind == GATED}
        return {**found, "layers": head.depth, "mask_token": head.masks.token}

    def _mlp_width(self) -> int:
        mlp = self.head.layers[0].mlp if isinstance(self.head, BlockHead) else self.head.layer.mlp
        return next(each.out_features for each in mlp.linears)

    def projection(self, graph: TargetGraph) -> Floats:
        """Returns its output projection, or the target's rows if it has none, [D, H] float32."""
        if self.head.lm_head is None:
            return graph.projection.rows(self.ids)
        return self._tensors.read(_PROJECTION)

    def fill(self, module: HeadModule) -> None:
        """Gives a module the head's weights.

        Raises:
            InputError: if the head has other ones.
        """
        head = self.head
        if isinstance(head, Head) and (
            head.layer.norm_before_residual or head.norm_output != (self.kind == MTP)
        ):
            raise self._refused("has its norms in another place")
        if isinstance(head, BlockHead):
            if any(each.attention.window or each.causal for each in head.layers):
                raise self._refused("has windows, or sees no rows behind its own")
            if head.from_anchor != (self.kind == DSPARK):
                raise self._refused("predicts other positions than its kind does")
        if self._is_scaled():
            raise self._refused("scales its rotary embedding")
        shapes = {name: shape for name, shape in head.tensors().items() if name != _PROJECTION}
        own = {self._stored(name): each for name, each in module.named_parameters()}
        wanted = {name: tuple(each.shape) for name, each in own.items()}
        for name in sorted({*shapes, *wanted}):
            if shapes.get(name) != wanted.get(name):
                raise self._refused(
                    f"has {name} of shape {shapes.get(name)}, not {wanted.get(name)}"
                )
        with torch.no_grad():
            for name, each in own.items():
                each.copy_(torch.from_numpy(np.ascontiguousarray(self._tensors.read(name))))

    def _is_scaled(self) -> bool:
        """Whether it has a rotary embedding that is not given by its base alone."""
        rope = self.head.rope
        if rope is None or self.kind == MTP:
            return False
        count = len(rope.inv_freq)
        usual = rope_theta(tuple(map(float, rope.inv_freq))) ** (-np.arange(count) / count)
        return rope.attention_factor != 1 or not np.allclose(rope.inv_freq, usual, rtol=1e-4)

    def _stored(self, name: str) -> str:
        """Returns the name that a parameter of a module has among the head's tensors."""
        return usual_name(name) if self.kind == MTP else name


def _of_checkpoint(tensors: TensorSource) -> TensorSource:
    """Returns tensors with their rows in the order of checkpoints."""
    return tensors.tensors if isinstance(tensors, Parts) else tensors
