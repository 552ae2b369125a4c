"""A draft head on its way into a bundle."""

from __future__ import annotations

from pathlib import Path

from edgespec.bundle import PoolShape
from edgespec.errors import InputError
from edgespec.export import HEAD_PRECISIONS, Progress, attach_head, check_drafted
from edgespec.models import Attention, load_checkpoint
from edgespec.models.heads.head import Assistant, HeadCheckpoint, TargetSizes
from edgespec.models.heads.mtp import MTP
from edgespec.models.heads.opening import load_head

_DEFAULT = "int8"


class DraftHead:
    """A draft head that `edgespec export` was given or found; its text says what the bundle got.

    Args:
        path: folder of the head, or of a checkpoint that holds one.
        precision: precision of its weights; None for the default.

    Raises:
        InputError: if heads do not have this precision.
    """

    def __init__(self, path: Path, precision: str | None) -> None:
        self._path = path
        self._precision = precision or _DEFAULT
        self._attached: HeadCheckpoint | None = None
        if self._precision not in HEAD_PRECISIONS:
            raise InputError(
                f"draft_precision is {precision!r}: a head has one of {', '.join(HEAD_PRECISIONS)}"
            )

    def check(self, target: Path) -> None:
        """Checks the head against a checkpoint, before the long export of that begins.

        Raises:
            CheckpointError: if one of them is damaged, or the head belongs to another target.
            InputError: if the target makes embeddings.
            UnsupportedModelError: if one of them needs something that is not implemented.
        """
        checkpoint = load_checkpoint(target)
        check_drafted(checkpoint, str(target))
        decoder = checkpoint.decoder
        rope = next(iter(decoder.ropes.values()))
        load_head(
            self._path,
            TargetSizes(
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
            ),
        )

    def attach(self, folder: Path, progress: Progress) -> None:
        """Adds the head to a bundle, see `attach_head`."""
        self._attached = attach_head(folder, self._path, self._precision, progress)

    def __str__(self) -> str:
        if self._attached is None:
            return "no draft head"
        head, tokens = self._attached.head, len(self._attached.ids)
        if head.architecture == MTP:
            return f"draft head: the checkpoint's own (MTP), proposes {tokens:,} tokens"
        if isinstance(head, Assistant):
            return f"draft head: reads the target's keys and values, proposes {tokens:,} tokens"
        taps = ", ".join(map(str, head.taps))
        return f"draft head: reads what enters layers {taps}, proposes {tokens:,} tokens"
