"""Portable graphs in half precision: what single precision gives, but for rounding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from nodes import needs_library
from onnx import TensorProto, helper, numpy_helper
from test_fused_graphs import ALL, history
from test_portable_graphs import FAMILIES, exported

from edgespec.bundle.options import GraphForm
from edgespec.export.portable import DATA, GRAPH, HALVES, lower
from edgespec.export.portable.halves import write_halves
from edgespec.runtime.engines.portable import open_graph
from edgespec.runtime.sequences.model import Model, RotationTable
from edgespec.runtime.sequences.pool import KVPool

pytestmark = needs_library

OPERATORS = (ALL - {"norms"}) | {"halves"}  # the CPU's, which has all kernels in both
STATES = "qwen3_5_text"


def opened(role, file):
    graph = open_graph("cpu", file, 1)
    pool = KVPool(role.native.pools, graph.kv, None, graph)
    tables = [each for each in role.rope_tables if each.name in role.native.ropes]
    return Model(graph, pool, [RotationTable(each) for each in tables])


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_those_of_single_precision(family, tmp_path):
    bundle = exported(tmp_path, family, "int8")
    folder = tmp_path / "graphs"
    lower(bundle.path / bundle.target.native.graph, folder, GraphForm(0, fused=OPERATORS))
    vocabulary = bundle.target.vocab_size
    single, half = (
        history(opened(bundle.target, folder / each), vocabulary) for each in (GRAPH, HALVES)
    )
    apart = abs(half - single).max() / single.std()
    assert 0 < apart < 0.05


def test_levels_of_weights_are_stored_once(tmp_path):
    bundle = exported(tmp_path, "llama", "int4")
    folder = tmp_path / "graphs"
    lower(bundle.path / bundle.target.native.graph, folder, GraphForm(0, fused=OPERATORS))
    graph = onnx.load(folder / HALVES, load_external_data=False).graph
    kinds = {each.data_type for each in graph.initializer}
    kinds |= {each.type.tensor_type.elem_type for each in graph.input}
    assert TensorProto.FLOAT not in kinds
    places = {
        entry.value: each.data_type
        for each in graph.initializer
        for entry in each.external_data
        if entry.key == "location"
    }
    assert places == {DATA: TensorProto.UINT8, "halves.data": TensorProto.FLOAT16}
    floats = [each for each in graph.output if not each.name.endswith(".after")]
    assert {each.type.tensor_type.elem_type for each in floats} == {TensorProto.FLOAT}
    assert (folder / "halves.data").stat().st_size < 0.2 * (folder / DATA).stat().st_size


@pytest.mark.parametrize(
    ("family", "precision", "half", "operators"),
    [
        ("llama", "fp32", None, OPERATORS),  # as the user asked
        ("llama", "int8", False, OPERATORS),  # the device has no such numbers
        ("llama", "int8", None, ALL),  # it is not faster with them
        (STATES, "int8", None, OPERATORS),  # states need more
    ],
)
def test_what_stays_in_single_precision(family, precision, half, operators, tmp_path):
    bundle = exported(tmp_path, family, precision)
    lower(
        bundle.path / bundle.target.native.graph, tmp_path / "graphs", GraphForm(0, half, operators)
    )
    assert sorted(each.name for each in (tmp_path / "graphs").iterdir()) == [DATA, GRAPH]


def test_numbers_beyond_half_precision_become_infinite(tmp_path):
    node = helper.make_node("Add", ["x", "w"], ["y"])
    out = helper.make_node("Identity", ["y"], ["logits"])
    told = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "logits")]
    weight = numpy_helper.from_array(np.array([1e6], np.float32), "w")
    graph = helper.make_graph([node, out], "one", told[:1], told[1:], [weight])
    onnx.save(helper.make_model(graph), tmp_path / "graph.onnx")
    write_halves(tmp_path / "graph.onnx", tmp_path / "halves.onnx", tmp_path / "halves.data")
    narrow = onnx.load(tmp_path / "halves.onnx").graph.initializer[0]
    assert np.isinf(numpy_helper.to_array(narrow)).all()
