"""Writes a draft head: its graph, its weights in tiles, and its record in the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from edgespec import bundle
from edgespec.bundle.sublayers import ATTENTION, DEFAULT_ROPE, FUSION, Sublayer
from edgespec.export.graph_builder import DataFile
from edgespec.export.native.assistant import write_native_assistant
from edgespec.export.native.block_head import write_block, write_native_block
from edgespec.export.native.head import write_masks, write_native_head
from edgespec.export.native.weights import TileWeights
from edgespec.export.role import (
    Progress,
    counted,
    described_one,
    parameters,
    rope_table,
    rounded_errors,
    sublayer_records,
)
from edgespec.export.storage import Storage
from edgespec.models.heads.assistant import Assistant
from edgespec.models.heads.block_head import BlockHead
from edgespec.models.heads.checkpoint import HeadCheckpoint
from edgespec.models.heads.head import Head


def write_head(
    folder: Path,
    target: bundle.Role,
    checkpoint: HeadCheckpoint,
    precision: bundle.Precision,
    progress: Progress,
) -> bundle.Role:
    """Writes a head's files as the role `draft`.

    The embedding is read from the target's weights, unless the head has its own.

    Args:
        folder: folder of the bundle, which holds the target's files.
        target: the target's role.
        checkpoint: the head.
        precision: precision of its weights and its cache.
        progress: see `Progress`.

    Raises:
        CheckpointError: if a weight is not finite.
        UnsupportedModelError: if a part of the head has no operator.
    """
    name = bundle.DRAFT
    head = checkpoint.head
    shapes = checkpoint.head.tensors()
    storage = Storage(precision, frozenset(_vocabulary(head)))
    with closing(DataFile(folder / f"{name}.tiles")) as data:
        count = counted(name, shapes, progress)
        weights = TileWeights(data, checkpoint.tensors, storage, count)
        block = None
        if isinstance(head, Assistant):
            native = write_native_assistant(folder, name, checkpoint, weights, target.native.graph)
        elif isinstance(head, BlockHead):
            native = write_native_block(folder, name, checkpoint, weights, target.native.graph)
            block = write_block(folder, name, checkpoint, precision.weights == "fp32")
        else:
            native = write_native_head(folder, name, checkpoint, weights, target.native.graph)
            block = write_masks(folder, name, checkpoint)
    attention = head.attention
    rope = head.rope
    ropes = list[bundle.RopeTable]()
    if isinstance(head, Assistant):
        tables = head.decoder.ropes.items()
        ropes = [rope_table(key, each) for key, each in tables if key != DEFAULT_ROPE]
    outputs = head.vocab_size if head.lm_head is None else head.lm_head.out_features
    inv_freq = target.inv_freq if rope is None else tuple(map(float, rope.inv_freq))
    return bundle.Role(
        architecture=head.architecture,
        layers=head.depth,
        hidden_size=head.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=2 * len(inv_freq),
        vocab_size=head.vocab_size,
        context_length=head.context_length,
        inv_freq=inv_freq,
        eos_ids=target.eos_ids,
        parameters=parameters(shapes),
        precision=precision,
        native=native,
        tied=False,
        quantization_error=rounded_errors(weights),
        sublayers=tuple(_sublayers(head)),
        attention_factor=target.attention_factor if rope is None else rope.attention_factor,
        ropes=tuple(ropes),
        output_tokens=0 if outputs == head.vocab_size else outputs,
        taps=head.taps,
        mask_token=_mask_token(head),
        block=block,
    )


def _mask_token(head: Head | BlockHead | Assistant) -> int | None:
    if isinstance(head, BlockHead):
        return head.mask_token
    return head.masks.token if isinstance(head, Head) and head.masks is not None else None


def _sublayers(head: Head | BlockHead | Assistant) -> Iterator[Sublayer]:
    """Yields what reads features, and the sublayers of all layers."""
    if isinstance(head, Assistant):
        yield Sublayer(0, FUSION, head.before.in_features)
        yield from sublayer_records(head.decoder)
        return
    yield Sublayer(0, FUSION, 0 if head.fusion.fc is None else head.fusion.fc.in_features)
    for number, mlp in enumerate(head.mlps):
        yield Sublayer(number, ATTENTION)
        yield described_one(number, mlp)


def _vocabulary(head: Head | BlockHead | Assistant) -> Iterator[str]:
    """Yields names of a head's own embedding and output projection."""
    if isinstance(head, Head) and head.embedding is not None:
        yield head.embedding
    if head.lm_head is not None:
        yield head.lm_head.weight
