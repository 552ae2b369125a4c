"""Layers that read one of several streams (AltUp): what goes with them, and what does not."""

from __future__ import annotations

import onnx
import pytest
from nodes import needs_library

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import ExportError
from edgespec.export import ExportOptions
from edgespec.export.heads.taps import add_taps
from edgespec.runtime.engines.parts import cut_graph, without

pytestmark = needs_library


@pytest.fixture(scope="module")
def opened(saved_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams") / "bundle"
    export.make(saved_checkpoint("gemma3n_text"), folder, options=ExportOptions("int4"))
    return bundles.load(folder)


def test_each_layer_is_one_part_that_a_draft_may_leave_out(opened):
    assert [each.source for each in opened.target.layout] == [None, None, 0, 1]
    graph = opened.path / opened.target.native.graph
    kept = onnx.load_from_string(without(graph, [2]))
    pools = [each.name for each in kept.graph.input if each.name.startswith("pool.")]
    assert pools == ["pool.0", "pool.1"]
    count = sum(node.op_type == "TreeAttention" for node in kept.graph.node)
    assert count == 3


def test_draft_heads_and_two_devices_are_refused(opened):
    target = opened.target
    with pytest.raises(ExportError, match="several streams of rows, of which no draft head reads"):
        add_taps(opened.path, target.native.graph, [1, 2], target.hidden_size)
    with pytest.raises(ValueError, match="several streams of rows"):
        cut_graph(opened.path / target.native.graph, 2, target.hidden_size)
