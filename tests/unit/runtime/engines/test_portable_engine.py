"""Portable graphs: rows see what they should, wherever they run, and pools keep what they hold."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain, pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_attention import (
    DIM,
    HEADS,
    ROPE,
    VOCABULARY,
    expected,
    shapes,
    write_fused_graph,
    write_graph,
)

from edgespec.errors import DeviceError, MemoryLimitError
from edgespec.runtime.engines import portable
from edgespec.runtime.engines.portable import find_devices, open_graph
from edgespec.runtime.engines.portable.visibility import Bias, Visibility
from edgespec.runtime.sequences.model import AFTER, Model, RotationTable, Rows
from edgespec.runtime.sequences.pool import KVPool

ON = ("cpu", "cpu#4x256", "openvino:cpu", "openvino:cpu#8x256", "webgpu:0", "cuda:0")
FUSED_ON = ("cpu", "webgpu:0")  # CUDA's attention has no numbers in single precision


@pytest.fixture(scope="module")
def graphs(tmp_path_factory, gpu_in_software):
    folder = tmp_path_factory.mktemp("portable")
    write_graph(folder / "fp32.onnx")
    write_graph(folder / "fp16.onnx", "float16")
    write_fused_graph(folder / "fused.onnx")
    return folder


FORMS = [*((each, "fp32") for each in ON), *((each, "fused") for each in FUSED_ON)]


@pytest.fixture(scope="module", params=FORMS, ids="-".join)
def opened(request, graphs):
    device, form = request.param
    try:
        return open_graph(device, graphs / f"{form}.onnx", 1)
    except DeviceError as error:
        pytest.skip(str(error))


def model_of(graph, limit=None):
    return Model(graph, KVPool(shapes(), graph.kv, limit, graph), [RotationTable(ROPE)])


def shuffled(pool, count, draw):
    """Lets the pool give its next slots in random order."""
    pool.free(draw.permutation(pool.take(count)).tolist())


def random_rows(draw, sequence, most=6):
    """A tree of random tokens below a sequence; logits of some rows are wanted."""
    count = int(draw.integers(1, most + 1))
    parents = [int(draw.integers(AFTER, row)) for row in range(count)]
    tokens = draw.integers(VOCABULARY, size=count).tolist()
    wanted = [row for row in range(count) if draw.random() < 0.7]
    return Rows(sequence, tokens, parents, wanted)


def path(rows, row):
    """The rows from the sequence's end to a row."""
    parent = rows.parents[row]
    return [*([] if parent == AFTER else path(rows, parent)), row]


def check(batch, logits):
    """Each wanted row is what its tokens alone give."""
    for rows, found in zip(batch, logits, strict=True):
        assert found.shape == (len(rows.wanted), VOCABULARY)
        for row, each in zip(rows.wanted, found, strict=True):
            before = rows.sequence.tokens[: rows.sequence.length]
            wanted, hidden = expected([*before, *[rows.tokens[n] for n in path(rows, row)]])
            np.testing.assert_allclose(each, wanted, rtol=0, atol=2e-4)
            np.testing.assert_allclose(rows.features[row], hidden, rtol=0, atol=2e-4)


def accept(draw, rows):
    """Appends a random path of the tree."""
    kept = path(rows, int(draw.integers(len(rows.tokens))))
    rows.sequence.tokens += [rows.tokens[row] for row in kept]
    rows.accept(kept)


def test_rows_are_those_of_each_sequence_alone(opened):
    draw = np.random.default_rng(1)
    model = model_of(opened)
    shuffled(model.pool, 100, draw)
    sequences = [model.sequence([]) for _ in range(3)]
    for number in range(12):
        batch = [random_rows(draw, each) for each in sequences if draw.random() < 0.8]
        if batch:
            check(batch, model.forward(batch))
            for rows in batch:
                accept(draw, rows)
        if number == 6:  # one shares another's slots, and goes on differently
            sequences[0].free()
            sequences[0] = sequences[1].fork(sequences[1].length // 2)
    assert len({each.length for each in sequences}) > 1
    assert max(each.length for each in sequences) > 10  # longer than the window


def test_branches_are_seen_by_their_rows_alone(opened):
    model = model_of(opened)
    sequence = model.sequence([3, 1, 4])
    first = Rows(sequence, [3, 1, 4], [AFTER, 0, 1], [2])
    check([first], model.forward([first]))
    first.accept(range(3))
    branch = Rows(sequence, [5, 9, 2], [AFTER, 0, AFTER], [])
    model.forward([branch])
    slots = branch.slots
    below = [
        Rows(sequence, [7, 8], [AFTER, AFTER], [0, 1], branch=slots[:2]),
        Rows(sequence, [7], [AFTER], [0], branch=slots[2:]),
    ]
    found = model.forward(below)
    for tokens, each in (([5, 9, 7], found[0][0]), ([5, 9, 8], found[0][1]), ([2, 7], found[1][0])):
        wanted, _ = expected([3, 1, 4, *tokens])
        np.testing.assert_allclose(each, wanted, rtol=0, atol=2e-4)


def test_a_pool_that_grows_keeps_what_it_holds(opened):
    if "#" in opened.device:
        pytest.skip("it has all slots at once")
    draw = np.random.default_rng(3)
    model = model_of(opened)
    sequence = model.sequence([])
    capacities = []
    while len(set(capacities)) < 3:
        tokens = draw.integers(VOCABULARY, size=140).tolist()  # more than a device takes at once
        rows = Rows(sequence, tokens, [AFTER, *range(139)], [0, 139])
        logits = model.forward([rows])
        check([rows], logits)
        sequence.tokens += tokens
        rows.accept(range(140))
        capacities.append(model.pool.capacity)
    assert sorted(set(capacities)) == [256, 512, 768]


def test_what_slots_hold_is_read_and_written(opened):
    draw = np.random.default_rng(4)
    model = model_of(opened)
    shuffled(model.pool, 60, draw)
    sequence = model.sequence([3, 1, 4, 1, 5])
    rows = Rows(sequence, [3, 1, 4, 1, 5], [AFTER, 0, 1, 2, 3], [])
    model.forward([rows])
    rows.accept(range(5))
    held = sequence.read()
    assert held["pool.0"].shape == (2, HEADS, 5, DIM)
    other = model_of(opened)
    if "#" not in opened.device:  # behind rows of another
        first = Rows(other.sequence([]), [9] * 7, [AFTER] * 7, [])
        other.forward([first])
        other.pool.free(first.slots[:4])
    copy = other.sequence([*sequence.tokens])
    copy.write(held)
    for of, each in ((model, sequence), (other, copy)):
        more = Rows(each, [9, 2], [AFTER, AFTER], [0, 1])
        check([more], of.forward([more]))
    for name, each in copy.read().items():
        np.testing.assert_array_equal(each, held[name])


def test_rows_are_moved_together_where_places_are_used_up(graphs, gpu_in_software):
    for device in FUSED_ON:
        if portable.examined(device).reason is not None:
            continue
        draw = np.random.default_rng(5)
        model = model_of(open_graph(device, graphs / "fused.onnx", 1))
        shuffled(model.pool, 200, draw)
        places = model.pool.arrays["pool.0"].places
        kept, other = (model.sequence([]) for _ in range(2))
        ends = []
        for _ in range(50):
            batch = [random_rows(draw, each, 14) for each in (kept, other)]
            check(batch, model.forward(batch))
            accept(draw, batch[0])
            accept(draw, batch[1])
            if other.length > 8:  # its slots are taken again
                other.free()
                other.tokens.clear()
            ends.append(places.end)
        assert any(after < before for before, after in pairwise(ends))
        assert max(ends) > places.count - 30 > model.pool.capacity


def test_pools_of_one_graph_take_turns(opened):
    sequences = [model_of(opened).sequence([]) for _ in range(2)]
    models = [Model(opened, each.pool, [RotationTable(ROPE)]) for each in sequences]
    for token in range(6):
        model = models[token % 2]
        sequence = sequences[token % 2]
        rows = Rows(sequence, [token], [AFTER], [0])
        check([rows], model.forward([rows]))
        sequence.tokens.append(token)
        rows.accept([0])


def test_pools_in_half_precision(graphs):
    graph = open_graph("cpu", graphs / "fp16.onnx", 1)
    model = model_of(graph)
    assert {each.dtype for each in model.pool.arrays.values()} == {np.dtype(np.float16)}
    sequence = model.sequence([])
    for token in (3, 1, 4, 1, 5):
        rows = Rows(sequence, [token], [AFTER], [0])
        [[logits]] = model.forward([rows])
        sequence.tokens.append(token)
        rows.accept([0])
        wanted, _ = expected(sequence.tokens)
        assert 0 < abs(logits - wanted).max() < 0.1


@given(st.data())
def test_a_row_sees_its_sequence_its_ancestors_and_itself(data):
    draw = np.random.default_rng(data.draw(st.integers(0, 1000)))
    capacity = 40
    window = data.draw(st.sampled_from([None, 1, 3]))
    chunked = window is not None and data.draw(st.booleans())
    slots = draw.permutation(capacity).tolist()
    lengths = draw.integers(0, 6, 3)
    counts = draw.integers(1, 5, 3)
    context = [[slots.pop() for _ in range(n)] for n in lengths]
    owners = np.repeat(np.arange(3), counts)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    parents = [int(draw.integers(first - 1, row)) for row, first in enumerate(firsts)]
    parents = [p if p >= first else -1 for p, first in zip(parents, firsts, strict=True)]
    write = [slots.pop() for _ in parents]
    visibility = Visibility(
        {
            "write": np.array(write, np.int32),
            "parent": np.array(parents, np.int32),
            "sequence": owners.astype(np.int32),
            "starts": np.cumsum([0, *lengths], dtype=np.int32),
            "context": np.array([*chain(*context)], np.int32),
        }
    )
    first = data.draw(st.integers(0, len(parents) - 1))
    size = 16
    kind = Bias(window, chunked=chunked)
    bias = visibility.bias(slice(first, len(parents)), size, capacity, kind)
    assert bias.shape == (size, capacity + size)
    for row in range(first, first + size):
        real = min(row, len(parents) - 1)
        ancestors = []
        one = real
        while one >= 0:
            ancestors.insert(0, one)
            one = parents[one]
        columns = list(context[owners[real]])
        columns += [write[n] if n < first else capacity + n - first for n in ancestors]
        if window is not None:
            columns = columns[(len(columns) - 1) // window * window if chunked else -window :]
        assert np.flatnonzero(bias[row - first] == 0).tolist() == sorted(columns)
        assert set(np.unique(bias[row - first])) <= {0, -3e4}


def test_calls_come_in_few_sizes(graphs, monkeypatch):
    sizes = Counter()
    graph = open_graph("openvino:cpu", graphs / "fp32.onnx", 1)
    run = graph._runner.run

    def counted(inputs, pools, slots):
        sizes[len(slots.write["pool"]), len(inputs["logit_rows"])] += 1
        return run(inputs, pools, slots)

    monkeypatch.setattr(graph._runner, "run", counted)
    model = model_of(graph)
    for count in (1, 2, 3, 5, 17, 40, 130):
        rows = Rows(model.sequence([]), [1] * count, [AFTER] * count, list(range(count)))
        [logits] = model.forward([rows])
        assert np.ptp(logits, axis=0).max() < 1e-4
    assert sizes == Counter({(n, n): 1 + (n == 2) for n in (1, 2, 4, 8, 32, 48, 128)})


# What cannot be


def test_a_fixed_capacity_is_the_most_that_a_pool_has(graphs):
    graph = open_graph("cpu#4x256", graphs / "fp32.onnx", 1)
    pool = model_of(graph).pool
    assert pool.capacity == 256
    with pytest.raises(MemoryLimitError, match=r"device cpu#4x256: .* 257 .* cpu#4x512, or lower"):
        pool.take(257)
    assert model_of(graph, 100).pool.arrays["pool.0"].shape[2] == 256


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "device 'tpu' is not known: use one of cpu, cuda:0, webgpu:0"),
        ("cpu#16", "device 'cpu#16' is not known"),
        ("cpu#16x8", "device cpu#16x8: give rows and a capacity that holds them"),
        ("webgpu:1", "device webgpu:1: .*: use webgpu:0"),
    ],
)
def test_devices_that_there_are_not(graphs, device, message):
    with pytest.raises(DeviceError, match=message):
        open_graph(device, graphs / "fp32.onnx", 1)


@pytest.mark.parametrize(
    ("device", "extra"),
    [("openvino:gpu", "intel"), ("cuda", "cuda"), ("webgpu", "webgpu")],
)
def test_a_missing_library_names_what_installs_it(graphs, monkeypatch, device, extra):
    module = device.partition(":")[0]
    monkeypatch.setitem(sys.modules, f"edgespec.runtime.engines.portable.{module}", None)
    with pytest.raises(
        DeviceError, match=rf'device {device}: .*: pip install "\.\[{extra}\]" in a checkout'
    ):
        open_graph(device, graphs / "fp32.onnx", 1)


def test_devices_of_this_machine(gpu_in_software):
    found = {each.name: each for each in find_devices()}
    assert found.keys() >= set(portable.DEVICES)
    assert (found["cpu"].reason, bool(found["cpu"].hardware)) == (None, True)
    proven = {name for name, each in found.items() if not each.experimental}
    assert proven & set(portable.DEVICES) == {"cpu", "cuda:0", "qnn:emulated"}
    for each in found.values():
        assert (each.hardware is None) == (each.reason is not None)
        if each.reason is not None:
            assert "\n" not in each.reason
            assert "install" in each.reason or "use" in each.reason
            with pytest.raises(DeviceError, match=f"^device {each.name}|^device {each.name[:4]}"):
                open_graph(each.name, None, 1)


def test_activations_are_rounded_on_the_cpu_alone():
    levels = {name: portable.accuracy_level(name) for name in (*portable.DEVICES, "cpu#8x256")}
    assert [name for name, level in levels.items() if level] == ["cpu", "cpu#8x256"]


def test_graphs_of_unknown_inputs_are_refused(graphs, tmp_path):
    model = onnx.load(graphs / "fp32.onnx")
    model.graph.input.append(onnx.helper.make_tensor_value_info("strange", 1, ["B", 4]))
    onnx.save(model, tmp_path / "graph.onnx")
    with pytest.raises(DeviceError, match="its input strange is not known: export it again"):
        open_graph("cpu", tmp_path / "graph.onnx", 1)


def test_pools_of_another_model_are_refused(graphs):
    graph = open_graph("cpu", graphs / "fp32.onnx", 1)
    with pytest.raises(DeviceError, match=r"its input pool.0 is .*, and the bundle has 2 "):
        KVPool(shapes(), "fp16", None, graph)
