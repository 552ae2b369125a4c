"""Writes a draft head: its graph, its weights in tiles, and its record in the manifest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from edgespec import bundle
from edgespec.bundle.sublayers import ATTENTION, FUSION, Sublayer
from edgespec.export.graph_builder import DataFile
from edgespec.export.native.head import write_native_head
from edgespec.export.native.weights import TileWeights
from edgespec.export.role import Progress, counted, described_one, parameters, rounded_errors
from edgespec.export.storage import Storage
from edgespec.models.heads.head import HeadCheckpoint


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
    name, head, shapes = bundle.DRAFT, checkpoint.head, checkpoint.head.tensors()
    vocabulary = {each for each in (head.embedding, head.lm_head.weight) if each}
    storage = Storage(precision, frozenset(vocabulary))
    with closing(DataFile(folder / f"{name}.tiles")) as data:
        count = counted(name, shapes, progress)
        weights = TileWeights(data, checkpoint.tensors, storage, count)
        native = write_native_head(folder, name, checkpoint, weights, target.native.graph)
    attention, rope, fc = head.layer.attention, head.rope, head.fusion.fc
    outputs = head.lm_head.out_features
    return bundle.Role(
        architecture=head.architecture,
        layers=1,
        hidden_size=head.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        vocab_size=head.vocab_size,
        context_length=head.context_length,
        inv_freq=target.inv_freq if rope is None else tuple(map(float, rope.inv_freq)),
        eos_ids=target.eos_ids,
        parameters=parameters(shapes),
        precision=precision,
        native=native,
        tied=False,
        quantization_error=rounded_errors(weights),
        sublayers=(
            Sublayer(0, FUSION, 0 if fc is None else fc.in_features),
            Sublayer(0, ATTENTION),
            described_one(0, head.layer.mlp),
        ),
        attention_factor=target.attention_factor if rope is None else rope.attention_factor,
        output_tokens=0 if outputs == head.vocab_size else outputs,
        taps=head.taps,
    )
