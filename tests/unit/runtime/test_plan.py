"""Plans of bundles of small random pairs, on machines with any memory."""

from __future__ import annotations

import pytest

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.bundle.options import GraphForm
from edgespec.errors import MemoryLimitError
from edgespec.export.portable import DATA
from edgespec.llm.load.portable import portable_graph
from edgespec.runtime.arrays import spare_places
from edgespec.runtime.plan import (
    HOST,
    LEAST_CONTEXT,
    MIB,
    SPARE_ROWS,
    USUAL_CONTEXT,
    Placement,
    PlacementRequest,
    plan,
    portable_bytes,
)
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.recurrent import CHECKPOINTS

BOTH = {TARGET: Placement("cpu"), DRAFT: Placement("cpu")}


@pytest.fixture(scope="module")
def pair(pairs):
    return bundles.load(pairs.pair("llama").path)


def slot_bytes(role):
    return KVPool.slot_bytes(role.native.pools, role.precision.kv)


def needed(pair, request):
    """Bytes that a plan takes where all fits."""
    made = plan(pair, request, {HOST: 1 << 50})
    assert made.fits
    return made, sum(each.total + each.mapped for each in made.demands)


def test_where_memory_is_plenty_nothing_gives_way(pair):
    made, _ = needed(pair, PlacementRequest(BOTH))
    assert (made.context, made.dropped) == (pair.target.context_length, ())
    assert set(made.roles) == {TARGET, DRAFT}
    made.require_fit()


def test_caches_grow_with_context_and_sequences(pair):
    one, _ = needed(pair, PlacementRequest(BOTH, context=100))
    many, _ = needed(pair, PlacementRequest(BOTH, context=200, sequences=3))
    assert one.slots[TARGET] == 100 + SPARE_ROWS
    assert many.slots[TARGET] == 3 * (200 + SPARE_ROWS)
    kv = sum(many.slots[name] * slot_bytes(pair.manifest.roles[name]) for name in BOTH)
    assert many.demands[0].kv == kv
    files = pair.manifest.files
    mapped = sum(files[pair.manifest.roles[name].native.data].size for name in BOTH)
    assert (many.demands[0].mapped, many.demands[0].weights) == (mapped, 0)


def test_states_of_recurrent_layers_are_part_of_caches(pairs):
    bundle = bundles.load(pairs.pair("qwen3_5_text").path)
    made, _ = needed(bundle, PlacementRequest({TARGET: Placement("cpu")}, context=100, sequences=3))
    states = 4 * 4 * 16 * 16
    rows = 4 * 192 * 196
    held = 2 * ((3 + CHECKPOINTS) * states + 3 * rows)  # of two layers
    assert made.demands[0].kv == held + made.slots[TARGET] * slot_bytes(bundle.target)


def test_a_usual_context_stays_longer_than_the_draft_model(pair):
    _, most = needed(pair, PlacementRequest(BOTH))
    alone = plan(pair, PlacementRequest(BOTH), {HOST: most - 1})
    assert (alone.fits, set(alone.roles)) == (True, {TARGET})
    assert alone.context == pair.target.context_length <= USUAL_CONTEXT
    _, alone = needed(pair, PlacementRequest({TARGET: BOTH[TARGET]}, context=LEAST_CONTEXT))
    least = plan(pair, PlacementRequest(BOTH), {HOST: alone})
    assert (set(least.roles), least.context) == ({TARGET}, LEAST_CONTEXT)
    assert "draft model is left out" in " ".join(least.dropped)
    assert not plan(pair, PlacementRequest(BOTH), {HOST: alone - 1}).fits


def test_what_was_asked_for_stays_and_is_refused_by_name(pair):
    request = PlacementRequest(BOTH, context=500, draft=True)
    _, most = needed(pair, request)
    made = plan(pair, request, {HOST: most - 1})
    assert (made.context, set(made.roles)) == (500, set(BOTH))
    with pytest.raises(MemoryLimitError, match=r"context of 500 tokens needs .* lower --context"):
        made.require_fit()


def test_a_limit_of_the_user_counts_no_mapped_weights(pair):
    request = PlacementRequest(BOTH, context=500)
    made, _ = needed(pair, request)
    total = made.demands[0].total
    for limit, fits in ((total, True), (total - 1, False)):
        asked = PlacementRequest(BOTH, context=500, draft=True, limits={HOST: limit})
        assert plan(pair, asked, {HOST: 0}).fits is fits


def test_a_device_with_fixed_slots_limits_contexts(pair):
    npu = Placement("qnn:npu", native=False, slots=400, half=True)
    made, _ = needed(pair, PlacementRequest({TARGET: npu, DRAFT: BOTH[DRAFT]}))
    assert made.context == max(400 - SPARE_ROWS, LEAST_CONTEXT)
    assert made.slots == {TARGET: 400, DRAFT: made.context + SPARE_ROWS}
    assert made.demands[0].weights == portable_bytes(pair.target, half=True)
    many, _ = needed(pair, PlacementRequest({TARGET: npu}, context=390, sequences=3))
    assert (many.context, many.slots) == (390, {TARGET: 400})


def test_layers_behind_are_counted_where_they_run(pair):
    gpu = Placement("cuda:0", "gpu", native=False)
    kv = []
    weights = []
    for place in (Placement("cpu"), Placement("cpu", behind=(1, gpu)), gpu):
        made = plan(
            pair, PlacementRequest({TARGET: place}, context=300), {HOST: 1 << 40, "gpu": 1 << 40}
        )
        demands = {each.memory: each for each in made.demands}
        kv.append([demands[name].kv if name in demands else 0 for name in (HOST, "gpu")])
        weights.append([demands[HOST].mapped, sum(each.weights for each in made.demands)])
    whole = kv[0][0]
    [slots] = made.slots.values()
    placed = whole * (slots + spare_places(slots)) // slots
    assert kv == [[whole, 0], [whole // 2, placed // 2], [0, placed]]  # of two layers
    mapped, portable = zip(*weights, strict=True)
    assert mapped[0] > mapped[1] > mapped[2] == portable[0] == 0 < portable[1] < portable[2]


def test_a_device_with_its_own_memory_is_counted_apart(pair):
    roles = {TARGET: Placement("cpu"), DRAFT: Placement("cuda:0", "cuda:0", native=False)}
    made = plan(pair, PlacementRequest(roles, context=300), {HOST: 1 << 40, "cuda:0": 1 << 40})
    demands = {each.memory: each for each in made.demands}
    draft = pair.manifest.roles[DRAFT]
    assert demands["cuda:0"].weights == portable_bytes(draft) > 0
    slots = made.slots[DRAFT]
    assert demands["cuda:0"].kv == (slots + spare_places(slots)) * slot_bytes(draft)
    assert demands["cuda:0"].baseline == demands["cuda:0"].mapped == 0
    assert demands[HOST].baseline > 90 * MIB
    small = plan(pair, PlacementRequest(roles, context=300), {HOST: 1 << 40, "cuda:0": 1000})
    assert set(small.roles) == {TARGET}


def test_a_head_on_a_device_has_copies_of_what_it_borrows(pairs):
    bundle = bundles.load(pairs.pair("dflash").path)
    roles = {TARGET: Placement("cpu"), DRAFT: Placement("cuda:0", "cuda:0", native=False)}
    made = plan(bundle, PlacementRequest(roles, context=300), {HOST: 1 << 40, "cuda:0": 1 << 40})
    [planned] = [each.weights for each in made.demands if each.memory == "cuda:0"]
    stored = portable_graph(bundle, DRAFT, GraphForm(0)).with_name(DATA).stat().st_size
    assert abs(stored / planned - 1) < 0.05
