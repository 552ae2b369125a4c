"""Portable graphs: what native graphs compute, with standard operators and the same weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from checkpoints import make_checkpoint
from nodes import LIBRARY, needs_library
from onnx import TensorProto
from parity import SAME, distance
from portable import Calls, PortableGraph
from products import random_tiles
from quantized import IN_8_BITS
from small_configs import ARCHITECTURES, CHANGING, RECURRENT, RECURRENT_MIXTURES
from tree_attention import LAYERS, NAMES, attended, parts, random_call

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle.options import GraphForm
from edgespec.errors import InputError
from edgespec.export import ExportOptions
from edgespec.export.formats.tile_formats import TILE_FORMATS
from edgespec.export.formats.tiles import tile_weights, tiles_of_floats
from edgespec.export.graph_builder import NATIVE, DataFile, GraphBuilder
from edgespec.export.portable import DATA, GRAPH, lower
from edgespec.runtime.engines.native import NativeGraph

pytestmark = needs_library

STATES = RECURRENT + RECURRENT_MIXTURES
GEMMA_EXPERTS = {
    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 96,
    "num_kv_shared_layers": 0,
}  # fmt: skip
MORE = {
    "gemma4_experts": ("gemma4_text", GEMMA_EXPERTS),
    "llama4_chunks": ("llama4_text", CHANGING),
}
FAMILIES = [*(each for each in ARCHITECTURES if each not in STATES), *MORE]


class Both:
    """A role's native graph and its portable one."""

    def __init__(self, folder, bundle, accuracy=0):
        self.role = bundle.target
        self.native = NativeGraph(bundle.path / self.role.native.graph, LIBRARY, 1)
        lower(bundle.path / self.role.native.graph, folder, GraphForm(accuracy))
        self.portable = PortableGraph(folder / GRAPH)

    def compared(self, feeds):
        """How far logits, and new keys and values, are apart in a call; the native one is made."""
        before = {name: each.copy() for name, each in feeds.items()}
        found = self.portable(before)
        expected = self.native(feeds)
        apart = [distance(found["logits"], expected["logits"])]
        for name, rows in found.items():
            if name.startswith("new."):
                kept = feeds[name.replace("new", "pool")][:, :, feeds["write"]]
                apart.append(distance(rows.astype(np.float32), kept.astype(np.float32)))
        assert len(apart) == 1 + len(self.role.native.pools)
        return max(apart)


def exported(folder, family, precision="fp32", **options):
    architecture, own = MORE.get(family, (family, {}))
    make_checkpoint(folder / "source", architecture, **own)
    options = ExportOptions(precision, **options)
    export.make(folder / "source", folder / "bundle", options=options)
    return bundles.load(folder / "bundle")


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_the_native_graph(family, tmp_path):
    both = Both(tmp_path / "portable", exported(tmp_path, family))
    for lengths in ([50], [30, 1, 45]):
        calls = Calls(both.role)
        assert both.compared(calls.prompts(lengths)) < SAME
        assert both.compared(calls.trees(9)) < SAME
        assert both.compared(calls.trees(1)) < SAME


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "llama"])
def test_products_read_pools_where_they_lie(family, tmp_path):
    """Transposed keys are read where the engine's products take them so."""
    bundle = exported(tmp_path, family)
    lower(bundle.path / bundle.target.native.graph, tmp_path / "portable", GraphForm(0))
    graph = onnx.load(tmp_path / "portable" / GRAPH, load_external_data=False).graph
    pools = {each.name for each in graph.input if each.name.startswith("pool.")}
    assert len(pools) == 2 * bundle.target.layers
    readers = {
        (each.op_type, name.split(".")[-1])
        for each in graph.node
        for name in each.input
        if name in pools
    }
    assert readers == {("Transpose", "keys"), ("MatMul", "values"), ("Shape", "keys")}
    [slots] = [
        each.output[0] for each in graph.node if pools & {*each.input} and each.op_type == "Shape"
    ]
    assert {each.op_type for each in graph.node if slots in each.input} == {"Slice"}


@pytest.mark.parametrize(("kv", "apart"), [("fp16", 2e-3), ("int8", 0.05)])
def test_caches_of_fewer_bits_are_halves(kv, apart, tmp_path):
    """Qwen2 has large biases of keys, which a cache of 8 bits evens out."""
    bundle = exported(tmp_path, "qwen2", kv_precision=kv)
    both = Both(tmp_path / "portable", bundle)
    assert both.portable.inputs["pool.0.keys"] == [1, 1, "C", 32]
    calls = Calls(both.role)
    feeds = calls.prompts([20, 30])
    if kv == "fp16":
        assert both.compared(feeds) < apart
        assert both.compared(calls.trees(9)) < apart
    else:
        halves = {n: e.astype(np.float16) if "pool" in n else e for n, e in feeds.items()}
        found = both.portable(halves)["logits"]
        expected = both.native(feeds)["logits"]
        assert distance(found, expected) < apart


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_products_of_rounded_activations_are_about_the_same(family, tmp_path):
    both = Both(tmp_path / "portable", exported(tmp_path, family, "int4"), 4)
    calls = Calls(both.role)
    assert both.compared(calls.prompts([50])) < IN_8_BITS


def test_a_call_without_wanted_rows_has_no_logits(tmp_path):
    both = Both(tmp_path / "portable", exported(tmp_path, "llama", "int4"))
    feeds = Calls(both.role).prompts([5]) | {"logit_rows": np.zeros(0, np.int64)}
    assert both.portable(feeds)["logits"].shape == (0, 331)


# Attention


def node_graph(folder, layer, arrays):
    """Writes a native graph of an attention, whose `qkv` a product with ones on its diagonal gives.

    Returns:
        The graph's file.
    """
    data = DataFile(folder / "tiles")
    width = sum(layer.widths)
    graph = GraphBuilder("attention", data.name)
    tiles = tiles_of_floats(np.eye(width), "f32")
    data.write(tiles)
    data.close()
    matrix = graph.external("qkv.weight", TensorProto.UINT8, [tiles.nbytes], 0, tiles.nbytes)
    x = graph.input("x", TensorProto.FLOAT, ["S", width])
    names = {
        "qkv": graph.op(
            "BlockLinear", x, "", "", matrix, domain=NATIVE, formats="f32", columns=[width]
        )
    }
    for name, each in arrays.items():
        if name in ("q_norm", "k_norm", "sinks"):
            names[name] = graph.constant(each, np.float32)
        elif name == "pool":
            shape = [*each.shape[:2], "C", each.shape[3]]
            names[name] = graph.input("pool.0", TensorProto.FLOAT, shape)
        elif name != "qkv":
            kind = TensorProto.INT32 if each.dtype == np.int32 else TensorProto.FLOAT
            names[name] = graph.input(name, kind, ["S", *each.shape[1:]])
    inputs = [names.get(name, "") for name in NAMES]
    y = graph.op("TreeAttention", *inputs, domain=NATIVE, **layer.options)
    graph.output("y", y, TensorProto.FLOAT, ["S", layer.heads * layer.head_dim])
    graph.save(folder / "native.onnx")
    return folder / "native.onnx"


BY_DISTANCE = [name for name, layer in LAYERS.items() if layer.slopes or layer.reach]
OWN = [each for each in LAYERS if each not in BY_DISTANCE and LAYERS[each].source != "other"]


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_scores_that_depend_on_distance_are_refused(name, tmp_path):
    arrays = random_call(LAYERS[name], "fp32", np.random.default_rng(3), (70, 3, 0), 14)
    with pytest.raises(InputError, match="its attention scores by distance, which the CPU alone"):
        lower(node_graph(tmp_path, LAYERS[name], arrays), tmp_path / "portable", GraphForm(0))


@pytest.mark.parametrize("name", OWN)
def test_attention_has_all_its_attributes(name, tmp_path):
    layer = LAYERS[name]
    arrays = random_call(layer, "fp32", np.random.default_rng(3), (70, 3, 0), 14)
    lower(node_graph(tmp_path, layer, arrays), tmp_path / "portable", GraphForm(0))
    names = {"qkv": "x", "pool": "pool.0"}
    found = PortableGraph(tmp_path / "portable" / GRAPH)(
        {names.get(name, name): each for name, each in arrays.items()}
    )
    arrays["pool"][:, :, arrays["write"]] = found["new.0"]
    heard = np.flatnonzero(arrays["sight"] >= 0) if layer.sight else slice(None)
    assert distance(found["y"][heard], attended(layer, arrays)[heard]) < SAME
    _, _, keys, values = parts(layer, arrays)
    rows = np.stack([keys, values]).swapaxes(1, 2)
    assert distance(found["new.0"][..., : layer.head_dim], rows) < SAME
    assert not found["new.0"][..., layer.head_dim :].any()


# Formats


def tiles_of(name, rows, width, rng):
    """Random tiles, and their weights in float64."""
    tiles = random_tiles(name, rows, width, rng)
    return tiles, tile_weights(name, tiles, rows, width).astype(np.float64)


def write_graph(folder, name, width, rng):
    """A native graph: a lookup in a matrix, and a product with it, another of its format, and f16.

    Returns:
        The graph's file, and the matrices, [N, width] float64.
    """
    data = DataFile(folder / "tiles")
    graph = GraphBuilder("formats", data.name)
    stored = []
    weights = []
    for number, (kind, rows) in enumerate(((name, 40), (name, 21), ("f16", 16))):
        tiles, values = tiles_of(kind, rows, width, rng)
        offset = data.begin(tiles.nbytes)
        data.write(tiles)
        weights.append(values)
        stored.append(
            graph.external(f"w{number}", TensorProto.UINT8, [tiles.nbytes], offset, tiles.nbytes)
        )
    data.close()
    ids = graph.input("input_ids", TensorProto.INT64, ["S"])
    x = graph.op(
        "BlockEmbedding", ids, stored[0], domain=NATIVE, format=name, columns=40, width=width
    )
    tied = graph.op("BlockLinear", x, "", "", stored[0], domain=NATIVE, formats=name, columns=[40])
    side_by_side = graph.op(
        "BlockLinear",
        x,
        "",
        "",
        *stored[1:],
        domain=NATIVE,
        formats=f"{name} f16",
        columns=[21, 16],
        factor=0.5,
    )
    for output, value, size in (("x", x, width), ("tied", tied, 40), ("both", side_by_side, 37)):
        graph.output(output, value, TensorProto.FLOAT, ["S", size])
    graph.save(folder / "native.onnx")
    return folder / "native.onnx", weights


WIDTHS = {1: (37,), 32: (96, 101), 64: (64, 192), 128: (128, 384), 256: (256, 512)}


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, width) for name, kind in TILE_FORMATS.items() for width in WIDTHS[kind.unit]],
)
def test_formats_are_multiplied_and_looked_up(name, width, tmp_path):
    graph, (table, other, floats) = write_graph(tmp_path, name, width, np.random.default_rng(1))
    ids = np.array([3, 39, 0, 17, 3])
    native = NativeGraph(graph, LIBRARY, 1)({"input_ids": ids})
    for accuracy, half, apart in (
        (0, None, 1e-5),
        (4, None, IN_8_BITS),
        (0, True, 2e-3),
        (0, False, 1e-5),
    ):
        folder = tmp_path / f"{accuracy}{half}"
        lower(graph, folder, GraphForm(accuracy, half))
        found = PortableGraph(folder / GRAPH)({"input_ids": ids})
        assert distance(found["x"], table[ids]) < (1e-3 if half else 1e-6)
        assert distance(found["tied"], table[ids] @ table.T) < apart
        both = table[ids] @ np.concatenate([other, floats]).T / 2
        assert distance(found["both"], both) < apart
        for output in ("x", "tied", "both"):
            assert distance(found[output], native[output]) < IN_8_BITS


def test_tied_matrices_are_stored_once(tmp_path):
    graph, _ = write_graph(tmp_path, "q8_0", 96, np.random.default_rng(1))
    lower(graph, tmp_path / "portable", GraphForm(0))
    model = onnx.load(tmp_path / "portable" / GRAPH, load_external_data=False)
    names = [node.input[1] for node in model.graph.node if node.op_type == "MatMulNBits"]
    (table,) = [n.input[0] for n in model.graph.node if n.op_type == "GatherBlockQuantized"]
    assert table in names
    assert (tmp_path / "portable" / DATA).stat().st_size < 61 * (96 + 12) + 16 * 96 * 2 + 999


def test_what_another_process_wrote_stays(tmp_path):
    graph, _ = write_graph(tmp_path, "q8_0", 96, np.random.default_rng(1))
    (tmp_path / "portable").mkdir()
    (tmp_path / "portable" / GRAPH).write_bytes(b"theirs")
    lower(graph, tmp_path / "portable", GraphForm(0))
    assert (tmp_path / "portable" / GRAPH).read_bytes() == b"theirs"
    assert len([*tmp_path.iterdir()]) == 3
