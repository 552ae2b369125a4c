"""The pairs of rows and capacity that NPUs are compiled for, where the user gave none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from commandline import fails
from cuts import EMBEDDED, cut
from npus import COMPILER, NAME, NpuToPlan, with_npu

from edgespec.bundle import (
    HALF_BIAS_OFF,
    NPU,
    TARGET,
    Compiled,
    Variant,
)
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.deployment.deployment import deploy, target_choices
from edgespec.runtime.deployment.fixed_shapes import LONGEST_UNASKED, ahead_of_time, chosen_shapes
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.engines import CPU_ENGINES, NPU_ENGINES, engine
from edgespec.runtime.engines.npu.shared import npu_footprint
from edgespec.runtime.execution.sizes import stage_sizes
from edgespec.runtime.execution.stage_files import stage_file
from edgespec.runtime.shapes import Shape, Shapes

OPTIONS = LoadOptions(device=NAME, draft="lookup", threads=1)
ENOUGH = 1 << 40


@pytest.fixture(autouse=True)
def npu(monkeypatch):
    with_npu(monkeypatch)


def compiled(*shapes, bundle=EMBEDDED, stages=(0,), **facts):
    """A bundle for NPUs, that has these shapes of some stages ready."""
    role = bundle.target
    usual = {"device": NAME, "compiler": COMPILER, "graph": "compiled.onnx", "data": ()}
    made = tuple(
        Compiled(
            **usual | {"source": _hashes(bundle, role.stages[stage])} | facts,
            stage=stage, rows=rows, capacity=capacity,
        )
        for stage in stages
        for rows, capacity in shapes
    )  # fmt: skip
    variant = Variant(TARGET, NPU, role.precision, HALF_BIAS_OFF, role.stages, made, {})
    return replace(bundle, manifest=replace(bundle.manifest, variants=(variant,)))


def _hashes(bundle, stage):
    return tuple(bundle.manifest.files[name].sha256 for name in (stage.graph, stage.data))


PAIR = compiled()


def planned(bundle=PAIR, **options):
    return deploy(bundle, replace(OPTIONS, **{"memory": ENOUGH, **options}))


def total(plan):
    [demand] = plan.devices
    return demand.total


def named(plan):
    [name] = plan.engines[TARGET]
    return name.removeprefix(f"{NAME}#")


def made_for(context):
    """The embedded pair as if its target had been made for so many tokens."""
    roles = PAIR.manifest.roles
    target = replace(PAIR.target, context_length=context)
    return replace(PAIR, manifest=replace(PAIR.manifest, roles={**roles, TARGET: target}))


# The choice


@pytest.mark.parametrize(
    ("rows", "capacity", "ready", "wanted"),
    [
        (128, 2048, "", "8/32x2048"),
        (16, 2048, "", "8/32x2048"),
        (8, 2048, "", "8x2048"),
        (4, 300, "", "8x320"),
        (128, 20, "", "8/32x32"),
        (128, 300, "8/32x256 8/32x1024 8/32x4096", "8/32x1024"),
        (128, 1024, "8x1024", "8x1024"),
        (8, 1024, "8/32x1024", "8x1024"),
        (128, 1024, "8/16/32/64x1024", "8/64x1024"),
        (128, 1024, "4/16x1024", "4/16x1024"),
        (128, 1025, "8/32x1024", "8/32x1056"),
    ],
)
def test_shapes_for_calls(rows, capacity, ready, wanted):
    known = [shape for each in ready.split() for shape in Shapes.parse(each).all]
    for listed in (known, known[::-1]):
        found = chosen_shapes(rows, capacity, listed)
        assert str(found) == wanted
        assert Shapes.parse(wanted) == found


def test_what_is_compiled_ahead_is_what_would_be_chosen():
    for context in (100, LONGEST_UNASKED, 40960):
        shapes = ahead_of_time(context)
        assert str(shapes) == named(planned(made_for(context)))
    assert shapes == Shapes((8, 32), (LONGEST_UNASKED,))


# By the context


@pytest.mark.parametrize(
    ("made", "asked", "capacity", "context"),
    [(2048, None, 2048, 2048), (2048, 300, 320, 300), (64, None, 64, 64), (50, None, 64, 50),
     (40960, None, 2048, 2048), (40960, 8192, 8192, 8192)],
)  # fmt: skip
def test_the_capacity_is_the_contexts(made, asked, capacity, context):
    plan = planned(made_for(made), context=asked)
    assert named(plan) == f"8/32x{capacity}"
    assert (plan.context, plan.max_tree, plan.prefill_chunk) == (context, 31, 32)


def test_a_context_that_nobody_asked_for_ends_with_a_word():
    expected = ("a context of 2048 tokens, since the device has fixed shapes",)
    assert planned(made_for(40960)).warnings == expected
    assert planned(made_for(40960), context=8192).warnings == ()


def test_memory_for_caches_is_that_of_the_capacity():
    row = 4 * 2 * 8 * 2 * 64
    [demand] = planned(context=300).devices
    assert demand.kv == 320 * row
    [demand] = planned(compiled((8, 1024)), context=300).devices
    assert demand.kv == 1024 * row


def test_memory_for_caches_is_that_of_the_variants_precision():
    bundle = compiled((8, 1024))
    roles = bundle.manifest.roles
    halved = replace(
        bundle.target.precision, weights="fp16", lm_head="fp16", kv="fp16", block_size=0
    )
    stages = [
        replace(stage, inputs=tuple(replace(each, dtype="float16") for each in stage.inputs))
        for stage in bundle.target.stages
    ]
    target = replace(bundle.target, precision=halved, stages=tuple(stages))
    manifest = replace(bundle.manifest, roles={**roles, TARGET: target})
    [whole], [half] = (
        planned(replace(bundle, manifest=each)).devices
        for each in (manifest, replace(manifest, variants=()))
    )
    assert (whole.kv, half.kv) == (1024 * 4 * 2 * 8 * 2 * 64, 2048 * 2 * 2 * 8 * 2 * 64)


def test_quantized_weights_alone_are_refused_before_anything_is_loaded():
    with pytest.raises(DeviceError) as refused:
        planned(EMBEDDED)
    assert str(refused.value) == (
        f"{NAME} cannot run the target of {EMBEDDED.path}: it has int8 weights and no variant for "
        "the npu: export it again with --npu-precision fp16"
    )


# By memory


def test_the_second_pair_takes_weights_of_its_own():
    one, two = planned(device=f"{NAME}#8x2048"), planned(device=f"{NAME}#8/32x2048")
    [stage] = stage_sizes(EMBEDDED, TARGET)
    weights = npu_footprint(stage, Shapes((8,), (2048,))).weights
    assert one.devices[0].repacked == 0
    assert two.devices[0].repacked == one.devices[0].weights == weights
    assert [each.shape for each in two.shapes] == [(8, 2048), (32, 2048)]
    assert two.shapes[:1] == one.shapes
    small, large = (each.bytes for each in two.shapes)
    assert weights < small < large
    assert total(two) - total(one) >= large


def test_the_second_pair_gives_way_first():
    both = planned(draft="auto")
    assert (named(both), both.draft, both.max_tree) == ("8/32x2048", "model", 31)
    limits = range(total(both), 0, -(1 << 20))
    plans = (planned(draft="auto", memory=limit) for limit in limits)
    scarce = next(plan for plan in plans if named(plan) != named(both))
    assert (scarce.fits, named(scarce), scarce.draft) == (True, "8x2048", "model")
    assert (scarce.context, scarce.max_tree, scarce.prefill_chunk) == (2048, 7, 8)


def test_then_the_context_does():
    one = planned(device=f"{NAME}#8x2048")
    short = planned(memory=total(one) - (1 << 20))
    assert short.fits
    assert short.context < 2048
    assert named(short).endswith(f"x{short.context}")
    assert "instead of 2048 tokens, to fit" in short.warnings[0]
    assert not planned(memory=total(one) - (1 << 20), context=2048).fits


# By what is compiled


def test_what_is_compiled_is_used():
    bundle = compiled((8, 1024), (32, 1024), (8, 512))
    for asked, wanted in ((None, "8/32x1024"), (600, "8/32x1024"), (512, "8x512")):
        plan = planned(bundle, context=asked)
        assert named(plan) == wanted
        assert plan.context == (asked or 1024)
        assert all(each.ready for each in plan.shapes)
    longer = planned(bundle, context=1100)
    assert named(longer) == "8/32x1120"
    assert not any(each.ready for each in longer.shapes)


@pytest.mark.parametrize(
    "facts", [{"device": "qnn:x-elite"}, {"compiler": "a compiler 0.9"}, {"source": ("", "")}]
)
def test_what_is_compiled_for_something_else_is_not(facts):
    assert named(planned(compiled((8, 1024), **facts))) == "8/32x2048"


def test_what_is_compiled_and_does_not_fit_is_not():
    bundle = compiled((8, 2048), (32, 2048))
    least = total(planned(bundle, device=f"{NAME}#8x2048", context=256))
    plan = planned(bundle, context=256, memory=least - (1 << 20))
    assert (plan.fits, named(plan)) == (True, "8x256")
    assert [each.ready for each in plan.shapes] == [False]


def test_it_must_be_compiled_of_every_stage_there():
    whole, half = cut(8), {"device": LoadOptions.device, "place": f"0-3={NAME},4-=openvino:cpu"}
    for stages, here, there in (((0, 1), 1024, 1024), ((0,), 2048, 1024)):
        bundle = compiled((8, 1024), bundle=whole, stages=stages)
        assert planned(bundle).shapes[0].shape.capacity == here
        assert planned(bundle, **half).shapes[0].shape.capacity == there


def test_what_is_compiled_of_a_stage_is_of_no_other():
    bundle = compiled((8, 1024), bundle=cut(8), stages=(0, 1))
    for number in (0, 1):
        assert len(stage_file(bundle, TARGET, number, NpuToPlan()).compiled) == 1


# By the user


def test_a_list_of_the_users_wins():
    bundle = compiled((8, 1024), (32, 1024))
    for shapes in ("8/32x512", "4x64", "8/32x1024"):
        plan = planned(bundle, device=f"{NAME}#{shapes}")
        assert named(plan) == shapes
        assert plan.context == Shapes.parse(shapes).capacities[-1]
        assert all(each.ready == (shapes == "8/32x1024") for each in plan.shapes)


@pytest.mark.parametrize("name", NPU_ENGINES)
@pytest.mark.parametrize("shapes", ["8/16/32x1024", "8/32x512/1024"])
def test_more_than_two_pairs_are_refused(name, shapes):
    count = len(Shapes.parse(shapes).all)
    with pytest.raises(InputError) as refused:
        engine(f"{name}#{shapes}")
    assert str(refused.value) == (
        f"device {name}#{shapes}: {count} pairs of rows and capacity, each with its own copy "
        f"of the weights: give at most 2, as {name}#8/32x1024"
    )


def test_engines_beside_an_npu_stay_open():
    """Which of the CPU's engines is faster is measured, whatever the NPU's shapes are."""
    options = replace(OPTIONS, device=LoadOptions.device, place=f"0-3={NAME},4-=cpu")
    bundle = compiled(bundle=cut(8))
    found = deploy(bundle, options).roles[TARGET].candidates
    assert {each.names[0] for each in found} == {f"{NAME}#8/32x2048"}
    assert {each.names[1] for each in found} == {*CPU_ENGINES}
    [whole] = planned().roles[TARGET].candidates
    assert whole.names == (f"{NAME}#8/32x2048",)


def test_they_are_measured_with_the_shapes_they_run_with():
    [[found]] = target_choices(PAIR, OPTIONS)
    assert found.name == f"{NAME}#8/32x2048"
    options = replace(OPTIONS, device=LoadOptions.device, place=f"0-3={NAME},4-=cpu")
    choices = target_choices(cut(8), options)
    assert {each.name for each, _ in choices} == {found.name}
    assert {each.name for _, each in choices} == {*CPU_ENGINES}


# What is shown


def test_plan_shows_the_pairs_and_what_each_takes(cli, monkeypatch):
    monkeypatch.setattr("edgespec.bundle.load", lambda path: PAIR)
    words = ["plan", "--device", NAME, "--draft", "lookup", "--context", "1000"]
    facts = json.loads(cli(*words, "--json").out)
    [stage] = stage_sizes(EMBEDDED, TARGET)
    for each, rows in zip(facts["shapes"], (8, 32), strict=True):
        need = npu_footprint(stage, Shapes((rows,), (1024,)))
        taken = (need.weights + need.logits + need.workspace) / (1 << 20)
        assert each == {
            "role": "target", "device": NAME, "rows": rows, "capacity": 1024,
            "taken_mb": round(taken, 1), "compiled": False,
        }  # fmt: skip
    shown = cli(*words).out
    small, large = (each["taken_mb"] for each in facts["shapes"])
    assert f"target on {NAME}, 8x1024: {small} MiB, compiled when it is loaded" in shown
    assert f"target on {NAME}, 32x1024: {large} MiB, " in shown
    assert json.loads(cli("plan", "--draft", "lookup", "--json").out)["shapes"] == []


def test_a_context_beyond_the_users_shapes_is_refused_before_anything_is_loaded(cli):
    words = ["plan", "--device", f"{NAME}#8x256", "--context", "300"]
    fails(cli(*words), "context is 300: the fixed shapes of the device allow 256 tokens")


def test_shapes_without_room_for_a_text_are_refused():
    for options in (
        {"device": f"{NAME}#1x1"},
        {"draft": "model", "draft_device": f"{CPU_ENGINES[0]}#8x64"},  # its drafts take 128 rows
    ):
        with pytest.raises(InputError, match=r"context is 2: .* allow [01] tokens"):
            planned(**options)


def test_an_npu_without_shapes_knows_them_all_the_same():
    npu = NpuToPlan()
    assert (npu.name, npu.open_shapes, str(npu.shapes)) == (NAME, True, "8/32x1024")
    given = NpuToPlan(npu.shapes)
    assert (given.name, given.open_shapes) == (f"{NAME}#8/32x1024", False)
    assert npu.fixed(Shapes((8,), (64,))).name == f"{NAME}#8x64"
    assert npu.name == NAME
    assert Shape(8, 64) in npu.fixed(Shapes((8,), (64,))).shapes.all
