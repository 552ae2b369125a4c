"""A GPU reads prompts through layers that lie on the host: rows and pools are those of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import make_checkpoint
from gpus import FusedHostAsGpu, HostAsGpu, usable
from histories import chain
from native_llms import with_library

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import TARGET
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions
from edgespec.llm.load.models import load_model
from edgespec.runtime.engines.parts import layers_of
from edgespec.runtime.engines.portable import examined, layerwise, webgpu
from edgespec.runtime.plan import LONG_CALL, LONG_CHUNK, Placement
from edgespec.runtime.sequences.model import AFTER, Rows

pytestmark = with_library

TOKENS = np.random.default_rng(1).integers(3, 331, 640).tolist()
NEAR = 1e-3


@pytest.fixture(params=[HostAsGpu, FusedHostAsGpu])
def gpu(request, monkeypatch):
    """Stands for a GPU."""
    monkeypatch.setattr(webgpu, "WebGpu", request.param)
    return request.param


def exported(folder, family, kv="fp32", precision="fp32", **config):
    make_checkpoint(folder / "source", family, **config)
    options = ExportOptions(precision, kv_precision=kv)
    export.make(folder / "source", folder / "bundle", options=options)
    return bundles.load(folder / "bundle")


def on_two(bundle, prompts=LONG_CHUNK):
    """The target, whose last layer is on a GPU that reads prompts for all, unless that is 0."""
    there = Placement("webgpu:0", "gpu", False, half=examined("webgpu:0").half)
    first = bundle.target.layers - 1
    placed = Placement("cpu", behind=(first, there), prompts=prompts)
    return load_model(bundle, TARGET, placed, threads=1)


def models(bundle):
    """The same with prompts on the GPU, and on the CPU."""
    return on_two(bundle), on_two(bundle, 0)


def read(model, *counts):
    """Reads tokens in passes; returns the logits of each pass's last rows, and the sequence."""
    sequence = model.sequence(TOKENS[: sum(counts)])
    logits = []
    for count in counts:
        rows = chain(sequence, sequence.unread[:count])
        rows.wanted = rows.wanted[-8:]
        logits.append(model.forward([rows])[0].copy())
        rows.accept(range(count))
    return np.concatenate(logits), sequence


def held(sequence):
    """Keys and values by layer, as floats."""
    found = sequence.read()
    scales = {name.partition(".")[2]: each for name, each in found.items() if "scales" in name}
    return {
        name: each * scales[layer][..., None] if (layer := name[5:]) in scales else each
        for name, each in found.items()
        if name.startswith("pool.")
    }


@pytest.mark.parametrize(
    ("family", "kv"),
    [
        ("llama", "fp32"), ("llama", "fp16"), ("qwen2", "int8"), ("gemma3_text", "fp32"),
        ("gpt_oss", "fp32"), ("mixtral", "fp16"),
    ],
)  # fmt: skip
def test_rows_and_pools_are_those_of_the_cpu(family, kv, gpu, tmp_path, long_calls):
    long, usual = models(exported(tmp_path, family, kv, num_hidden_layers=3))
    found, sequence = read(long, 300, 300, 5)
    assert long_calls == [300, 300]
    expected, other = read(usual, 300, 300, 5)
    near = {"fp32": NEAR, "fp16": 5e-3, "int8": 0.1}[kv]
    assert abs(found - expected).max() < near * max(expected.std(), 1)
    pools = held(other)
    for name, rows in held(sequence).items():
        assert abs(rows - pools[name]).max() < near * abs(pools[name]).max(), name


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_levels_of_weights_are_inputs_too(precision, gpu, tmp_path, long_calls):
    """The CPU alone rounds activations to 8 bits."""
    long, usual = models(exported(tmp_path, "qwen3", precision=precision))
    found, _ = read(long, 300)
    expected, _ = read(usual, 300)
    assert long_calls == [300]
    assert 0 < abs(found - expected).max() < 0.2 * expected.std()


def test_several_sequences_and_forks_behind_a_prompt(gpu, tmp_path, long_calls):
    both = models(exported(tmp_path, "llama"))
    found = []
    for model in both:
        _, first = read(model, 260)
        fork = first.fork(100)
        parents = [AFTER, *range(259)]
        batch = [
            Rows(each, TOKENS[n : n + 260], parents, [259]) for n, each in enumerate((first, fork))
        ]
        logits = [each.copy() for each in model.forward(batch)]
        for rows in batch:
            rows.sequence.tokens += rows.tokens
            rows.accept(range(260))
        trees = [Rows(each, [5, 6, 7], [AFTER, AFTER, 0], [0, 1, 2]) for each in (first, fork)]
        found.append(np.concatenate([*logits, *model.forward(trees)]))
        for rows in trees:
            rows.accept([])
        for each in (first, fork):
            each.free()
        assert model.pool.used == 0
    assert long_calls == [260, 520]
    assert abs(found[0] - found[1]).max() < NEAR


def test_trees_of_many_texts_are_no_long_call(gpu, tmp_path, long_calls):
    model = on_two(exported(tmp_path, "llama"))
    parents = [AFTER, *range(30)]
    trees = [Rows(model.sequence([]), TOKENS[n : n + 31], parents, [30]) for n in range(9)]
    model.forward(trees)
    assert long_calls == []


def test_without_room_on_the_gpu_the_cpu_reads(gpu, tmp_path, monkeypatch, caplog, long_calls):
    long, usual = models(exported(tmp_path, "llama"))
    resize = layerwise.OneLayerGraph.resize

    def full(graph, *given):
        monkeypatch.setattr(layerwise.OneLayerGraph, "resize", resize)
        raise DeviceError("no room")

    monkeypatch.setattr(layerwise.OneLayerGraph, "resize", full)
    assert np.array_equal(read(long, 300)[0], read(usual, 300)[0])
    assert "a prompt is read on the CPU: no room" in caplog.text
    assert 0 < abs(read(long, 300)[0] - read(usual, 300)[0]).max() < NEAR


def test_short_calls_stay_on_the_cpu(gpu, tmp_path, long_calls):
    long, usual = models(exported(tmp_path, "llama"))
    counts = LONG_CALL - 1, 3
    assert np.array_equal(read(long, *counts)[0], read(usual, *counts)[0])
    assert long_calls == []
    assert long.long_passes.chunk == LONG_CHUNK
    assert usual.long_passes is None


@pytest.mark.parametrize(("family", "forms"), [("llama", 1), ("gemma3_text", 2)])
def test_layers_that_are_alike_share_a_session(
    family, forms, gpu, tmp_path, monkeypatch, long_calls
):
    opened = []
    make = HostAsGpu.open

    def counted(device, file, *rest):
        opened.append(bool(file.weights))
        return make(device, file, *rest)

    monkeypatch.setattr(HostAsGpu, "open", counted)
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 3}
    config = kinds if family == "gemma3_text" else {}
    models(exported(tmp_path, family, num_hidden_layers=6, **config))
    assert opened.count(True) == forms


def test_a_pass_that_is_interrupted_leaves_nothing(gpu, tmp_path, monkeypatch, long_calls):
    long, usual = models(exported(tmp_path, "llama", num_hidden_layers=3))
    keep = layerwise.HostLayer.keep

    def interrupted(layer, feeds, rows):
        if layer.number:
            raise KeyboardInterrupt
        keep(layer, feeds, rows)

    with monkeypatch.context() as changed:
        changed.setattr(layerwise.HostLayer, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read(long, 300)
    assert long.pool.used == 0
    assert abs(read(long, 300)[0] - read(usual, 300)[0]).max() < NEAR


def test_a_gpu_in_software(tmp_path, gpu_in_software, long_calls):
    usable("webgpu:0")
    bundle = exported(tmp_path, "llama", precision="int8")
    found, _ = read(on_two(bundle), 260)
    expected, _ = read(load_model(bundle, TARGET, Placement("cpu"), threads=1), 260)
    assert long_calls == [260]
    assert abs(found - expected).max() < 0.2 * expected.std()


@pytest.mark.parametrize("family", ["gemma4_text", "qwen3_5_text"])
def test_layers_that_need_others_or_have_states_are_refused(family, tmp_path):
    bundle = exported(tmp_path, family)
    target = bundle.target
    with pytest.raises(ValueError, match=r"read .* of those before them|has states"):
        layers_of(bundle.path / target.native.graph, target.layers, target.hidden_size)
