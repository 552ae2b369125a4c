"""Writes a bundle whose target is a graph that another program exported."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

import edgespec
from edgespec import bundle
from edgespec.errors import CheckpointError, UnsupportedModelError, reason
from edgespec.export.adopted.rewrite import rewrite
from edgespec.export.adopted.signature import (
    Past,
    check_operators,
    past_of,
    projection,
    quantized,
)
from edgespec.export.adopted.source import OnnxSource
from edgespec.export.adopted.weights import move_weights
from edgespec.export.exporter import ExportReport
from edgespec.export.graph_builder import DataFile
from edgespec.export.role import BIAS_OFF
from edgespec.export.sources.vocabulary import end_ids, read_tokenizer


def write_adopted(source: OnnxSource, folder: Path, origin: str) -> ExportReport:
    """Writes the bundle of a model that another program exported as ONNX, without a draft.

    Args:
        source: the model.
        folder: empty folder to write to; its content is incomplete if this fails.
        origin: where it is from, for the provenance.

    Raises:
        CheckpointError: if a file is missing or damaged.
        UnsupportedModelError: if the graph is not a decoder with past and present.
    """
    text, tokens = read_tokenizer(source)
    model = _read(source.graph)
    check_operators(model, str(source.graph))
    past = past_of(model, str(source.graph), source.config.head_dim)
    precision = _precision(model.graph, past)
    parameters = _parameters(model.graph)
    with closing(DataFile(folder / "target.data")) as data:
        move_weights(model.graph.initializer, source.graph.parent, data)
    stage = rewrite(model, data.name, past, source.config.vocab_size)
    stage.graph.save(folder / "target.onnx", like=model)
    for name, content in {**source.tokenizer_files, "tokenizer.json": text}.items():
        (folder / name).write_bytes(content.encode())
    config = source.config
    role = bundle.Role(
        architecture=config.model_type,
        layers=past.layers,
        hidden_size=config.hidden_size,
        heads=config.heads,
        kv_heads=past.kv_heads,
        head_dim=past.head_dim,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        inv_freq=(0.0,) * (past.head_dim // 2),  # the graph rotates by itself, if at all
        eos_ids=end_ids(source, tokens),
        bias_off=BIAS_OFF,
        parameters=parameters,
        precision=precision,
        stages=(
            bundle.Stage(
                "target.onnx", data.name, 0, 2 * past.layers + 1, stage.inputs, stage.outputs
            ),
        ),
        quantization_error={},
        tied=False,
        trees=False,
    )
    provenance = {"edgespec": edgespec.__version__, bundle.TARGET: origin}
    files = bundle.describe_files(folder)
    manifest = bundle.Manifest(
        bundle.FORMAT, {bundle.TARGET: role}, tuple(source.tokenizer_files), provenance, files, ()
    )
    bundle.save_manifest(folder, manifest)
    size = (folder / data.name).stat().st_size
    return ExportReport(size, sum(entry.size for entry in files.values()))


def _read(graph: Path) -> ModelProto:
    try:
        return onnx.load(graph, load_external_data=False)
    except Exception as error:  # its type depends on how protobuf was built
        raise CheckpointError(
            f"{graph} is not an ONNX model ({reason(error)}): download it again"
        ) from error


def _precision(graph: GraphProto, past: Past) -> bundle.Precision:
    """Returns the number formats of a graph, for the memory plan.

    Raises:
        UnsupportedModelError: if its weights have another number of bits than 4 or 8.
    """
    kv = "fp16" if past.dtype == "float16" else "fp32"
    found = [_attributes(node) for node in quantized(graph)]
    if not found:
        return bundle.Precision(kv, kv, kv, 0)
    bits, block = found[0].get("bits", 4), found[0]["block_size"]
    if bits not in (4, 8):
        raise UnsupportedModelError(f"weights of {bits} bits are not supported: use 4 or 8")
    head = projection(graph)
    lm_head = kv
    if head is not None and head.op_type == "MatMulNBits":
        lm_head = f"int{_attributes(head).get('bits', 4)}"
    return bundle.Precision(f"int{bits}", lm_head, kv, block, scales=kv)


def _parameters(graph: GraphProto) -> int:
    """Returns the number of weights; those of 4 bits are stored in pairs."""
    pairs = {node.input[1] for node in quantized(graph) if _attributes(node).get("bits", 4) == 4}
    return sum(
        math.prod(each.dims) * (2 if each.name in pairs else 1)
        for each in graph.initializer
        if each.data_type != TensorProto.INT64  # shapes and axes
    )


def _attributes(node: NodeProto) -> dict[str, int]:
    return {each.name: each.i for each in node.attribute}
