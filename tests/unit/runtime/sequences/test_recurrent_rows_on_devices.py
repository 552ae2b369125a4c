"""Recurrent layers in standard and in fused operators: rows are the native graph's."""

from __future__ import annotations

import numpy as np
import pytest
from checkpoints import make_checkpoint
from gpus import FusedHostAsGpu, HostAsGpu, usable
from histories import History, chain, read
from nodes import needs_library
from parity import distance
from small_configs import RECURRENT, RECURRENT_MIXTURES

from edgespec import bundle as bundles
from edgespec import export
from edgespec.bundle import DRAFT, RECURRENT_ROWS, TARGET
from edgespec.errors import DeviceError
from edgespec.export import ExportOptions
from edgespec.llm.load.models import load_model
from edgespec.runtime.engines.portable import examined, webgpu
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.queue import ranked_rows

pytestmark = needs_library

ALIKE = 1e-4
DEVICES = ("cpu", "cpu#4x1024", "openvino:cpu", "openvino:cpu#16x1024")


def alike(row, expected):
    assert distance(np.asarray(row), np.asarray(expected)) < ALIKE


def on_device(pairs, name, device, half=None):
    """The target on a device, and its native graph."""
    return both(bundles.load(pairs.pair(name).path), device, half)


def convolved(shape):
    """How many of the first numbers of a row that is kept a convolution reads, at least."""
    if not shape.state:
        return shape.width
    heads, strips, *_ = shape.state
    return 2 * ((shape.width - heads * (1 + 2 * 16 * strips)) // 3)


def both(bundle, device, half=None):
    found = examined(usable(device))
    half = found.half if half is None else half
    place = Placement(device, HOST, False, found.slots, half, rows=found.rows)
    native = load_model(bundle, TARGET, Placement(HOST), threads=1)
    return load_model(bundle, TARGET, place, threads=1), native


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RECURRENT)
def test_rows_are_those_of_the_native_graph(pairs, name, device):
    model, native = on_device(pairs, name, device)
    history = History(model, np.random.default_rng(1), native, alike)
    history.run(8)
    assert len(history.logits) > 150


@pytest.mark.parametrize("name", RECURRENT_MIXTURES)
def test_rows_of_mixtures_are_those_of_the_native_graph(name, tmp_path):
    make_checkpoint(tmp_path / "source", name)
    export.make(tmp_path / "source", tmp_path / "bundle", options=ExportOptions("fp32"))
    model, native = both(bundles.load(tmp_path / "bundle"), "cpu#8x1024")
    History(model, np.random.default_rng(5), native, alike).run(4)


@pytest.mark.parametrize(
    ("name", "device", "most"),
    [
        *((name, "cpu#8x256", 0.02) for name in RECURRENT),
        ("lfm2", "qnn:emulated#8x256", 0.02),
        ("granitemoehybrid", "qnn:emulated#8x256", 0.02),
    ],
)
def test_rows_of_weights_in_half_precision_are_about_the_same(pairs, name, device, most):
    """As NPUs want them; Qualcomm's computes in half precision, too."""
    model, native = on_device(pairs, name, device, half=True)
    apart = []
    history = History(
        model, np.random.default_rng(4), native, lambda *rows: apart.append(distance(*rows))
    )
    history.run(1)
    assert 0 < max(apart) < most


@pytest.mark.parametrize("gpu", [HostAsGpu, FusedHostAsGpu])
@pytest.mark.parametrize("name", RECURRENT)
def test_pools_stay_on_a_gpu(pairs, name, gpu, monkeypatch):
    monkeypatch.setattr(webgpu, "WebGpu", gpu)
    model, native = on_device(pairs, name, "webgpu:0")
    assert not isinstance(model.pool.recurrent.rows.arrays["rows.0"], np.ndarray)
    history = History(model, np.random.default_rng(2), native, alike)
    history.run(8)


@pytest.mark.parametrize("name", ["granitemoehybrid", "qwen3_5_text"])
def test_rows_on_a_gpu_are_those_of_the_native_graph(pairs, name, gpu_in_software):
    model, native = on_device(pairs, name, "webgpu:0")
    History(model, np.random.default_rng(3), native, alike).run(1)


@pytest.mark.parametrize("gpu", [HostAsGpu, FusedHostAsGpu])
@pytest.mark.parametrize("name", RECURRENT)
def test_chains_of_a_draft_are_queued(pairs, name, gpu, monkeypatch):
    """Each pass reads what the one before found, and goes on from the rows behind the state."""
    monkeypatch.setattr(webgpu, "WebGpu", gpu)
    bundle = bundles.load(pairs.pair(f"{name}-draft").path)
    native = load_model(bundle, DRAFT, Placement(HOST), threads=1)
    place = Placement("webgpu:0", HOST, False, half=examined("webgpu:0").half)
    model = load_model(bundle, DRAFT, place, threads=1)
    draw = np.random.default_rng(6)
    sequence = model.sequence([])
    for count in (9, 1, 3, 20):
        sequence.tokens += draw.integers(1, 300, count).tolist()
        rows = chain(sequence, sequence.unread, certain=count - 1)
        rows.wanted = [count - 1]
        [found] = ranked_rows(model, [rows], further=3)
        drafted = found.tokens[:, 0].tolist()
        whole = read(native.sequence([*sequence.tokens, *drafted[:3]]), native)[-4:]
        logits = np.take_along_axis(np.asarray(whole), found.tokens, axis=1)
        alike(found.logits, logits)
        assert drafted == whole.argmax(axis=1).tolist()
        rows.accept(range(count))
        model.pool.free(found.slots)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_one_token_again_and_again(pairs, device):
    """Their keys are alike, so that what each adds depends most on what all others do."""
    model, native = on_device(pairs, "qwen3_5_text", device)
    tokens = [7] * (2 * RECURRENT_ROWS + 10)
    count = len(tokens)
    expected = read(native.sequence(tokens), native, certain=count)
    alike(read(model.sequence(tokens), model, certain=count), expected)


@pytest.mark.parametrize("device", ["cpu", "cpu#64x256", "webgpu:0"])
@pytest.mark.parametrize("name", RECURRENT)
def test_what_is_kept_of_a_text_is_that_of_the_native_graph(pairs, name, device, monkeypatch):
    """What moves between devices: states, and what convolutions read of the rows before them."""
    monkeypatch.setattr(webgpu, "WebGpu", HostAsGpu)
    bundle = bundles.load(pairs.pair(name).path)
    model, native = both(bundle, device)
    tokens = [*range(1, 51)]
    kept = []
    for each in (model, native):
        sequence = each.sequence(tokens[:40])
        read(sequence, each, certain=40)
        sequence.tokens += tokens[40:]
        read(sequence, each)
        sequence.cut(40)
        kept.append(sequence.read())
    assert [*kept[0]] == [*kept[1]]
    sizes = {f"rows.{each.layer}": convolved(each) for each in bundle.target.native.recurrent}
    for array, held in kept[0].items():
        most = sizes.get(array)
        alike(held[..., :most], kept[1][array][..., :most])
    for each, held in zip((native, model), kept, strict=True):  # the other's
        sequence = each.sequence(tokens[:40])
        sequence.write(held)
        sequence.tokens += tokens[40:]
        whole = each.sequence([*tokens])
        alike(read(sequence, each), read(whole, each)[-10:])


def test_fixed_shapes_that_are_too_small_or_too_large(pairs):
    model, _ = on_device(pairs, "qwen3_5_text", "cpu#4x1024")
    sequence = model.sequence([*range(1, 100)])
    with pytest.raises(DeviceError, match=r"read \d+ rows before a call.*has room for 68: name"):
        read(sequence, model)  # none of them is certain
    with pytest.raises(DeviceError, match="rows at most: name it cpu#64x512"):
        on_device(pairs, "qwen3_5_text", "cpu#65x512")
