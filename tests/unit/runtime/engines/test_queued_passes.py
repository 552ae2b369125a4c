"""Passes that are queued on a device read what the ones before found there, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from gpus import HostAsGpu, usable
from small_attention import ROPE, VOCABULARY, expected, shapes, write_fused_graph, write_graph

from edgespec.errors import MemoryLimitError
from edgespec.runtime.engines.portable import open_graph, webgpu
from edgespec.runtime.sequences.model import AFTER, Model, RotationTable, Rows
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.queue import ranked_rows

COLUMNS = VOCABULARY - 3  # the last tokens are no text's


@pytest.fixture(scope="module")
def graphs(tmp_path_factory, gpu_in_software):
    folder = tmp_path_factory.mktemp("queued")
    write_graph(folder / "standard.onnx")
    write_fused_graph(folder / "fused.onnx")
    return folder


@pytest.fixture(params=["host-standard", "host-fused", "webgpu-standard", "webgpu-fused"])
def model(request, graphs, monkeypatch):
    device, form = request.param.split("-")
    if device == "host":
        monkeypatch.setattr(webgpu, "WebGpu", HostAsGpu)
    usable("webgpu:0")
    return opened(graphs / f"{form}.onnx")


def opened(file, limit=None):
    graph = open_graph("webgpu:0", file, 1, COLUMNS)
    return Model(graph, KVPool(shapes(), graph.kv, limit, graph), [RotationTable(ROPE)])


def check(tokens, best, logits):
    """Tokens and their logits are the likeliest ones behind some text."""
    wanted = expected(tokens)[0][:COLUMNS]
    assert best.tolist() == np.argsort(-wanted)[: len(best)].tolist()
    np.testing.assert_allclose(logits, wanted[best], rtol=0, atol=2e-4)


def test_each_pass_reads_the_likeliest_token_of_the_one_before(model):
    draw = np.random.default_rng(3)
    sequences = [model.sequence([]) for _ in range(2)]
    for number in range(6):
        batch = []
        for each in sequences[: 1 + number % 2]:
            tokens = draw.integers(COLUMNS, size=1 + number).tolist()
            chain = [AFTER, *range(number)]
            batch.append(Rows(each, tokens, chain, [number]))
        found = ranked_rows(model, batch, further=number % 4)
        for rows, ranked in zip(batch, found, strict=True):
            text = [*rows.sequence.tokens, *rows.tokens]
            for best, logits in zip(ranked.tokens, ranked.logits, strict=True):
                check(text, best, logits)
                text.append(int(best[0]))
            assert len(ranked.tokens) == 1 + len(ranked.slots) == 1 + number % 4
            kept = ranked.slots[:1]  # and the others are free again
            rows.sequence.tokens += text[len(rows.sequence.tokens) :][: len(rows.tokens)]
            rows.accept(range(len(rows.tokens)))
            rows.sequence.tokens += ranked.tokens[0, :1].tolist() if kept else []
            rows.sequence.append(kept)
            model.pool.free(ranked.slots[1:])
    assert model.pool.used == sum(each.length for each in sequences)


def test_rows_of_a_tree_are_ranked_behind_their_branch(model):
    sequence = model.sequence([3, 1, 4])
    first = Rows(sequence, [3, 1, 4], [AFTER, 0, 1], [])
    model.forward([first])
    first.accept(range(3))
    branch = Rows(sequence, [1, 5], [AFTER, 0], [1])
    [found] = ranked_rows(model, [branch])
    check([3, 1, 4, 1, 5], found.tokens[0], found.logits[0])
    level = Rows(sequence, [9, 2], [AFTER, AFTER], [0, 1], branch.slots)
    [found] = ranked_rows(model, [level])
    for token, best, logits in zip([9, 2], found.tokens, found.logits, strict=True):
        check([3, 1, 4, 1, 5, token], best, logits)
    single = Rows(sequence, [6], [AFTER], [0], [*branch.slots, level.slots[0]])
    [found] = ranked_rows(model, [single], further=2)
    text = [3, 1, 4, 1, 5, 9, 6]
    for best, logits in zip(found.tokens, found.logits, strict=True):
        check(text, best, logits)
        text.append(int(best[0]))


def test_logits_can_still_be_read(model):
    sequence = model.sequence([])
    rows = Rows(sequence, [5, 3], [AFTER, 0], [1])
    [found] = model.forward([rows])
    np.testing.assert_allclose(found[0], expected([5, 3])[0], rtol=0, atol=2e-4)


def test_rows_are_moved_together_before_a_queue_and_not_inside(graphs, monkeypatch):
    monkeypatch.setattr(webgpu, "WebGpu", HostAsGpu)
    model = opened(graphs / "fused.onnx")
    sequence = model.sequence([7])
    places = model.pool.arrays["pool.0"].places
    ends = []
    for _ in range(90):
        rows = Rows(sequence, [7], [AFTER], [0])
        [found] = ranked_rows(model, [rows], further=6)
        text = [7]
        for best, logits in zip(found.tokens, found.logits, strict=True):
            check(text, best, logits)
            text.append(int(best[0]))
        ends.append(places.end)
        model.pool.free([*rows.slots, *found.slots])
        model.pool.free(model.pool.take(100)[::-1])  # other slots come next
        taken = model.pool.take(1 + len(ends) % 50)
        model.pool.free(taken[::-1])
    assert max(ends) > places.count - 20 or min(ends[1:]) <= ends[0]


def test_what_finds_no_room_leaves_no_rows(graphs, monkeypatch):
    monkeypatch.setattr(webgpu, "WebGpu", HostAsGpu)
    model = opened(graphs / "fused.onnx", limit=256)
    sequence = model.sequence([])
    rows = Rows(sequence, [1] * 100, [AFTER, *range(99)], [99])
    with pytest.raises(MemoryLimitError):
        ranked_rows(model, [rows], further=200)
    assert model.pool.used == 0


def test_devices_that_wait_for_each_call_rank_nothing(graphs):
    graph = open_graph("cpu", graphs / "fused.onnx", 1, COLUMNS)
    assert not hasattr(graph, "best")
