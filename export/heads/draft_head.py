"""A draft head on its way into a bundle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Self

from edgespec import bundle as bundles
from edgespec.bundle import PoolShape
from edgespec.errors import InputError
from edgespec.export.exporter import check_drafted
from edgespec.export.heads.attach import PRECISIONS, attach_head, sizes_of
from edgespec.export.heads.identity import checkpoint_weights
from edgespec.export.role import Progress
from edgespec.models import Attention, Checkpoint
from edgespec.models.heads.assistant import Assistant
from edgespec.models.heads.checkpoint import HeadCheckpoint, TargetSizes
from edgespec.models.heads.mtp import MTP, checkpoint_with_head, holds_head
from edgespec.models.heads.opening import is_head, load_head

_DEFAULT = "int8"


class DraftHead:
    """A draft head of a model; its text says what the bundle got.

    Args:
        path: folder or GGUF file of the head, or of a checkpoint that holds one.
        target: the checkpoint of its target, or the folder of a bundle.
        precision: precision of its weights; None for the default.

    Raises:
        CheckpointError: if one of them is damaged, or the head belongs to another target.
        InputError: if heads do not have this precision, or the target makes embeddings.
        UnsupportedModelError: if one of them needs something that is not implemented.
    """

    def __init__(self, path: Path, target: Checkpoint | Path, precision: str | None = None) -> None:
        self._path = path
        self._precision = precision or _DEFAULT
        self._attached: HeadCheckpoint | None = None
        if self._precision not in PRECISIONS:
            raise InputError(
                f"draft_precision is {precision!r}: a head has one of {', '.join(PRECISIONS)}"
            )
        load_head(path, target_sizes(target))

    @classmethod
    def of(
        cls, target: Checkpoint | Path, draft: Path | None, precision: str | None = None
    ) -> Self | None:
        """Returns the head to draft with; None if the draft is a model, or there is neither.

        Args:
            target: as above.
            draft: what a user named to draft with: a head, a smaller model, or a checkpoint like
                the target's that holds a head; None: what the target's checkpoint holds.
            precision: as above.
        """
        if draft is not None:
            drafts = is_head(draft) or _holds_head_of(draft, target)
            return cls(draft, target, precision) if drafts else None
        if isinstance(target, Checkpoint) and holds_head(target):
            return cls(target.path, target, precision)
        return None

    def attach(self, folder: Path, progress: Progress) -> None:
        """Adds the head to a bundle, see `attach_head`."""
        self._attached = attach_head(folder, self._path, self._precision, progress)

    def __str__(self) -> str:
        if self._attached is None:
            return "no draft head"
        head = self._attached.head
        tokens = len(self._attached.ids)
        if head.architecture == MTP:
            return f"draft head: the checkpoint's own (MTP), proposes {tokens:,} tokens"
        if isinstance(head, Assistant):
            return f"draft head: reads the target's keys and values, proposes {tokens:,} tokens"
        taps = ", ".join(map(str, head.taps))
        return f"draft head: reads what enters layers {taps}, proposes {tokens:,} tokens"


def _holds_head_of(draft: Path, target: Checkpoint | Path) -> bool:
    """Whether a checkpoint of the target's size holds a head, which drafts, and not its model."""
    checkpoint = checkpoint_with_head(draft)
    if checkpoint is None:
        return False
    decoder = checkpoint.decoder
    sizes = target_sizes(target)
    return (len(decoder.layers), decoder.hidden_size) == (sizes.layers, sizes.hidden_size)


def target_sizes(target: Checkpoint | Path) -> TargetSizes:
    """Returns what a head must agree with, of a checkpoint or the folder of a bundle.

    Raises:
        InputError: if the target makes embeddings.
    """
    if isinstance(target, Path):
        role = bundles.load(target).target
        check_drafted(role)
        return sizes_of(role, target)
    check_drafted(target, str(target.path))
    decoder = target.decoder
    rope = next(iter(decoder.ropes.values()))
    return TargetSizes(
        layers=len(decoder.layers),
        hidden_size=decoder.hidden_size,
        vocab_size=decoder.vocab_size,
        tokens=decoder.vocab_size,
        inv_freq=tuple(map(float, rope.inv_freq)),
        pools=tuple(
            PoolShape(number, each.kv_heads, -(-each.head_dim // 16) * 16, each.window)
            for number, layer in enumerate(decoder.layers)
            for each in layer
            if isinstance(each, Attention) and each.source is None
        ),
        weights=partial(checkpoint_weights, target),
    )
