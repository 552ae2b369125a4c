"""Fused graphs: what native graphs compute, with operators of ONNX Runtime's own where they fit."""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
import onnx
import pytest
from checkpoints import make_checkpoint
from gpus import usable
from nodes import needs_library
from parity import SAME, distance
from test_portable_graphs import FAMILIES, OWN, exported, node_graph
from tree_attention import LAYERS, attended, random_call

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import TARGET
from edgespec.bundle.options import GraphForm
from edgespec.export import ExportOptions
from edgespec.export.portable import GRAPH, lower
from edgespec.llm.load.models import load_model
from edgespec.runtime.engines.portable import computing_nodes, examined, fused_operators, open_graph
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import AFTER, Model, RotationTable, Rows
from edgespec.runtime.sequences.pool import KVPool

pytestmark = needs_library

ALL = frozenset({"float32", "float16", "norms", "sinks", "soft_cap", "recurrence"})
TREE = [AFTER, AFTER, 0, 0, 1, 2, 2, 5]


def fused_model(folder, bundle, device="cpu"):
    """The target's fused graph on a device, whose products do not round activations."""
    role = bundle.target
    half = examined(device).half
    lower(bundle.path / role.native.graph, folder, GraphForm(0, half, fused_operators(device)))
    graph = open_graph(device, folder / GRAPH, 1)
    pool = KVPool(role.native.pools, graph.kv, None, graph)
    tables = [each for each in role.rope_tables if each.name in role.native.ropes]
    return Model(graph, pool, [RotationTable(each) for each in tables])


def history(model, vocabulary):
    """Logits of two sequences: prompts, and trees behind the holes that rejected rows left."""
    draw = np.random.default_rng(1)
    sequences = [model.sequence([]) for _ in range(2)]
    found = []
    for number in range(4):
        counts = (7, 25) if not number else (len(TREE), 3)
        batch = []
        for sequence, size in zip(sequences, counts, strict=True):
            parents = [AFTER, *range(size - 1)] if not number else TREE[:size]
            tokens = draw.integers(3, vocabulary, size).tolist()
            batch.append(Rows(sequence, tokens, parents, [*range(size)]))
        found += [each.copy() for each in model.forward(batch)]
        for rows, kept in zip(batch, ([0, 2, 5], [1]), strict=True):
            path = kept if number else range(len(rows.tokens))
            rows.sequence.tokens += [rows.tokens[row] for row in path]
            rows.accept(path)
    return np.concatenate(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_the_native_graph(family, tmp_path):
    bundle = exported(tmp_path, family)
    fused = fused_model(tmp_path / "fused", bundle)
    native = load_model(bundle, TARGET, Placement(HOST), threads=1)
    vocabulary = bundle.target.vocab_size
    assert distance(history(fused, vocabulary), history(native, vocabulary)) < SAME


@pytest.mark.parametrize("family", ["gemma2", "llama", "qwen3"])
def test_rows_on_a_gpu_are_those_of_the_native_graph(family, tmp_path, gpu_in_software):
    """Soft caps, and norms of queries and keys, of which a GPU has the latter in one operator."""
    bundle = whole_heads(tmp_path, family, "fp32")
    fused = fused_model(tmp_path / "fused", bundle, usable("webgpu:0"))
    native = load_model(bundle, TARGET, Placement(HOST), threads=1)
    vocabulary = bundle.target.vocab_size
    assert distance(history(fused, vocabulary), history(native, vocabulary)) < SAME


PLAIN = ("gemma2", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")


MORE = {"gemma2": 15, "olmo2": 24}  # norms behind sublayers, and of all heads as one


def whole_heads(folder, family, precision):
    """A bundle whose heads need no padding, as those of published models."""
    make_checkpoint(folder / "source", family, head_dim=32, hidden_size=128)
    export.make(folder / "source", folder / "bundle", options=ExportOptions(precision))
    return bundles.load(folder / "bundle")


@pytest.mark.parametrize("family", PLAIN)
def test_layers_of_whole_heads_have_few_nodes(family, tmp_path):
    """Nodes that compute."""
    bundle = whole_heads(tmp_path, family, "int4")
    native = bundle.path / bundle.target.native.graph
    layers = bundle.target.layers
    nodes = []
    for name, fused in (("portable", None), ("fused", ALL)):
        lower(native, tmp_path / name, GraphForm(0, fused=fused))
        model = onnx.load(tmp_path / name / GRAPH, load_external_data=False)
        kinds = Counter(node.op_type for node in model.graph.node)
        assert kinds["GroupQueryAttention"] == (layers if fused else 0)
        nodes.append(len(model.graph.node) - kinds["Reshape"] - kinds["Identity"])
    assert nodes[0] > 42 * layers
    around = 12  # embedding, tables, head
    assert nodes[1] <= MORE.get(family, 13) * layers + around


# Of a layer with states whose heads have 16 columns: its norm, product and sum are 3 to 5 more.
RECURRENT = {
    "granitemoehybrid": (21, {}),
    "kimi_linear": (19, {}),  # decays and rates are apart
    "qwen3_5_text": (17, {"linear_value_head_dim": 16}),
}


@pytest.mark.parametrize("family", RECURRENT)
def test_layers_with_states_have_few_nodes(family, tmp_path):
    """Those that the operators are made of, of which standard ones have 45 and 75."""
    most, sizes = RECURRENT[family]
    make_checkpoint(tmp_path / "source", family, **sizes)
    export.make(tmp_path / "source", tmp_path / "bundle", options=ExportOptions("fp32"))
    role = bundles.load(tmp_path / "bundle").target
    layers = [each for each in role.native.recurrent if each.state]
    nodes = []
    for name, fused in (("standard", ALL - {"recurrence"}), ("fused", ALL)):
        lower(tmp_path / "bundle" / role.native.graph, tmp_path / name, GraphForm(0, fused=fused))
        nodes.append(computing_nodes(tmp_path / name / GRAPH))
        model = onnx.load(tmp_path / name / GRAPH, load_external_data=False)
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["LinearAttention"] == len(layers)
    assert nodes[0] - nodes[1] >= (57 - most) * len(layers)


@pytest.mark.parametrize("family", PLAIN)
def test_rows_of_whole_heads_are_those_of_the_native_graph(family, tmp_path):
    bundle = whole_heads(tmp_path, family, "fp32")
    fused = fused_model(tmp_path / "fused", bundle)
    native = load_model(bundle, TARGET, Placement(HOST), threads=1)
    vocabulary = bundle.target.vocab_size
    assert distance(history(fused, vocabulary), history(native, vocabulary)) < SAME


@pytest.mark.parametrize("name", OWN)
def test_attention_has_all_its_attributes(name, tmp_path):
    layer = LAYERS[name]
    calls = (
        random_call(layer, "fp32", np.random.default_rng(seed), (70, 3, 0), 14) for seed in count()
    )
    # The runtime's calls have the rows of a sequence together.
    arrays = next(each for each in calls if (np.diff(each["sequence"]) >= 0).all())
    native = node_graph(tmp_path, layer, arrays)
    lower(native, tmp_path / "fused", GraphForm(0, fused=fused_operators("cpu")))
    graph = open_graph("cpu", tmp_path / "fused" / GRAPH, 1)
    pool = arrays.pop("pool")
    arrays["x"] = arrays.pop("qkv")
    pools = {}
    graph.resize(pools, {"pool.0": (pool.shape, np.float32)})
    held = arrays["context"].tolist()
    graph.write(pools, held, 2, {"pool.0": pool[:, :, held]})
    assert isinstance(pools["pool.0"], np.ndarray) == layer.sight
    names = {"qkv": "x"}
    feeds = {names.get(name, name): each for name, each in arrays.items()}
    feeds |= pools
    feeds["input_ids"] = np.zeros(len(arrays["x"]), np.int64)
    feeds["logit_rows"] = np.arange(len(arrays["x"]))
    found = graph(feeds)["y"]
    arrays["qkv"] = arrays["x"]
    arrays["pool"] = pool
    arrays["pool"][:, :, arrays["write"]] = graph.read(pools, arrays["write"].tolist(), 2)["pool.0"]
    heard = np.flatnonzero(arrays["sight"] >= 0) if layer.sight else slice(None)
    assert distance(found[heard], attended(layer, arrays)[heard]) < SAME
