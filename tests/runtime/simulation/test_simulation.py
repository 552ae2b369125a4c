"""Tests of simulated machines: their file, their arithmetic and their clock."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from cuts import EMBEDDED, HEAD, cut
from machines import curve, device, figure, machine, model, saved

from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.deployment.placement import borders
from edgespec.runtime.execution.sizes import stage_sizes
from edgespec.runtime.shapes import ROW_BUCKETS
from edgespec.runtime.simulation import Clock, as_stated, clock, laptops, load
from edgespec.system import records

FLAT = {"target": curve(r1=10, r8=12), "draft": curve(r1=2)}


# The laptops that come with the package


def figures(value):
    """All numbers with a source in the JSON of a machine."""
    if not isinstance(value, (dict, list)):
        return []
    if isinstance(value, dict) and "source" in value:
        return [value]
    return [
        each
        for part in (value.values() if isinstance(value, dict) else value)
        for each in figures(part)
    ]


def test_four_classes_of_laptops_come_along():
    assert {"core-i7-8550u", "radeon-780m", "rtx-3050", "snapdragon-x"} <= set(laptops())


@pytest.mark.parametrize("name", laptops())
def test_every_number_of_a_laptop_has_a_source(name):
    stated = load(name)
    found = figures(records.encode(stated))
    assert len(found) >= len(stated.models) + 3 * len(stated.devices) + 1
    for each in found:
        assert re.search(r"estimate|\b20[12]\d\b", each["source"]), each


@pytest.mark.parametrize("name", laptops())
def test_calls_of_a_laptop_never_fall_with_their_rows(name):
    stated = load(name)
    for place in stated.devices:
        for role, each in stated.models.items():
            whole = range(2 * each.layers + 1)
            times = [stated.seconds(place, role, whole, rows) for rows in ROW_BUCKETS]
            assert all(0.0005 < time < 60 for time in times)
            assert all(a <= b for a, b in pairwise(times))


@pytest.mark.parametrize("name", laptops())
def test_a_plan_for_a_laptop_is_of_the_stated_models(name):
    plan = deploy(EMBEDDED, LoadOptions(simulate=name))
    stated = load(name)
    [host] = plan.devices
    read = sum(each.macs() for each in stated.models.values()) * 4.125 / 8
    assert plan.fits
    assert host.repacked == pytest.approx(read, rel=0.1)
    assert host.limit == stated.memory_bytes("cpu")


# Arithmetic


def rates(folder, **more):
    contents = machine(FLAT)
    contents["devices"]["gpu"] = device(gb_per_s=figure(2), tmac_per_s=figure(0.01), **more)
    return load(saved(folder, contents))


def test_a_call_takes_what_is_read_or_what_is_multiplied_and_the_overhead(tmp_path):
    stated = rates(tmp_path)
    weights = 8 * (2 * 512 * 64 * 10 + 3 * 512 * 2048) + 512 * 32000
    whole = range(17)
    assert stated.models["target"].macs() == weights
    reading = weights * 4.125 / 8 / 2e9
    assert stated.seconds("gpu", "target", whole, 1) == pytest.approx(reading + 1e-4)
    multiplying = 64 * weights / 1e10
    assert stated.seconds("gpu", "target", whole, 64) == pytest.approx(multiplying + 1e-4)


@pytest.mark.parametrize("place", ["cpu", "gpu"])
@pytest.mark.parametrize("rows", [1, 64])
def test_parts_take_what_the_whole_takes_and_their_overhead(tmp_path, place, rows):
    stated = rates(tmp_path)
    parts = [range(3), range(3, 16), range(16, 17)]
    together = sum(stated.seconds(place, "target", part, rows) for part in parts)
    whole = stated.seconds(place, "target", range(17), rows)
    assert together == pytest.approx(whole + 2 * 1e-4)


def test_a_curve_is_taken_as_it_is_and_is_linear_between(tmp_path):
    stated = load(saved(tmp_path, machine(FLAT)))
    times = [stated.seconds("cpu", "target", range(17), rows) for rows in (1, 8, 16)]
    assert times == pytest.approx([10e-3, 12e-3, 12e-3 + 8 * 2e-3 / 7])
    assert stated.seconds("cpu", "draft", range(5), 64) == pytest.approx(2e-3)


def test_only_what_is_behind_a_link_is_moved(tmp_path):
    stated = rates(tmp_path, link={"gb_per_s": figure(4), "us": figure(50)})
    assert stated.transfer_seconds("gpu", 8_000_000) == pytest.approx(2.05e-3)
    assert stated.transfer_seconds("cpu", 8_000_000) == 0


# The bundle as the stated models


def test_a_bundle_as_stated_has_their_sizes_and_its_own_stages(tmp_path):
    models = load(saved(tmp_path, machine(FLAT, layers=(28, 4)))).models
    found = as_stated(cut(3, 8, HEAD), models)
    assert [stage.start for stage in found.target.stages] == [0, 9, 28, 56]
    cached = [
        [n for each in stage.cache_groups for n in each.layers] for stage in found.target.stages
    ]
    assert [len(layers) for layers in cached] == [5, 9, 14, 0]
    assert borders(found.target) == (14,)
    for role in (TARGET, DRAFT):
        stated = models[role]
        sizes = stage_sizes(found, role)
        assert sum(each.matmul_bytes for each in sizes) == pytest.approx(
            stated.macs() * 4.125 / 8, rel=0.01
        )
        assert sum(each.layers for each in sizes) == stated.layers
        assert sizes[0].embedding_bytes == pytest.approx(512 * 32000 * 4.125 / 8, rel=0.01)
        assert (sizes[0].hidden, sizes[0].intermediate) == (512, pytest.approx(2048, rel=0.01))
    assert stage_sizes(found, TARGET)[-1].result_bytes == 4 * 32000


def test_models_that_cannot_stand_for_a_bundle(tmp_path):
    contents = machine(FLAT)
    contents["models"]["target"] = model(7)
    with pytest.raises(InputError, match="states 7 layers for the role 'target', which has 8"):
        deploy(EMBEDDED, LoadOptions(simulate=saved(tmp_path, contents)))
    contents = machine(FLAT)
    del contents["models"]["draft"]
    with pytest.raises(InputError, match="no model for the role 'draft'"):
        deploy(EMBEDDED, LoadOptions(simulate=saved(tmp_path, contents, "other")))


# The file


def test_the_example_of_the_documentation_is_a_machine(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")
    example = text.split("```json")[1].split("```")[0]
    (tmp_path / "example.json").write_text(example, encoding="utf-8-sig")  # as on Windows
    stated = load(str(tmp_path / "example.json"))
    assert stated.seconds("cpu", "target", range(17), 8) == pytest.approx(53.68e-3)
    assert stated.transfer_seconds("gpu", 6500) == pytest.approx(21e-6)
    simulated = LoadOptions(simulate=str(tmp_path / "example.json"), draft_device="gpu")
    assert deploy(EMBEDDED, simulated).fits  # it states a model for each of the default bundle's


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(speed=3), "machine.speed: unknown field"),
        (lambda it: it.pop("models"), "machine.models: missing"),
        (lambda it: it["models"].pop("target"), "no 'target'"),
        (lambda it: it["models"]["target"].pop("source"), "models.target.source: missing"),
        (lambda it: it["models"]["target"].update(layers=0), "models.target.layers is 0"),
        (lambda it: it["models"]["target"].update(layers=10**30), f"layers is {10**30}: give 1 to"),
        (lambda it: it["devices"]["cpu"].update(gib=figure(1e308)), "1e+308 among its figures"),
        (lambda it: it["devices"].pop("cpu"), "machine.devices.cpu: missing"),
        (lambda it: it["devices"]["cpu"].pop("gib"), "cpu: missing, or without gib"),
        (lambda it: it["devices"]["cpu"].update(gib=8), "devices.cpu.gib: expected dict, found 8"),
        (lambda it: it["devices"]["cpu"]["gib"].pop("source"), "cpu.gib.source: missing"),
        (lambda it: it["devices"]["cpu"].update(gib=figure(-1)), "-1.0 among its figures"),
        (lambda it: it["devices"]["cpu"]["curves"].pop("draft"), "or a curve of draft"),
        (lambda it: it["devices"]["cpu"]["curves"].update(draft=curve(r1=0.1)), "0.0 among"),
        (lambda it: it["devices"]["cpu"]["curves"].update(draft=curve()), "a cost curve needs"),
        (lambda it: it["shared"][0].update(slowdown=figure(0.5)), "slowdown is 0.5"),
        (lambda it: it["shared"][0].update(devices=["cpu", "npu"]), "'npu' is not one of"),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, change, message):
    contents = machine(FLAT)
    change(contents)
    file = saved(tmp_path, contents)
    with pytest.raises(InputError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_a_machine_that_is_not_there_or_not_json(tmp_path):
    for reference in ("a-laptop", str(tmp_path)):
        with pytest.raises(
            InputError, match=r"there is no machine .*: give a JSON file, or one of "
        ):
            load(reference)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match=r"see docs/simulator.md"):
        load(str(tmp_path / "bad.json"))


def test_what_is_stated_otherwise_is_another_machine(tmp_path):
    contents = machine(FLAT)
    one = load(saved(tmp_path, contents))
    assert load(saved(tmp_path, contents, "copy")) is one
    contents["devices"]["cpu"]["overhead_us"]["value"] = 101
    assert load(saved(tmp_path, contents)).digest != one.digest


# The clock, on a time of its own


@pytest.fixture
def told(monkeypatch):
    """A clock of devices a, b and c, of which the first two share memory, and its time."""

    class Time:
        now = 0.0

    def sleep(seconds):
        Time.now += max(seconds, 1e-4)

    monkeypatch.setattr(clock.time, "sleep", sleep)
    return Clock([(("a", "b"), 2.0)], lambda: Time.now), Time


def test_a_call_alone_takes_what_it_takes(told):
    shared, time = told
    for device_, seconds in (("a", 3.0), ("b", 1.0), ("c", 0.5)):
        begin = time.now
        with shared.call(device_, seconds) as left:
            time.now += seconds / 4  # what the real engine takes
            assert left() == pytest.approx(3 * seconds / 4)
        assert time.now - begin == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(("other", "end"), [("b", 13.0), ("c", 10.0)])
def test_a_call_is_slowed_down_while_another_of_its_group_is_busy(told, other, end):
    """Alone for 4 s; then at half its speed, until the other has done its 3 s at half speed."""
    shared, time = told
    with shared.call("a", 10.0) as left:
        time.now = 4.0
        with shared.call(other, 3.0):
            pass
        assert time.now == pytest.approx(10.0 if other == "b" else 7.0, abs=1e-3)
        assert left() == pytest.approx(end - time.now, abs=1e-3)
    assert time.now == pytest.approx(end, abs=1e-3)


def test_a_call_that_is_over_slows_nobody_down(told):
    """The times do not depend on how often the clock is read."""
    shared, time = told
    with shared.call("a", 1.0) as left_of_a, shared.call("b", 5.0) as left_of_b:
        time.now = 4.0  # both at half speed for 2 s, then b alone
        assert (left_of_a(), left_of_b()) == (0, pytest.approx(2.0))


def test_a_call_that_fails_leaves_the_device_free(told):
    shared, time = told
    with pytest.raises(ValueError, match="refused"), shared.call("a", 10.0):
        raise ValueError("refused")
    with shared.call("a", 1.0):
        pass
    assert time.now == pytest.approx(1.0, abs=1e-3)
