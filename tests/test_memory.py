"""What memory a bundle takes, and what gives way where there is too little of it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace

import pytest
from commandline import FAST, PLACE, PROMPT, fails
from hypothesis import given
from hypothesis import strategies as st
from pairs import LONG_PROMPT

from edgespec import LLM, bundle
from edgespec.bundle import DRAFT, TARGET, W8A8
from edgespec.errors import InputError, MemoryLimitError
from edgespec.models.embedded import BUNDLE
from edgespec.options import LoadOptions, parse_size
from edgespec.runtime.buckets import ANY_SHAPES, ROW_BUCKETS, Shapes
from edgespec.runtime.engines import CPU_ENGINES, CallSizes, Footprint, engine
from edgespec.runtime.engines.host import cgroup_free
from edgespec.runtime.memory import (
    LEAST_CONTEXT,
    Wishes,
    cache_rows,
    context_choices,
    plan,
)
from edgespec.runtime.plans import MIB
from edgespec.runtime.sizes import stage_sizes

EMBEDDED = bundle.load(BUNDLE)
TERMS = ("baseline", "weights", "repacked", "kv", "logits", "workspace")


@dataclass(frozen=True)
class Scale:
    """An engine whose needs are round numbers."""

    name: str = "scale:cpu"
    memory: str = "cpu"
    repacked: int = 100
    library_bytes: int = 7
    shapes: Shapes = ANY_SHAPES
    variant: str | None = None
    integer_products: bool = False

    def available_bytes(self):
        return 1 << 40

    def footprint(self, stage, calls):
        return Footprint(
            weights=10, repacked=self.repacked, mapped=1000, logits=stage.vocab * calls.logit_rows,
            workspace=calls.rows * calls.capacity, shared=0, loading=5,
        )  # fmt: skip


def wishes(**changes):
    both = {TARGET: [(Scale(),)], DRAFT: [(Scale(),)]}
    usual = Wishes(context_choices(2048), ("model", "lookup"), both, tree=7, width=4)
    return replace(usual, **changes)


def fitted(limit, **changes):
    return plan(EMBEDDED, wishes(**changes), {"cpu": limit})


def total(found):
    return sum(demand.total for demand in found.devices)


# Terms


def test_every_term_of_a_plan():
    """The embedded pair: 8 layers of 2 x 64, and 2 layers of 2 x 32; 4096 tokens."""
    (demand,) = fitted(1 << 40).devices
    assert (demand.weights, demand.repacked, demand.mapped) == (20, 200, 2000)
    # The draft's cache has room for its levels behind the text.
    assert (cache_rows(TARGET, 2048), cache_rows(DRAFT, 2048)) == (2048, 2560)
    assert demand.kv == 4 * (2 * 8 * 2 * 64 * 2048 + 2 * 2 * 2 * 32 * 2560)
    assert demand.logits == 4096 * (8 + 4)  # the pending token and 7 nodes; a level of 4
    inputs = 2 * (4 * 128 * 2176 + 2 * 8 * 4096) + 4 * 2 * 2176 * (64 + 32)
    assert demand.workspace == 2 * 128 * 2048 + inputs
    assert demand.baseline > 20 * MIB
    assert demand.total == sum(getattr(demand, term) for term in TERMS)


def test_a_library_counts_once_and_each_library_counts():
    one = fitted(1 << 40).devices[0].baseline
    other = {TARGET: [(Scale(),)], DRAFT: [(Scale(name="other:cpu", library_bytes=9),)]}
    assert fitted(1 << 40, engines=other).devices[0].baseline == one + 9


def test_loading_counts_where_nothing_later_takes_as_much():
    class Heavy(Scale):
        def footprint(self, stage, calls):
            return replace(super().footprint(stage, calls), loading=10**9)

    (demand,) = fitted(1 << 40, engines={TARGET: [(Heavy(),)], DRAFT: [(Scale(),)]}).devices
    assert demand.kv + demand.logits + demand.workspace == 10**9


def test_a_device_with_memory_of_its_own_is_a_line_of_its_own():
    engines = {TARGET: [(Scale(memory="gpu", name="scale:gpu"),)], DRAFT: [(Scale(),)]}
    limits = {"cpu": 1 << 40, "gpu": 1 << 40}
    host, gpu = plan(EMBEDDED, wishes(engines=engines), limits).devices
    assert (host.device, gpu.device) == ("cpu", "gpu")
    assert host.baseline > 20 * MIB
    assert gpu.baseline == 0
    assert (host.repacked, gpu.repacked) == (100, 100)
    assert not plan(EMBEDDED, wishes(engines=engines), limits | {"gpu": 1000}).fits


def test_sizes_of_a_stage_come_from_the_manifest():
    [target], [draft] = (stage_sizes(EMBEDDED, role) for role in (TARGET, DRAFT))
    assert (target.hidden, target.intermediate, target.vocab) == (256, 768, 4096)
    assert target.tied
    assert target.matmul_bytes == EMBEDDED.manifest.files["target.data"].size
    assert target.result_bytes == 4 * 4096
    assert draft.result_bytes == 128 * (8 + 4) + 4


def test_an_output_projection_of_its_own_is_not_packed_with_the_embedding():
    """The same model untied has an embedding's parameters more, and a trace of its export."""
    role = EMBEDDED.target
    errors = {**role.quantization_error, "lm_head.weight": 0.01}
    parameters = role.parameters + 4096 * 256
    untied = replace(role, parameters=parameters, quantization_error=errors)
    roles = {**EMBEDDED.manifest.roles, TARGET: untied}
    manifest = replace(EMBEDDED.manifest, roles=roles)
    [sizes] = stage_sizes(replace(EMBEDDED, manifest=manifest), TARGET)
    assert not sizes.tied
    assert sizes.intermediate == pytest.approx(768, abs=1)
    assert 0 < sizes.embedding_bytes < sizes.matmul_bytes
    assert sizes.matmul_bytes + sizes.embedding_bytes == role_bytes()


def test_a_tied_matrix_has_two_layouts_for_integer_products():
    """The embedding's rows stay in the file, and the products' copy is packed."""
    role, entry = EMBEDDED.target, EMBEDDED.manifest.files["target.data"]
    head = replace(role, precision=replace(role.precision, weights=W8A8, lm_head=W8A8))
    size = role.parameters + 4096 * 256
    manifest = replace(
        EMBEDDED.manifest,
        roles={TARGET: head},
        files={**EMBEDDED.manifest.files, "target.data": replace(entry, size=size)},
    )
    [sizes] = stage_sizes(replace(EMBEDDED, manifest=manifest), TARGET)
    assert not sizes.tied
    assert sizes.intermediate == 768
    assert (sizes.embedding_bytes, sizes.matmul_bytes) == (4096 * 256, role.parameters)


def role_bytes():
    return EMBEDDED.manifest.files["target.data"].size


# What gives way


def test_what_gives_way_and_in_which_order():
    seen = []
    for limit in range(total(fitted(1 << 40)), 0, -20_000):
        found = fitted(limit)
        if not found.fits:
            break
        state = (found.context, found.draft, found.prefill_chunk)
        if not seen or seen[-1] != state:
            seen.append(state)
    assert seen[0] == (2048, "model", 128)
    contexts = [context for context, _, _ in seen]
    assert contexts == sorted(contexts, reverse=True)
    assert set(contexts) == {2048, 1792, 1536, 1280, 1024, 768, 512, 384, LEAST_CONTEXT}
    at_full = [(draft, chunk) for context, draft, chunk in seen if context == 2048]
    drafts = [draft for draft, _ in at_full]
    assert drafts == sorted(drafts, reverse=True)  # model, then lookup
    assert [chunk for draft, chunk in at_full if draft == "model"] == [128, 64, 32, 16, 8]


def test_what_was_asked_for_does_not_give_way():
    limit = total(fitted(1 << 40, drafts=("lookup",)))
    assert fitted(limit, drafts=("lookup",)).fits
    least = fitted(1, drafts=("model",), contexts=(1024,))
    assert (least.fits, least.draft, least.context) == (False, "model", 1024)
    with pytest.raises(MemoryLimitError, match="context 1024, draft model"):
        least.require_fit("it")


def test_another_engine_comes_last():
    engines = {TARGET: [(Scale(repacked=10**9),), (Scale(name="frugal:cpu"),)], DRAFT: [(Scale(),)]}
    assert fitted(1 << 40, engines=engines).engines == {
        TARGET: ("scale:cpu",),
        DRAFT: ("scale:cpu",),
    }
    frugal = fitted(500 * MIB, engines=engines)
    assert frugal.engines[TARGET] == ("frugal:cpu",)
    assert (frugal.context, frugal.draft) == (2048, "model")


def test_trees_are_as_large_as_what_is_left():
    exact = total(fitted(1 << 40))
    assert fitted(1 << 40).max_tree == ROW_BUCKETS[-1] - 1
    assert fitted(exact).max_tree == 7
    assert fitted(exact + 8 * 4096).max_tree == 15
    assert fitted(1 << 40, drafts=("none",)).max_tree == 0


def test_contexts_to_fall_back_to():
    assert context_choices(2048) == (2048, 1792, 1536, 1280, 1024, 768, 512, 384, 256)
    assert context_choices(1000) == (1000, 768, 512, 384, 256)
    assert context_choices(100) == (100,)


LIMITS = st.integers(1, 200 * MIB)


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


# Sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30), ("900MB", 900 * 10**6), ("1.5G", 3 << 29), ("1 TB", 10**12),
        ("64k", 64 << 10), ("10mib", 10 << 20),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size
    assert LoadOptions(memory=text).memory == LoadOptions(memory=size).memory == size


@pytest.mark.parametrize(
    "text", ["", "2", "GiB", "-1GB", "2 GiB free", "1e3MB", "0GB", "∞GB", "2PB"]
)
def test_sizes_that_are_refused(text):
    with pytest.raises(InputError, match="size"):
        parse_size(text)


@pytest.mark.parametrize("size", [0, -5, 1.5, True])
def test_memory_is_a_whole_number_of_bytes(size):
    with pytest.raises(InputError, match="memory is"):
        LoadOptions(memory=size)


# The command line


def test_a_plan_as_json(cli):
    result = cli("plan", "--json", *FAST[:2], "--memory", "2GiB", "--context", 512)
    found = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert (found["fits"], found["context"], found["draft"]) == (True, 512, "model")
    assert found["max_tree"] == 127
    assert found["engines"] == {TARGET: "onnxruntime:cpu", DRAFT: "onnxruntime:cpu"}
    (device,) = found["devices"]
    assert device["device"] == "cpu"
    assert device["limit_mb"] == 2048
    assert device["total_mb"] == pytest.approx(sum(device[f"{term}_mb"] for term in TERMS))
    assert device.keys() == {"device", "total_mb", "limit_mb", "mapped_mb"} | {
        f"{term}_mb" for term in TERMS
    }


def test_a_plan_as_a_table(cli):
    result = cli("plan", "--draft", "none", "--memory", "1GB")
    assert result.code == 0
    for part in ("KV caches", "16.0", "953.7", "context 2,048, draft none"):
        assert part in result.out


def test_the_limit_is_what_is_free_unless_one_is_given(cli):
    (device,) = json.loads(cli("plan", "--json", *FAST[:2]).out)["devices"]
    free = engine("onnxruntime:cpu").available_bytes()
    assert device["limit_mb"] == pytest.approx(free / MIB, rel=0.2)


def test_a_container_has_what_its_group_may_use(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\nactive_file 100\n")
    assert cgroup_free(tmp_path, "memory.max", "memory.current") == 400
    (tmp_path / "memory.max").write_text("max\n")
    with pytest.raises(ValueError, match="max"):
        cgroup_free(tmp_path, "memory.max", "memory.current")
    with pytest.raises(OSError, match=r"memory\.stat"):
        cgroup_free(tmp_path / "none", "memory.max", "memory.current")


@pytest.mark.parametrize("command", [["plan"], ["run", PROMPT]])
def test_what_does_not_fit_is_refused_with_the_numbers(cli, command):
    result = cli(*command, *FAST[:2], "--memory", "30MiB")
    fails(result, "needs", "30 may be used", "repacked", "--memory", code=3)


def test_a_plan_that_does_not_fit_is_still_json(cli):
    result = cli("plan", "--json", *FAST[:2], "--memory", "30MiB")
    assert result.code == 3
    assert json.loads(result.out)["fits"] is False
    assert "30 may be used" in result.err


def test_bad_sizes_are_bad_input(cli):
    fails(cli("plan", "--memory", "2"), "'2'", "2GiB")
    fails(cli("run", PROMPT, "--memory", "lots"), "'lots'", "2GiB")
    fails(cli("plan", "--context", 4096), "context is 4096")


# Texts under a limit


def test_a_text_under_a_limit_is_the_same(pairs, caplog):
    """In fp32, since quantized rows depend a little on the rows beside them."""
    path = pairs.pair("llama").path
    free = LLM(path, **PLACE)
    limit = total(LLM(path, **PLACE, draft="lookup").plan) - MIB
    with caplog.at_level(logging.WARNING, "edgespec"):
        tight = LLM(path, **PLACE, memory=limit)
    assert (free.plan.draft, free.plan.prefill_chunk) == ("model", 128)
    assert tight.plan.draft == "lookup"
    assert tight.plan.prefill_chunk < 128
    assert total(tight.plan) <= limit < total(free.plan)
    (record,) = caplog.records
    assert record.getMessage().startswith("draft lookup instead of model")
    wanted = free.generate(LONG_PROMPT, max_new_tokens=32)
    assert wanted.prompt_tokens > 128
    assert tight.generate(LONG_PROMPT, max_new_tokens=32).tokens == wanted.tokens


def test_run_under_a_limit_gives_the_same_text(cli):
    words = ["run", PROMPT, "-n", 8, *FAST]
    wanted, found = cli(*words), cli(*words, "--memory", "60MiB")
    assert found.code == 0
    assert found.out == wanted.out
    assert "draft lookup instead of model" in found.err


def test_trees_stay_within_the_plan(caplog):
    """As large as fits, whatever a text asks for."""
    llm = LLM(**PLACE, draft="model", context=512)
    tight = LLM(**PLACE, draft="model", context=512, memory=total(llm.plan) + MIB)
    assert 7 <= tight.plan.max_tree < 127
    with caplog.at_level(logging.WARNING, "edgespec"):
        result = tight.generate(PROMPT, max_new_tokens=8, num_assistant_tokens=127)
    assert f"trees of {tight.plan.max_tree} nodes" in caplog.text
    assert result.tokens == llm.generate(PROMPT, max_new_tokens=8).tokens


def test_a_context_asked_for_is_not_shortened():
    with pytest.raises(MemoryLimitError, match="context 2048") as caught:
        LLM(**PLACE, context=2048, draft="model", memory="60MiB")
    assert caught.value.exit_code == 3
    assert LLM(**PLACE, memory="60MiB").context_length <= 2048
