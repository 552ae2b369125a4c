"""Writes a bundle whose target is a graph that another program exported."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
from onnx import GraphProto, TensorProto

import edgespec
from edgespec import bundle
from edgespec.bundle.sublayers import ATTENTION, MLP, Sublayer
from edgespec.errors import UnsupportedModelError
from edgespec.export.adopted.graph import (
    move_weights,
    nodes,
    past_of,
    prepare,
    projection,
    read_graph,
)
from edgespec.export.adopted.source import OnnxSource
from edgespec.export.exporter import ExportReport
from edgespec.export.sources.vocabulary import end_ids, read_tokenizer

_GRAPH, _DATA = "target.onnx", "target.data"


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
    model = read_graph(source.graph)
    config = source.config
    past = past_of(model, source.graph, config.head_dim)
    precision, formats = _formats(model.graph, past.kv)
    prepare(model.graph)
    move_weights(model.graph, source.graph.parent, folder / _DATA)
    onnx.save(model, folder / _GRAPH)
    for name, content in {**source.tokenizer_files, "tokenizer.json": text}.items():
        (folder / name).write_bytes(content.encode())
    pools = (bundle.PoolShape(n, past.kv_heads, past.head_dim) for n in range(past.layers))
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
        parameters=sum(formats.values()),
        precision=precision,
        native=bundle.Native(_GRAPH, _DATA, tuple(pools), (), formats, adopted=True),
        tied=False,
        quantization_error={},
        sublayers=tuple(Sublayer(n, kind) for n in range(past.layers) for kind in (ATTENTION, MLP)),
    )
    provenance = {"edgespec": edgespec.__version__, bundle.TARGET: origin}
    files = bundle.describe_files(folder)
    manifest = bundle.Manifest(
        bundle.FORMAT,
        {bundle.TARGET: role},
        tuple(source.tokenizer_files),
        provenance,
        files,
        (),
        source.sampling,
    )
    bundle.save_manifest(folder, manifest)
    return ExportReport(files[_DATA].size, sum(entry.size for entry in files.values()))


def _formats(graph: GraphProto, kv: str) -> tuple[bundle.Precision, dict[str, int]]:
    """Returns the number formats of a graph, and the number of weights in each.

    Raises:
        UnsupportedModelError: if its weights have another number of bits than 4 or 8.
    """
    products = [node for node in nodes(graph) if node.op_type == "MatMulNBits"]
    found = [{each.name: each.i for each in node.attribute} for node in products]
    bits = {n.input[1]: each.get("bits", 4) for n, each in zip(products, found, strict=True)}
    if other := set(bits.values()) - {4, 8}:
        raise UnsupportedModelError(f"weights of {min(other)} bits are not supported: use 4 or 8")
    formats: dict[str, int] = {}
    for each in graph.initializer:
        if each.data_type != TensorProto.INT64:  # shapes and axes
            float_name = "f16" if each.data_type == TensorProto.FLOAT16 else "f32"
            name = f"q{bits[each.name]}" if each.name in bits else float_name
            count = math.prod(each.dims) * (2 if name == "q4" else 1)  # stored in pairs
            formats[name] = formats.get(name, 0) + count
    if not found:
        return bundle.Precision(kv, kv, kv, 0), formats
    head = projection(graph)
    lm_head = f"int{bits[head.input[1]]}" if head is not None and head in products else kv
    weights = f"int{bits[products[0].input[1]]}"
    block = found[0]["block_size"]
    return bundle.Precision(weights, lm_head, kv, block), formats
