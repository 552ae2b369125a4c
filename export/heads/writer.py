"""Writes a draft head: a data file with its weights, and the graphs of its two stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from edgespec import bundle
from edgespec.bundle.sublayers import ATTENTION, FUSION, MLP, Sublayer
from edgespec.export.components.graph import DataFile, GraphBuilder
from edgespec.export.components.head import lower_fusion, lower_layer
from edgespec.export.components.stage import StageBuilder
from edgespec.export.formats.weights import WeightStream
from edgespec.export.heads.borrowing import borrow_embedding
from edgespec.export.native.graph import written_in_tiles
from edgespec.export.native.head import write_native_head
from edgespec.export.native.weights import TileWeights
from edgespec.export.role import BIAS_OFF, Progress, stage_formats
from edgespec.models.heads.head import HeadCheckpoint


class HeadWriter:
    """Writes a head's files as the role `draft`. Use it in a `with` statement.

    The embedding is read from the target's data file, unless the head has its own.

    Args:
        folder: folder of the bundle, which holds the target's files.
        target: the target's role.
        checkpoint: the head.
        precision: precision of its weights and its cache.
        progress: see `Progress`.
    """

    def __init__(
        self,
        folder: Path,
        target: bundle.Role,
        checkpoint: HeadCheckpoint,
        precision: bundle.Precision,
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._target = target
        self._checkpoint = checkpoint
        self._precision = precision
        self._formats = stage_formats(precision, checkpoint.ids)
        self._report = progress
        self._total = sum(int(np.prod(s)) for s in checkpoint.head.tensors().values())
        self._done = 0
        self._data = DataFile(folder / f"{bundle.DRAFT}.data")
        self._weights = WeightStream(self._data, checkpoint.tensors, self._count)

    def __enter__(self) -> HeadWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        self._data.close()

    def write(self) -> bundle.Role:
        """Writes the graphs and weights.

        Raises:
            CheckpointError: if a weight is not finite.
            ExportError: if an older version exported the target.
        """
        head = self._checkpoint.head
        fusion, layer = self._stage("fusion"), self._stage("layer")
        lower_fusion(fusion, head)
        lower_layer(layer, head, lambda ids: self._embed(layer, ids), self._checkpoint.ids)
        borrowed = self._target.stages[0].data if head.embedding is None else ""
        stages = (self._save(fusion, 0, 1), self._save(layer, 1, 4, borrowed))
        self._data.flush()
        return replace(self._role(stages), native=self._write_native())

    def _write_native(self) -> bundle.Native | None:
        """Writes the graph for CPUs; None if the target has none, or the head cannot have it."""
        theirs, head = self._target.native, self._checkpoint.head
        if theirs is None:
            return None
        target, precision = theirs.graph, self._precision
        vocabulary = {name for name in (head.embedding, head.lm_head.weight) if name}

        def write(data: DataFile) -> bundle.Native:
            tensors = self._checkpoint.tensors
            weights = TileWeights(data, tensors, precision, False, {}, vocabulary)
            return write_native_head(self._folder, bundle.DRAFT, self._checkpoint, weights, target)

        return written_in_tiles(self._folder / f"{bundle.DRAFT}.tiles", precision, write)

    def _stage(self, name: str) -> StageBuilder:
        graph = GraphBuilder(f"{bundle.DRAFT}-{name}", self._data.name)
        return StageBuilder(graph, self._weights, self._formats)

    def _embed(self, stage: StageBuilder, ids: str) -> str:
        own = self._checkpoint.head.embedding
        if own is not None:
            return self._formats.vocabulary.embedding(stage.graph, self._weights, ids, own)
        source = self._folder / self._target.stages[0].graph
        return borrow_embedding(onnx.load(source, load_external_data=False), stage.graph)

    def _save(self, stage: StageBuilder, start: int, stop: int, borrowed: str = "") -> bundle.Stage:
        file = f"{stage.graph.name}.onnx"
        stage.graph.save(self._folder / file)
        inputs, outputs = tuple(stage.inputs), tuple(stage.outputs)
        return bundle.Stage(file, self._data.name, start, stop, inputs, outputs, borrowed)

    def _role(self, stages: tuple[bundle.Stage, ...]) -> bundle.Role:
        head, target = self._checkpoint.head, self._target
        attention, mlp = head.layer.attention, head.layer.mlp
        rope, fc = head.rope, head.fusion.fc
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
            bias_off=BIAS_OFF,
            parameters=self._total,
            precision=self._precision,
            stages=stages,
            quantization_error={k: round(v, 6) for k, v in self._weights.errors.items()},
            attention_factor=target.attention_factor if rope is None else rope.attention_factor,
            tied=False,
            sublayers=(
                Sublayer(0, FUSION, width=0 if fc is None else fc.in_features),
                Sublayer(0, ATTENTION),
                Sublayer(0, MLP, width=mlp.up.out_features),
            ),
            output_tokens=0 if outputs == head.vocab_size else outputs,
            taps=head.taps,
        )

    def _count(self, values: int) -> None:
        self._done += values
        self._report(bundle.DRAFT, self._done, self._total)
