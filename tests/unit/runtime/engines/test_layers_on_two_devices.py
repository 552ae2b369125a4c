"""A target whose last layers run on a GPU writes what it writes on the CPU alone."""

from __future__ import annotations

import numpy as np
import pytest
from gpus import usable
from native_llms import loaded, with_library
from onnx import TensorProto
from pairs import LONG_PROMPT

from edgespec.bundle import TARGET
from edgespec.errors import DeviceError, MemoryLimitError
from edgespec.llm.llm import inside
from edgespec.llm.load import graphs, place
from edgespec.runtime.engines import portable

pytestmark = with_library


@pytest.fixture(params=["openvino:cpu", "cuda:0"])
def gpu(request, monkeypatch, gpu_in_software):
    """Stands for the best GPU; that it might read prompts for all layers is tried elsewhere."""
    monkeypatch.setattr(portable, "best_gpu", lambda: request.param)
    monkeypatch.setattr(graphs, "reads_prompts", lambda *_: False)
    return usable(request.param)


FIXED = "openvino:cpu#8x512"
ON_DEVICE = ("webgpu:0", "cuda:0")  # pools stay there


@pytest.mark.parametrize(
    ("gpu", "name", "layers", "count"),
    [
        ("openvino:cpu", "llama", 1, 60), ("webgpu:0", "llama", 1, 8), ("cuda:0", "llama", 1, 60),
        (FIXED, "head", 5, 60), (FIXED, "head", 8, 20),
    ],
    indirect=["gpu"],
)  # fmt: skip
def test_texts_are_those_of_one_device(pairs, gpu, name, layers, count):
    with loaded(pairs, name, gpu_layers=layers) as llm:
        target = inside(llm).models[TARGET]
        there = llm.bundle.target.layers - layers
        assert target.device == (f"cpu:native+{gpu}" if there else gpu)
        here = [type(each) is np.ndarray for each in target.pool.arrays.values()]
        assert here == [True] * there + [gpu not in ON_DEVICE] * layers
        assert {"head", "model"} & {*llm.draft_sources}
        for source in llm.draft_sources:  # layers before the cut give a head its features, too
            result = llm.generate(LONG_PROMPT, max_new_tokens=count, draft_source=source)
            assert result.tokens == pairs.greedy(name)[:count]
            assert not result.exact


def test_as_many_layers_as_there_are(pairs, gpu):
    for layers, device in ((0, "cpu:native"), (2, gpu), (99, gpu)):
        with loaded(pairs, "llama", gpu_layers=layers) as llm:
            assert inside(llm).models[TARGET].device == device


def test_without_the_operators_both_parts_are_portable(pairs, gpu, monkeypatch):
    monkeypatch.setattr(place, "library", lambda: None)
    with loaded(pairs, "llama", gpu_layers=1) as llm:
        assert inside(llm).models[TARGET].device == f"cpu+{gpu}"
        assert llm.generate(LONG_PROMPT, max_new_tokens=40).tokens == pairs.greedy("llama")[:40]


def test_caches_have_the_format_of_their_device(pairs, gpu, tmp_path):
    with loaded(pairs, "small-caches", "none", gpu_layers=1) as llm:
        pools = inside(llm).models[TARGET].pool.arrays
        held = {name: getattr(each, "dtype", np.float16) for name, each in pools.items()}
        assert gpu not in ON_DEVICE or pools["pool.1"].element_type() == TensorProto.FLOAT16
        assert held == {"pool.0": np.int8, "scales.0": np.float32, "pool.1": np.float16}
        session = llm.session()
        text = session.generate(LONG_PROMPT, max_new_tokens=20)
        session.save(tmp_path / "file")
        with llm.load_session(tmp_path / "file") as again:
            assert again.generate(LONG_PROMPT, max_new_tokens=20).tokens == text.tokens


@pytest.mark.parametrize("gpu", [FIXED], indirect=True)
def test_the_device_with_fewest_slots_limits_the_cache(pairs, gpu):
    with loaded(pairs, "llama", "none", gpu_layers=1, context=512, sessions=3) as llm:
        pool = inside(llm).models[TARGET].pool
        assert pool.capacity == 512
        with pytest.raises(MemoryLimitError, match=r"has room for 512 rows.*#8x1024"):
            pool.take(513)


def test_what_runs_on_one_device_alone(pairs, gpu):
    message = "its target cannot run on two devices .*: use another --gpu-layers"
    with pytest.raises(DeviceError, match=message):
        loaded(pairs, "gemma4_text", "none", gpu_layers=1)
