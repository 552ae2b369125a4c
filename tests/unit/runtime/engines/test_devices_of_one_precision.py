"""Devices with numbers of one kind: NPUs, which compile once, and GPUs without half precision."""

from __future__ import annotations

import onnx
import pytest
from gpus import usable
from native_llms import loaded, with_library
from pairs import SHORT_PROMPT

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import TARGET
from edgespec.bundle.options import GraphForm
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.llm.load.models import load_model
from edgespec.llm.load.portable import portable_graph
from edgespec.runtime.engines.portable import examined, open_graph
from edgespec.runtime.plan import HOST, Placement, portable_bytes
from edgespec.runtime.sequences.model import AFTER, Model, RotationTable, Rows
from edgespec.runtime.sequences.pool import KVPool

pytestmark = with_library

NPU = "qnn:emulated#8x512"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def quantized(pairs, tmp_path_factory):
    """A bundle in int4."""
    folder = tmp_path_factory.mktemp("quantized") / "bundle"
    source = pairs.pair("llama").path.parent / "target"
    export.make(source, folder, options=ExportOptions("int4"))
    return bundles.load(folder)


def logits(model):
    rows = Rows(model.sequence([]), TOKENS, [AFTER, *range(len(TOKENS) - 1)], [0, 7])
    return model.forward([rows])[0]


def test_weights_are_floats_in_plain_products(quantized):
    file = portable_graph(quantized, TARGET, GraphForm(0, half=True))
    graph = onnx.load(file, load_external_data=False).graph
    assert not {"MatMulNBits", "GatherBlockQuantized"} & {node.op_type for node in graph.node}
    opened = open_graph("openvino:cpu#8x64", file, 1)
    role = quantized.target
    pool = KVPool(role.native.pools, opened.kv, None, opened)
    ropes = map(RotationTable, role.rope_tables)
    found = logits(Model(opened, pool, list(ropes)))
    expected = logits(load_model(quantized, TARGET, Placement(HOST), threads=1))
    apart = abs(found - expected).max() / expected.std()
    assert 0 < apart < 0.2  # the native graph rounds activations
    stored = (file.parent / "portable.data").stat().st_size
    assert abs(stored / portable_bytes(role, half=True) - 1) < 0.05


def test_texts_are_those_of_the_cpu(pairs):
    device = usable(NPU)
    with loaded(pairs, "llama", "lookup", device=device) as llm:
        result = llm.generate(SHORT_PROMPT, max_new_tokens=12)
        assert result.tokens == pairs.greedy("llama", SHORT_PROMPT)[:12]
        assert llm.plan.slots[TARGET] == 512


@pytest.mark.parametrize("device", [NPU, "openvino:cpu#8x512"])
def test_what_is_compiled_is_kept(quantized, own_cache, device):
    file = portable_graph(quantized, TARGET, GraphForm(0, half=True))
    found = []
    for _ in range(2):
        open_graph(usable(device), file, 1)
        kept = [each for each in file.parent.rglob("*") if each.is_file()]
        found.append({each: each.stat().st_mtime_ns for each in kept})
    assert found[0] == found[1]
    assert len(found[0]) > 2


@pytest.mark.parametrize("name", ["half", "small-caches"])
def test_a_gpu_without_half_precision_has_wider_numbers(pairs, gpu_in_software, name):
    if examined(device := usable("webgpu:0")).half is None:
        pytest.skip("this GPU has numbers in half precision")
    with loaded(pairs, name, "none", device=device) as llm:
        arrays = inside(llm).models[TARGET].pool.arrays.values()
        assert {each.keys.element_type() for each in arrays} == {1}
        found = llm.generate(SHORT_PROMPT, max_new_tokens=6).tokens
        assert found == pairs.greedy(name, SHORT_PROMPT)[:6]


def test_floats_of_a_graph_without_half_precision(pairs):
    file = portable_graph(bundles.load(pairs.pair("half").path), TARGET, GraphForm(0, half=False))
    graph = onnx.load(file, load_external_data=False).graph
    kinds = {each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)}
    kinds |= {each.data_type for each in graph.initializer}
    assert onnx.TensorProto.FLOAT16 not in kinds
