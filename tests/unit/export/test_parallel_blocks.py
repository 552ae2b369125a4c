"""Parts of a layer beside each other: each is a sublayer that a draft may leave out."""

from __future__ import annotations

import onnx
import pytest
from nodes import needs_library

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle.sublayers import ATTENTION, MLP
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint
from edgespec.models.layers.sublayers import inner_parts
from edgespec.runtime.engines.parts import without

pytestmark = needs_library


@pytest.fixture(scope="module")
def opened(saved_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel") / "bundle"
    export.make(saved_checkpoint("cohere2"), folder, options=ExportOptions("int4"))
    return bundles.load(folder)


def test_a_block_has_the_tensors_of_its_parts_and_one_norm(saved_checkpoint):
    decoder = load_checkpoint(saved_checkpoint("cohere2")).decoder
    (block,) = decoder.layers[0]
    attention, mlp = inner_parts(block)
    assert block.linears == attention.linears + mlp.linears
    norm = "model.layers.0.input_layernorm.weight"
    assert block.tensors() == {**attention.tensors(), **mlp.tensors(), norm: (96,)}
    assert decoder.attentions == (attention, inner_parts(decoder.layers[1][0])[0])


@pytest.mark.parametrize(("left_out", "gone"), [(0, "TreeAttention"), (1, "GatedUnit")])
def test_each_part_is_a_sublayer_that_a_draft_may_leave_out(opened, left_out, gone):
    assert [each.kind for each in opened.target.layout] == [ATTENTION, MLP] * 2
    graph = opened.path / opened.target.native.graph
    kept = onnx.load_from_string(without(graph, [left_out]))
    kinds = [node.op_type for node in kept.graph.node]
    others = {"TreeAttention", "GatedUnit"} - {gone}
    assert [kinds.count(gone), *map(kinds.count, others)] == [1, 2]
