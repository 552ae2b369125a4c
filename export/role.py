"""Writes one model of a bundle: a data file with its weights, and a graph for each stage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec import bundle
from edgespec.bundle.sublayers import (
    ATTENTION,
    DEFAULT_ROPE,
    INJECTION,
    MLP,
    RECURRENT,
    Sublayer,
)
from edgespec.export.components.attention import AttentionForm, OrderedAttention, SplitAttention
from edgespec.export.components.decoder import Span, lower
from edgespec.export.components.graph import DataFile, GraphBuilder
from edgespec.export.components.stage import FLOAT, HALF, INT8, StageBuilder, StageFormats
from edgespec.export.components.texts import SeveralTexts
from edgespec.export.formats.blocks import QuantizedRows
from edgespec.export.formats.matrices import (
    BlockFormat,
    FloatFormat,
    KeptFormat,
    MixedFormat,
    WeightFormat,
)
from edgespec.export.formats.weights import WeightStream
from edgespec.export.native.graph import NativeGraph, write_ids, written_in_tiles
from edgespec.export.native.weights import TileWeights
from edgespec.models import Attention, Checkpoint, Decoder, Injection, Mlp, MlpAndMoe, Moe, Rope

BIAS_OFF = -1e9
"""Score of masked rows: far below any real score, so that the softmax gives exactly zero."""

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with a role's name, the number of weights written so far and the total number."""


class RoleWriter:
    """Writes one model's files. Weights are written once, with the first graph that needs them.

    Use it in a `with` statement. All files are complete on disk after `write`.

    Args:
        folder: folder to write to.
        name: name of the role, with which its file names start.
        checkpoint: the model.
        precision: precision of weights and cache.
        candidates: see `StageFormats`. It is None for a target; with candidates, attention has a
            form in which a row's result may depend on the other rows of a call.
        progress: see `Progress`.
        rounded: matrices that are already rounded to 4 bits, see `WeightStream`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        checkpoint: Checkpoint,
        precision: bundle.Precision,
        candidates: npt.NDArray[np.int64] | None,
        progress: Progress,
        rounded: Mapping[str, QuantizedRows],
    ) -> None:
        self._folder = folder
        self._name = name
        self._checkpoint = checkpoint
        self._precision = precision
        self._formats = stage_formats(precision, candidates)
        self._report = progress
        self._total = sum(int(np.prod(shape)) for shape in checkpoint.decoder.tensors().values())
        self._done = 0
        self._data = DataFile(folder / f"{name}.data")
        self._rounded = rounded
        self._weights = WeightStream(self._data, checkpoint.tensors, self._count, rounded)

    def __enter__(self) -> RoleWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        self._data.close()

    def write(
        self, cuts: Sequence[int] = (), gated: bool = False, texts: bool = False
    ) -> bundle.Role:
        """Writes the graphs.

        Args:
            cuts: sublayers before which a stage ends, ascending; empty for a single stage.
            texts: whether to write them also for calls that hold several texts, if the model can.
            gated: whether each sublayer can be switched off (see `lower`) and any row can see any
                other, so that one call can try a whole text.
        """
        config, decoder = self._checkpoint.config, self._checkpoint.decoder
        formats = replace(self._formats, attention=SplitAttention) if gated else self._formats
        stages = self._write_stages(self._name, cuts, formats, gated)
        of_texts: tuple[bundle.Stage, ...] = ()
        if texts and self._parts_by_text(stages):
            formats = replace(formats, texts=SeveralTexts)
            of_texts = self._write_stages(f"{self._name}-texts", cuts, formats, gated)
        tables = [_table(name, rope) for name, rope in decoder.ropes.items()]
        default = next(table for table in tables if table.name == DEFAULT_ROPE)
        return bundle.Role(
            architecture=config.model_type,
            layers=len(decoder.layers),
            hidden_size=decoder.hidden_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            vocab_size=decoder.vocab_size,
            context_length=decoder.context_length,
            inv_freq=default.inv_freq,
            eos_ids=config.eos_ids,
            bias_off=BIAS_OFF,
            parameters=self._total,
            precision=self._precision,
            stages=stages,
            quantization_error={k: round(v, 6) for k, v in self._weights.errors.items()},
            attention_factor=default.attention_factor,
            tied=decoder.tied,
            sublayers=tuple(described(decoder)),
            ropes=tuple(table for table in tables if table is not default),
            mask_token=config.mask_token,
            layer_inputs=0 if decoder.layer_inputs is None else decoder.layer_inputs.norm.size,
            stages_of_texts=of_texts,
            embedding=self._checkpoint.embedding,
        )

    def write_native(self, as_stored: bool) -> bundle.Native | None:
        """Writes the graph for CPUs; None if the model has parts that it cannot have.

        Args:
            as_stored: whether matrices of a quantized checkpoint keep the numbers of its file.
        """
        decoder, candidates = self._checkpoint.decoder, self._formats.candidates
        head = {decoder.embedding, decoder.lm_head.weight}
        if decoder.layer_inputs is not None:
            head |= {decoder.layer_inputs.table, decoder.layer_inputs.projection.weight}

        def write(data: DataFile) -> bundle.Native:
            tensors, precision = self._checkpoint.tensors, self._precision
            weights = TileWeights(data, tensors, precision, as_stored, self._rounded, head)
            native = NativeGraph(weights, self._name)
            native.build(decoder)
            ids = "" if candidates is None else write_ids(self._folder, self._name, candidates)
            return native.save(self._folder, ids)

        return written_in_tiles(self._folder / f"{self._name}.tiles", self._precision, write)

    def again(self, name: str, precision: bundle.Precision) -> RoleWriter:
        """Returns a writer of the same model in another precision, with another file name."""
        checkpoint, report = self._checkpoint, self._report
        return RoleWriter(self._folder, name, checkpoint, precision, None, report, {})

    def write_for_npu(self, cuts: Sequence[int]) -> tuple[bundle.Stage, ...]:
        """Writes graphs for NPUs, with the attention that suits them best, for the same weights."""
        formats = replace(self._formats, attention=SplitAttention)
        return self._write_stages(f"{bundle.TARGET}-{bundle.NPU}", cuts, formats, gated=False)

    def _parts_by_text(self, stages: Sequence[bundle.Stage]) -> bool:
        """Whether calls can hold rows of several texts.

        Recurrent layers hold one text's states, stages pass on keys and values by row alone, and
        only ordered attention keeps a text what it is alone, which a draft need not. Embeddings are
        made of whole chunks.
        """
        decoder = self._checkpoint.decoder
        if decoder.embeds:
            return False
        recurrent = any(each.recurrent is not None for each in described(decoder))
        drafts = self._formats.candidates is not None
        alike = drafts or all(stage.ordered for stage in stages if stage.attends)
        return alike and not recurrent and not (len(stages) > 1 and decoder.shared)

    def _write_stages(
        self, name: str, cuts: Sequence[int], formats: StageFormats, gated: bool
    ) -> tuple[bundle.Stage, ...]:
        borders = (0, *cuts, len(self._checkpoint.decoder.sublayers) + 1)
        spans = [Span(start, stop) for start, stop in pairwise(borders)]
        names = [name] if len(spans) == 1 else [f"{name}-{i}" for i in range(len(spans))]
        stages = [
            self._write_stage(name, span, formats, gated)
            for name, span in zip(names, spans, strict=True)
        ]
        self._data.flush()
        return tuple(stages)

    def _write_stage(
        self, name: str, span: Span, formats: StageFormats, gated: bool
    ) -> bundle.Stage:
        graph = GraphBuilder(name, self._data.name)
        stage = StageBuilder(graph, self._weights, formats)
        lower(stage, self._checkpoint.decoder, span, gated)
        graph.save(self._folder / f"{name}.onnx")
        return bundle.Stage(
            f"{name}.onnx",
            self._data.name,
            span.start,
            span.stop,
            tuple(stage.inputs),
            tuple(stage.outputs),
        )

    def _count(self, values: int) -> None:
        self._done += values
        self._report(self._name, self._done, self._total)


def described(decoder: Decoder) -> Iterator[Sublayer]:
    """Yields each sublayer of a decoder in the form of the manifest."""
    for number, layer in enumerate(decoder.layers):
        for each in layer:
            if isinstance(each, Attention):
                yield Sublayer(number, ATTENTION, 0, each.mask, each.rope, source=each.source)
            elif isinstance(each, Injection):
                yield Sublayer(number, INJECTION)
            elif isinstance(each, Moe):
                inner = each.experts[0].up.out_features
                yield Sublayer(number, MLP, inner, experts=len(each.experts), chosen=each.top_k)
            elif isinstance(each, MlpAndMoe):
                moe, beside = each.moe, each.mlp.up.out_features
                inner, experts = moe.experts[0].up.out_features, len(moe.experts)
                yield Sublayer(number, MLP, inner, experts=experts, chosen=moe.top_k, beside=beside)
            elif isinstance(each, Mlp):
                yield Sublayer(number, MLP, width=each.up.out_features)
            else:
                yield Sublayer(number, RECURRENT, recurrent=each.shape)


def _table(name: str, rope: Rope) -> bundle.RopeTable:
    return bundle.RopeTable(name, tuple(map(float, rope.inv_freq)), rope.attention_factor)


def stage_formats(
    precision: bundle.Precision, candidates: npt.NDArray[np.int64] | None
) -> StageFormats:
    """Returns the formats of a model's stages; for `candidates` see `StageFormats`."""
    layers = _format(precision.weights, precision.block_size)
    head = _format(precision.lm_head, precision.block_size)
    wide = dict.fromkeys(precision.wide, _format("int8", precision.block_size))
    kept = {name: _kept(each) for each in precision.kept for name in each.names}
    if wide or kept:
        layers, head = MixedFormat(layers, wide | kept), MixedFormat(head, kept)
    kv_dtype = {"int8": INT8, "fp16": HALF, "fp32": FLOAT}[precision.kv]
    # A draft's errors never change the text, so it may use the cheaper form.
    attention: type[AttentionForm] = OrderedAttention if candidates is None else SplitAttention
    return StageFormats(layers, head, kv_dtype, candidates, attention)


def _kept(kept: bundle.Kept) -> WeightFormat:
    scales = np.float16 if kept.scales == "fp16" else np.float32
    return KeptFormat(kept.bits, kept.block_size, scales, kept.zero_points)


def _format(precision: str, block_size: int) -> WeightFormat:
    if precision in ("int4", "int8"):
        return BlockFormat(int(precision[3:]), block_size)
    return FloatFormat(np.float16 if precision == "fp16" else np.float32)
