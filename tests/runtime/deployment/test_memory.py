"""What memory a bundle takes, and what gives way where there is too little of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from cuts import EMBEDDED
from hypothesis import given
from hypothesis import strategies as st
from plans import TERMS, total

from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import MemoryLimitError
from edgespec.runtime.deployment.demands import MIB
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.deployment.memory import USUAL_CONTEXT, cache_rows, fit
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.deployment.resolve import LEAST_CONTEXT, Request, shorter
from edgespec.runtime.deployment.selection import RoleRequest, names_of
from edgespec.runtime.engines import CPU_ENGINES, CallSizes, Footprint, engine
from edgespec.runtime.execution.sizes import stage_sizes
from edgespec.runtime.shapes import (
    ANY_SHAPES,
    DRAFT_WINDOW,
    PARALLEL_ROWS,
    ROW_BUCKETS,
    Shapes,
)


@dataclass(frozen=True)
class Scale:
    """An engine whose needs are round numbers."""

    name: str = "scale:cpu"
    memory: str = "cpu"
    repacked: int = 100
    library_bytes: int = 7
    shapes: Shapes = ANY_SHAPES
    variant: str | None = None
    keeps_states: bool = False
    several_texts: bool = False
    integer_caches: bool = False

    def available_bytes(self):
        return 1 << 40

    def footprint(self, stage, calls):
        return Footprint(
            weights=10, repacked=self.repacked, mapped=1000, logits=stage.vocab * calls.logit_rows,
            workspace=calls.rows * calls.capacity, shared=0, loading=5,
        )  # fmt: skip


BOTH = {TARGET: [(Scale(),)], DRAFT: [(Scale(),)]}


def planned(bundle, limits, engines=BOTH, **changes):
    roles = {name: RoleRequest(tuple(choices)) for name, choices in engines.items()}
    usual = Request(bundle, roles, shorter(2048), ("model", "lookup"), 7, limits, width=4)
    return fit(replace(usual, **changes))


def fitted(limit, **changes):
    return planned(EMBEDDED, {"cpu": limit}, **changes)


def engines_of(found):
    return {name: names_of(role.engines) for name, role in found.roles.items()}


# Terms


def test_every_term_of_a_plan():
    """The embedded pair: 8 layers of 2 x 64, and 2 layers of 2 x 32; a vocabulary of 4096."""
    (demand,) = fitted(1 << 40).devices
    assert (demand.weights, demand.repacked, demand.mapped) == (20, 200, 2000)
    # The draft's cache has room for the 512 tokens that it sees, and its levels behind them.
    assert (cache_rows(TARGET, 2048), cache_rows(DRAFT, 512)) == (2048, 768)
    assert demand.kv == 4 * (2 * 8 * 2 * 64 * 2048 + 2 * 2 * 2 * 32 * 768)
    assert demand.logits == 4096 * (8 + 4)  # the pending token and 7 nodes; a level of 4
    # The target's rows have 72 columns for those near them, and are told which of 256 those are.
    biases = 4 * 64 * (2048 + 72) + 4 * 64 * (768 + 64)
    places = 4 * 64 * (72 + 256)
    rotary = 4 * 2 * ((2048 + 64) * 64 + (768 + 64) * 32)
    inputs = biases + places + 2 * 2 * 8 * 4096 + rotary
    assert demand.workspace == 64 * (2048 + 768) + inputs
    assert demand.baseline > 20 * MIB
    assert demand.total == sum(getattr(demand, term) for term in TERMS)


@pytest.mark.parametrize("draft", ["model", "parallel", "auto"])  # each text may choose another
def test_a_call_with_masks_has_results_for_them_and_for_the_end_of_the_text(draft):
    roles = {**EMBEDDED.manifest.roles, DRAFT: replace(EMBEDDED.draft, mask_token=1)}
    trained = replace(EMBEDDED, manifest=replace(EMBEDDED.manifest, roles=roles))
    place = {"device": CPU_ENGINES[0], "draft_device": CPU_ENGINES[0]}
    before = LoadOptions(draft="model" if draft == "parallel" else draft, **place)
    (without,) = deploy(EMBEDDED, before).devices
    found = deploy(trained, LoadOptions(draft=draft, **place))
    assert found.roles.keys() == {TARGET, DRAFT}
    (demand,) = found.devices
    assert demand.logits == without.logits + 4 * 4096 * (PARALLEL_ROWS - 4)


@pytest.mark.parametrize(("knows", "rows"), [(1024, 1280), (2048, 2048), (4096, 2048)])
def test_a_draft_models_cache_holds_what_it_sees_of_a_text(knows, rows):
    roles = EMBEDDED.manifest.roles
    draft = replace(roles[DRAFT], context_length=knows)
    manifest = replace(EMBEDDED.manifest, roles={**roles, DRAFT: draft})
    (demand,) = planned(replace(EMBEDDED, manifest=manifest), {"cpu": 1 << 40}).devices
    assert cache_rows(DRAFT, min(knows, DRAFT_WINDOW)) == rows
    assert demand.kv == 4 * (2 * 8 * 2 * 64 * 2048 + 2 * 2 * 2 * 32 * rows)


def test_behind_a_longer_text_a_draft_takes_no_more():
    known = EMBEDDED.manifest.roles.items()
    roles = {name: replace(role, context_length=1 << 15) for name, role in known}
    bundle = replace(EMBEDDED, manifest=replace(EMBEDDED.manifest, roles=roles))
    rows = {}
    for context in (1024, 4096, 16384):
        found = planned(bundle, {"cpu": 1 << 40}, contexts=(context,))
        rows[context] = found.roles[DRAFT].cache_rows
        assert found.devices[0].kv == 4 * (
            2 * 8 * 2 * 64 * found.roles[TARGET].cache_rows + 2 * 2 * 2 * 32 * rows[context]
        )
    assert rows == {1024: 1280, 4096: 2048, 16384: 2048}


def test_a_library_counts_once_and_each_library_counts():
    one = fitted(1 << 40).devices[0].baseline
    other = {TARGET: [(Scale(),)], DRAFT: [(Scale(name="other:cpu", library_bytes=9),)]}
    assert fitted(1 << 40, engines=other).devices[0].baseline == one + 9


def test_a_library_that_was_imported_to_be_weighed_counts_as_well():
    alone = fitted(1 << 40).devices[0].baseline
    scale, other = (Scale(),), (Scale(name="other:cpu", repacked=200),)
    engines = {TARGET: [scale, other], DRAFT: [scale, other]}
    chosen = fitted(1 << 40, engines=engines)
    assert engines_of(chosen) == {TARGET: ("scale:cpu",), DRAFT: ("scale:cpu",)}
    assert chosen.devices[0].baseline == alone + 8 * MIB


def test_a_library_counts_once_whatever_shapes_its_engines_have():
    alone = fitted(1 << 40).devices[0].baseline
    shaped = {TARGET: [(Scale(name="scale:cpu#8x512"),)], DRAFT: [(Scale(name="scale:cpu#4x512"),)]}
    assert fitted(1 << 40, engines=shaped).devices[0].baseline == alone


def test_a_tokenizer_takes_eight_bytes_for_each_of_its_own():
    manifest = EMBEDDED.manifest
    file = manifest.files["tokenizer.json"]
    files = {**manifest.files, "tokenizer.json": replace(file, size=file.size + 1000)}
    larger = replace(EMBEDDED, manifest=replace(manifest, files=files))
    limits = {"cpu": 1 << 40}
    one, other = (planned(each, limits).devices[0] for each in (EMBEDDED, larger))
    assert other.baseline - one.baseline == 8 * 1000


def test_loading_counts_where_nothing_later_takes_as_much():
    class Heavy(Scale):
        def footprint(self, stage, calls):
            return replace(super().footprint(stage, calls), loading=10**9)

    (demand,) = fitted(1 << 40, engines={TARGET: [(Heavy(),)], DRAFT: [(Scale(),)]}).devices
    assert demand.kv + demand.logits + demand.workspace == 10**9


def test_a_device_with_memory_of_its_own_is_a_line_of_its_own():
    engines = {TARGET: [(Scale(memory="gpu", name="scale:gpu"),)], DRAFT: [(Scale(),)]}
    limits = {"cpu": 1 << 40, "gpu": 1 << 40}
    host, gpu = planned(EMBEDDED, limits, engines).devices
    assert (host.device, gpu.device) == ("cpu", "gpu")
    assert host.baseline > 20 * MIB
    assert gpu.baseline == 0
    assert (host.repacked, gpu.repacked) == (100, 100)
    assert not planned(EMBEDDED, limits | {"gpu": 1000}, engines).fits


# What gives way


@pytest.mark.slow
def test_what_gives_way_and_in_which_order():
    seen = []
    for limit in range(total(fitted(1 << 40)), 0, -20_000):
        found = fitted(limit)
        if not found.fits:
            break
        state = (found.context, found.draft, found.prefill_chunk)
        if not seen or seen[-1] != state:
            seen.append(state)
    assert seen[0] == (2048, "model", 64)
    contexts = [context for context, _, _ in seen]
    assert contexts == sorted(contexts, reverse=True)
    assert set(contexts) == {2048, 1792, 1536, 1280, 1024, 768, 512, 384, LEAST_CONTEXT}
    at_full = [(draft, chunk) for context, draft, chunk in seen if context == 2048]
    drafts = [draft for draft, _ in at_full]
    assert drafts == sorted(drafts, reverse=True)  # model, then lookup
    assert [chunk for draft, chunk in at_full if draft == "model"] == [64, 32, 16, 8]


def test_the_tree_gives_way_behind_the_chunk_and_before_the_draft_model():
    least = total(fitted(1, drafts=("model",), contexts=(2048,)))
    for more, tree in ((0, 1), (2 * 4096, 3), (6 * 4096, 7)):  # rows of logits
        found = fitted(least + more)
        assert (found.context, found.draft) == (2048, "model")
        assert (found.prefill_chunk, found.max_tree) == (8, tree)
    assert fitted(least - 1).draft == "lookup"


def test_what_is_beyond_a_usual_context_gives_way_first():
    contexts = shorter(4 * USUAL_CONTEXT)
    roles = EMBEDDED.manifest.roles
    target = replace(roles[TARGET], context_length=contexts[0])
    manifest = replace(EMBEDDED.manifest, roles={**roles, TARGET: target})
    bundle = replace(EMBEDDED, manifest=manifest)

    def fitted(limit, contexts):
        return planned(bundle, {"cpu": limit}, contexts=contexts)

    everything = total(fitted(1 << 40, contexts))
    usual = total(fitted(1 << 40, (USUAL_CONTEXT,)))
    found = [fitted(limit, contexts) for limit in range(usual, everything, 4_000_000)]
    assert {each.context for each in found} == {c for c in contexts[1:] if c >= USUAL_CONTEXT}
    assert {(each.draft, each.prefill_chunk) for each in found} == {("model", 64)}
    less = fitted(usual - 1, contexts)
    assert (less.context, less.draft, less.prefill_chunk) == (USUAL_CONTEXT, "model", 32)
    asked = fitted(usual, contexts[:1])
    assert (asked.context, asked.draft) == (4 * USUAL_CONTEXT, "lookup")


def test_what_was_asked_for_does_not_give_way():
    limit = total(fitted(1 << 40, drafts=("lookup",)))
    assert fitted(limit, drafts=("lookup",)).fits
    least = fitted(1, drafts=("model",), contexts=(1024,))
    assert (least.fits, least.draft, least.context) == (False, "model", 1024)
    deployment = replace(
        deploy(EMBEDDED, LoadOptions(device=CPU_ENGINES[0])),
        fits=False, context=least.context, draft=least.draft, devices=least.devices,
    )  # fmt: skip
    with pytest.raises(MemoryLimitError, match=r" needs .*context 1024, draft model"):
        deployment.require_fit()


def test_another_engine_comes_last():
    engines = {TARGET: [(Scale(repacked=10**9),), (Scale(name="frugal:cpu"),)], DRAFT: [(Scale(),)]}
    assert engines_of(fitted(1 << 40, engines=engines)) == {
        TARGET: ("scale:cpu",),
        DRAFT: ("scale:cpu",),
    }
    frugal = fitted(500 * MIB, engines=engines)
    assert engines_of(frugal)[TARGET] == ("frugal:cpu",)
    assert (frugal.context, frugal.draft) == (2048, "model")


def test_of_what_does_not_fit_the_least_is_told():
    engines = {
        TARGET: [(Scale(),), (Scale(name="other:cpu", repacked=10**9),)],
        DRAFT: [(Scale(),)],
    }
    least = fitted(1, engines=engines)
    assert (least.fits, engines_of(least)[TARGET], least.draft) == (False, ("scale:cpu",), "lookup")


def test_prompts_are_read_in_steps_that_every_model_takes():
    short = Scale(name="scale:cpu#8x2176", shapes=Shapes((8,), (2176,)))
    found = fitted(1 << 40, engines={TARGET: [(Scale(),)], DRAFT: [(short,)]})
    assert (found.draft, found.prefill_chunk) == ("model", 8)


def test_every_text_at_once_has_a_cache():
    one, three = (fitted(1 << 40, texts=texts).devices[0] for texts in (1, 3))
    assert (three.kv, three.logits) == (3 * one.kv, one.logits)


def test_caches_side_by_side_are_counted_where_they_lie():
    gpu = Scale(name="scale:gpu", memory="gpu", several_texts=True)
    engines = {TARGET: [(gpu,)], DRAFT: [(Scale(),)]}
    limits = {"cpu": 1 << 40, "gpu": 1 << 40}
    found = {
        texts: {
            each.device: each.kv for each in planned(EMBEDDED, limits, engines, texts=texts).devices
        }
        for texts in (1, 3)
    }
    assert found[3]["gpu"] == 4 * found[1]["gpu"] > 0
    assert found[3]["cpu"] == 3 * found[1]["cpu"] > 0


def test_trees_are_as_large_as_what_is_left():
    exact = total(fitted(1 << 40))
    assert fitted(1 << 40).max_tree == 63
    assert fitted(exact).max_tree == 7
    assert fitted(exact + 8 * 4096).max_tree == 15
    assert fitted(1 << 40, drafts=("none",)).max_tree == 0


def test_contexts_to_fall_back_to():
    assert shorter(2048) == (2048, 1792, 1536, 1280, 1024, 768, 512, 384, 256)
    assert shorter(1000) == (1000, 768, 512, 384, 256)
    assert shorter(100) == (100,)


LIMITS = st.integers(1, 200 * MIB)


@pytest.mark.slow
@given(LIMITS, LIMITS)
def test_more_memory_never_fits_less(one, other):
    less, more = fitted(min(one, other)), fitted(max(one, other))
    assert more.fits >= less.fits
    if less.fits:
        assert total(less) <= min(one, other)
        assert more.context >= less.context
        if more.context == less.context:
            assert (more.draft == "model") >= (less.draft == "model")
            if more.draft == less.draft:
                assert more.prefill_chunk >= less.prefill_chunk
                assert more.max_tree >= less.max_tree or more.prefill_chunk > less.prefill_chunk


ROWS = st.sampled_from(ROW_BUCKETS)


@pytest.mark.parametrize("name", CPU_ENGINES)
@pytest.mark.parametrize("precision", ["int4", "int8", "fp16", "fp32"])
@given(data=st.data())
def test_engines_take_more_for_larger_calls(name, precision, data):
    block = 128 if precision.startswith("int") else 0
    [sizes] = stage_sizes(EMBEDDED, data.draw(st.sampled_from([TARGET, DRAFT])))
    scale = data.draw(st.integers(1, 1000))
    stage = replace(
        sizes, precision=precision, block_size=block, matmul_bytes=sizes.matmul_bytes * scale,
        tied=data.draw(st.booleans()), scale_bytes=data.draw(st.sampled_from([2, 4])),
    )  # fmt: skip
    rows, logit_rows = data.draw(ROWS), data.draw(ROWS)
    capacity = data.draw(st.integers(256, 8192))
    small = engine(name).footprint(stage, CallSizes(rows, capacity, logit_rows))
    large = engine(name).footprint(stage, CallSizes(128, 8192, 128))
    for term in ("weights", "repacked", "mapped", "logits", "workspace", "loading"):
        assert 0 <= getattr(small, term) <= getattr(large, term)
    # More rows of logits keep more of what is given back between calls otherwise.
    assert 0 <= small.shared <= large.shared + large.workspace - small.workspace
    assert small.repacked >= stage.matmul_bytes


@given(st.integers(2, 2048), st.integers(2, 2048))
def test_a_longer_context_takes_more(one, other):
    short, long = (fitted(1 << 40, contexts=(n,)) for n in sorted((one, other)))
    assert total(short) <= total(long)
