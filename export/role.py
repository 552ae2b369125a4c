"""Writes one model of a bundle: its graph, its weights in tiles, and its record in the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgespec import bundle
from edgespec.bundle.options import ExportOptions
from edgespec.bundle.sublayers import (
    ATTENTION,
    DEFAULT_ROPE,
    INJECTION,
    MLP,
    RECURRENT,
    Sublayer,
)
from edgespec.export.calibration.calibrate import Calibrate
from edgespec.export.graph_builder import DataFile
from edgespec.export.native.graph import NativeGraphBuilder
from edgespec.export.native.tower import write_tower
from edgespec.export.native.weights import TileWeights
from edgespec.export.sources.vocabulary import end_ids
from edgespec.export.storage import Storage, stored
from edgespec.models import (
    Attention,
    Checkpoint,
    Decoder,
    Injection,
    Mlp,
    MlpAndMoe,
    Moe,
    Rope,
)
from edgespec.models.layers import sublayers
from edgespec.models.layers.elements import Shapes
from edgespec.models.layers.sublayers import AltUpLayer, ParallelBlock, PlainMlp

Progress = Callable[[str, int, int], None]
"""Called with a role's name, the number of weights written so far and the total number."""


@dataclass(frozen=True)
class RoleWriter:
    """Writes models of a bundle.

    Attributes:
        folder: folder of the bundle.
        options: options of the export.
        calibration: see `write_bundle`.
        progress: see `Progress`.
    """

    folder: Path
    options: ExportOptions
    calibration: Calibrate | None
    progress: Progress

    def write(
        self, name: str, checkpoint: Checkpoint, tokens: Mapping[str, int], tokenizer: str = ""
    ) -> tuple[bundle.Role, str]:
        """Writes a model's files.

        Args:
            name: name of the role, with which file names start.
            checkpoint: the model.
            tokens: ids by token of its tokenizer.
            tokenizer: file of a tokenizer of its own.

        Returns:
            Its record, and a line about what was kept of a quantized checkpoint, or an empty one.

        Raises:
            CheckpointError: if the checkpoint is damaged.
            ExportError: if weights are beyond what their format represents.
            InputError: if an option does not suit the model.
            UnsupportedModelError: if a part of the model has no operator.
        """
        config = checkpoint.config
        decoder = checkpoint.decoder
        inputs = decoder.layer_inputs
        with stored(name, checkpoint, self.options, self.calibration, self.folder) as storage:
            weights, native = self._written(name, checkpoint, storage)
        tables = [rope_table(rope_name, rope) for rope_name, rope in decoder.ropes.items()]
        default = next(table for table in tables if table.name == DEFAULT_ROPE)
        role = bundle.Role(
            architecture=config.model_type,
            layers=len(decoder.layers),
            hidden_size=decoder.hidden_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab_size=decoder.vocab_size,
            context_length=decoder.context_length,
            inv_freq=default.inv_freq,
            eos_ids=end_ids(checkpoint, dict(tokens)),
            parameters=parameters(decoder.tensors()),
            precision=storage.precision,
            native=native,
            tied=decoder.tied,
            quantization_error=rounded_errors(weights),
            sublayers=tuple(sublayer_records(decoder)),
            attention_factor=default.attention_factor,
            ropes=tuple(table for table in tables if table is not default),
            mask_token=config.mask_token,
            tokenizer=tokenizer,
            layer_inputs=inputs.norm.size if inputs is not None and inputs.table else 0,
            embedding=_embedding(checkpoint),
            vision=self._vision(name, checkpoint, storage),
            both_ways=decoder.both_ways,
            ranking=checkpoint.ranking,
        )
        return role, storage.describe(name, checkpoint, weights.errors)

    def _vision(self, name: str, checkpoint: Checkpoint, storage: Storage) -> bundle.Vision | None:
        """Writes what makes rows of pictures; a draft reads none."""
        if checkpoint.tower is None or name != bundle.TARGET:
            return None
        return write_tower(self.folder, checkpoint.tower, storage.precision.weights)

    def _written(
        self, name: str, checkpoint: Checkpoint, storage: Storage
    ) -> tuple[TileWeights, bundle.Native]:
        count = counted(name, checkpoint.decoder.tensors(), self.progress)
        with closing(DataFile(self.folder / f"{name}.tiles")) as data:
            weights = TileWeights(data, checkpoint.tensors, storage, count)
            graph = NativeGraphBuilder(weights, name)
            graph.build(checkpoint.decoder, checkpoint.tower if name == bundle.TARGET else None)
            return weights, graph.save(self.folder)


def parameters(shapes: Shapes) -> int:
    """Returns the number of weights of tensors."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


def rounded_errors(weights: TileWeights) -> dict[str, float]:
    """Returns the `Role.quantization_error` of what was written."""
    return {name: round(error, 6) for name, error in weights.errors.items()}


def counted(name: str, shapes: Shapes, progress: Progress) -> Callable[[int], None]:
    """Returns what adds up the weights of a role's matrices, and reports them."""
    total = parameters({name: shape for name, shape in shapes.items() if len(shape) > 1})
    done = 0

    def count(values: int) -> None:
        nonlocal done
        done += values
        progress(name, min(done, total), total)

    return count


def sublayer_records(decoder: Decoder) -> Iterator[Sublayer]:
    """Yields each sublayer of a decoder in the form of the manifest, parts of a block apart."""
    for number, layer in enumerate(decoder.layers):
        for each in layer:
            parts = each.parts if isinstance(each, ParallelBlock) else (each,)
            yield from (described_one(number, part) for part in parts)


def _embedding(checkpoint: Checkpoint) -> bundle.Embedding | None:
    """Returns how vectors are made, and their width where it is not that of rows."""
    found = checkpoint.embedding
    decoder = checkpoint.decoder
    if found is None or decoder.width == decoder.hidden_size:
        return found
    return replace(found, width=decoder.width)


def described_one(number: int, each: sublayers.Sublayer) -> Sublayer:
    """Returns a sublayer of the layer of this number in the form of the manifest."""
    if isinstance(each, Attention):
        return Sublayer(number, ATTENTION, source=each.source)
    if isinstance(each, AltUpLayer):
        return Sublayer(number, ATTENTION, each.mlp.up.out_features, source=each.attention.source)
    if isinstance(each, Injection):
        return Sublayer(number, INJECTION)
    if isinstance(each, Moe | MlpAndMoe):
        moe = each.moe if isinstance(each, MlpAndMoe) else each
        expert = moe.experts[0]
        beside = 0 if isinstance(each, Moe) else each.mlp.up.out_features
        weights = sum(linear.in_features * linear.out_features for linear in expert.linears)
        inner = expert.up.out_features
        experts = len(moe.experts)
        return Sublayer(number, MLP, inner, experts, moe.top_k, beside, weights=weights)
    if isinstance(each, Mlp | PlainMlp):
        return Sublayer(number, MLP, each.up.out_features)
    return Sublayer(number, RECURRENT)


def rope_table(name: str, rope: Rope) -> bundle.RopeTable:
    """Returns a rotation table in the form of the manifest."""
    frequencies = tuple(map(float, rope.inv_freq))
    return bundle.RopeTable(name, frequencies, rope.attention_factor, rope.growth)
