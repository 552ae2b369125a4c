"""The choice of an engine: by what calls cost, measured once and elsewhere."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from shutil import copytree

import pytest
from deployments import Placement, choose, known_order, load_models, stated
from pairs import ENGINES

from edgespec import bundle as bundles
from edgespec.errors import DeviceError
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.profiles import Profile
from edgespec.runtime.deployment import device_names, selection
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.engines import engine, joined_names
from edgespec.runtime.engines.cpu.onnxruntime import OnnxRuntimeCpu
from edgespec.runtime.engines.cpu.openvino import OpenVinoCpu
from edgespec.runtime.execution.model import Model

CPU = Placement("cpu", 1, ((1, 8),))
STEEP, FLAT = {1: 0.010, 8: 0.080, 128: 0.300}, {1: 0.020, 8: 0.030, 128: 0.200}


@dataclass
class Measured:
    """Seconds by rows that each engine pretends to take, and who was measured."""

    seconds: dict[str, dict[int, float]]
    asked: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)


def profile(seconds):
    return Profile.measured(False, {256: {n: [s] for n, s in seconds.items()}})


@pytest.fixture
def measured(monkeypatch, own_cache):
    """Times as told, in a cache folder of its own."""
    fake = Measured({ENGINES[0]: STEEP, ENGINES[1]: FLAT})

    def measure_apart(jobs):
        return [measured_apart(job) for job in jobs]

    def measured_apart(job):
        assert not job.full
        [device] = {joined_names(each.name for each in engines) for engines in job.roles.values()}
        fake.asked.append((device, tuple(job.roles), job.threads))
        found = {}
        for role, engines in job.roles.items():
            found[role] = profile(fake.seconds[device])
            profiles.remember(job.bundle, role, engines, job.threads, found[role])
        return found

    monkeypatch.setattr(selection, "measure_apart", measure_apart)
    return fake


@pytest.fixture(scope="module")
def small(pairs):
    return bundles.load(pairs.pair("llama").path)


def names(candidates):
    return [candidate.device for candidate in candidates]


@pytest.mark.parametrize(
    ("rounds", "best"),
    [
        (((1,),), 0), (((8,),), 1), (((1, 1),), 0), (((1, 8),), 1), (((1, 2),), 0), (((5,),), 1),
        (((1,), (8,)), 1), ((*[(1,)] * 9, (8,)), 0),
    ],
)  # fmt: skip
def test_cpu_is_the_engine_that_does_the_rounds_cheapest(measured, small, rounds, best):
    found = choose(small, {"target": Placement("cpu", 1, rounds)})
    assert names(found["target"]) == [ENGINES[best], ENGINES[1 - best]]


def live(bundle, placement, device, factor, calls):
    """Texts see that calls of the target take `factor` times what was measured."""
    at = bundle, "target", (engine(device),), placement.threads
    known = profiles.recall(*at)
    curve = known.curve()
    for n, seconds in islice(cycle(known.seconds[256].items()), calls):
        curve.observe(n, 256, factor * seconds)
    profiles.remember_lived(*at, (known, curve))


@pytest.mark.parametrize(
    ("device", "factor", "calls", "again"),
    [
        (1, 3.0, 100, True),  # the one in use is slower than it seemed
        (0, 0.3, 100, True),  # the other one, which a user has named, is faster
        (1, 0.3, 100, True),  # as faster as it is, the other one may be the fastest
        (1, 1.5, 100, False),  # still the faster one
        (0, 0.7, 100, False),
        (1, 3.0, 10, False),  # too few to tell
    ],
)
def test_texts_that_contradict_the_choice_have_all_measured_again(
    measured, small, device, factor, calls, again
):
    """The second time it takes more of them."""
    placement = Placement("cpu", 1, ((8,),))
    choose(small, {"target": placement})
    assert known_order(small, "target", placement)
    live(small, placement, ENGINES[device], factor, calls)
    assert bool(known_order(small, "target", placement)) != again
    assert stated(small, {"target": placement}).known != again
    measured.asked.clear()
    choose(small, {"target": placement})
    assert [name for name, _, _ in measured.asked] == list(ENGINES) * again
    live(small, placement, ENGINES[device], factor, calls)
    assert known_order(small, "target", placement) or not again
    if again:
        live(small, placement, ENGINES[device], factor, 4 * calls)
        assert not known_order(small, "target", placement)


def test_texts_within_what_was_measured_contradict_nothing(measured, small, monkeypatch):
    """Of engines that are close to each other."""
    placement = Placement("cpu", 1, ((8,),))
    measured.seconds[ENGINES[0]] = {n: 1.05 * s for n, s in FLAT.items()}
    for spread in (1.0, 1.2):
        for name in ENGINES:
            points = {n: [s / spread, s, s * spread] for n, s in measured.seconds[name].items()}
            found = Profile.measured(False, {256: points})
            profiles.remember(small, "target", (engine(name),), 1, replace(found))
        live(small, placement, ENGINES[1], 1.1, 600)
        assert bool(known_order(small, "target", placement)) == (spread > 1)


def test_a_full_profile_stays_whatever_texts_see(measured, small):
    placement = Placement("cpu", 1, ((8,),))
    choose(small, {"target": placement})
    at = small, "target", (engine(ENGINES[1]),), 1
    profiles.remember(*at, replace(profiles.recall(*at), full=True))
    live(small, placement, ENGINES[1], 3.0, 100)
    assert len(known_order(small, "target", placement)) == 2


@pytest.mark.parametrize(("reading", "best"), [(0.51, 0), (0.53, 1)])
def test_reading_128_rows_of_a_prompt_counts_as_much_as_32_rounds(measured, small, reading, best):
    measured.seconds[ENGINES[0]] = {**STEEP, 128: reading}  # 32 rounds: 0.32 s, and 0.64 s
    assert (
        names(choose(small, {"target": Placement("cpu", 1, ((1,),))})["target"])[0] == ENGINES[best]
    )


@pytest.mark.parametrize("large", [False, True])
def test_that_a_large_bundle_is_measured_is_said(measured, small, monkeypatch, caplog, large):
    monkeypatch.setattr(selection, "_LARGE", 1 if large else 1 << 40)
    with caplog.at_level(logging.WARNING):
        choose(small, {"target": CPU})
    said = [f"measuring target on {name}, once: this load takes longer" for name in ENGINES]
    assert caplog.messages == (said if large else [])


def test_nothing_is_compiled_for_the_choice_and_one_engine_afterwards(measured, small, monkeypatch):
    compiled = []
    load = Model.load

    def watched(bundle, role, engines, threads, **options):
        assert len(measured.asked) == 2  # all measuring is over
        compiled.append((role, joined_names(engine.name for engine in engines)))
        return load(bundle, role, engines, threads, **options)

    monkeypatch.setattr(Model, "load", watched)
    placements = {"target": CPU, "draft": Placement("cpu", 1, ((1,),))}
    choose(small, placements)
    assert compiled == []
    loaded = load_models(small, placements)
    assert compiled == [("target", ENGINES[1]), ("draft", ENGINES[0])]
    assert loaded["target"].model.device == ENGINES[1]
    assert loaded["target"].curve.seconds(8, 256) == pytest.approx(FLAT[8])
    assert loaded["draft"].curve.seconds(1, 256) == pytest.approx(STEEP[1])


def test_a_process_for_each_engine_measures_all_roles_once(measured, small):
    placements = {"target": CPU, "draft": CPU}
    choose(small, placements)
    assert sorted(measured.asked) == [(name, ("target", "draft"), 1) for name in ENGINES]
    measured.asked.clear()
    choose(small, placements)
    choose(small, {"target": Placement("cpu", 1, ((1,),))})  # other work, same curves
    assert measured.asked == []
    choose(small, {"target": CPU, "draft": Placement("cpu", 2, ((1,),))})
    assert sorted(measured.asked) == [(name, ("draft",), 2) for name in ENGINES]


def test_stages_do_not_part_roles_that_run_on_one_engine(measured, pairs):
    """The target has one for each layer, the draft one in all."""
    cut = bundles.load(pairs.pair("cut").path)
    choose(cut, {"target": CPU, "draft": CPU})
    assert sorted(measured.asked) == [(name, ("target", "draft"), 1) for name in ENGINES]


def test_of_a_placed_target_each_choice_is_measured(measured, pairs):
    """Both begin with the same engine."""
    cut, mixed = bundles.load(pairs.pair("cut").path), joined_names(ENGINES)
    measured.seconds[mixed] = STEEP
    found = choose(cut, {"target": replace(CPU, device=(ENGINES[0], "cpu"))})
    assert sorted(names(found["target"])) == [ENGINES[0], mixed]


def test_an_order_is_known_when_all_has_been_measured(measured, small):
    def known():
        order = known_order(small, "target", CPU)
        return stated(small, {"target": CPU}).known, [
            joined_names(e.name for e in each) for each in order
        ]

    found = []
    for device in (None, *ENGINES):
        if device is not None:
            choose(small, {"target": replace(CPU, device=device)}, costs=True)
        found.append(known())
    assert found == [(False, []), (False, []), (True, [ENGINES[1], ENGINES[0]])]


def test_engines_that_cost_the_same_are_both_candidates(measured, small):
    measured.seconds[ENGINES[0]] = FLAT
    assert names(choose(small, {"target": CPU})["target"]) == list(ENGINES)


def test_where_nothing_can_be_kept_every_load_measures(measured, small, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    for _ in range(2):
        measured.asked.clear()
        assert names(choose(small, {"target": CPU})["target"])[0] == ENGINES[1]
        assert len(measured.asked) == 2


def test_a_named_engine_is_measured_where_its_costs_are_asked_for(measured, small):
    named = {"target": Placement(ENGINES[0], 1, ((8,),))}
    assert load_models(small, named)["target"].model.device == ENGINES[0]
    assert measured.asked == []
    for _ in range(2):  # the second time it is remembered
        loaded = load_models(small, named, costs=True)["target"]
        assert loaded.model.device == ENGINES[0]
        assert loaded.curve is loaded.curve
        assert loaded.curve.seconds(8, 256) == pytest.approx(STEEP[8])
    assert measured.asked == [(ENGINES[0], ("target",), 1)]


def test_an_engine_that_is_alone_is_not_compared(measured, small, monkeypatch):
    monkeypatch.setattr(device_names, "CPU_ENGINES", ENGINES[:1])
    assert names(choose(small, {"target": CPU})["target"]) == [ENGINES[0]]
    assert measured.asked == []


def test_an_engine_that_is_not_installed_is_passed_over_with_a_warning(monkeypatch, caplog):
    def missing(name):
        if name == ENGINES[1]:
            raise DeviceError(f"device {name}: not here")
        return engine(name)

    monkeypatch.setattr(device_names, "engine", missing)
    assert [found.name for found in cpu_engines()] == [ENGINES[0]]
    assert len(cpu_engines()) == 1
    assert [record.message for record in caplog.records] == [f"device {ENGINES[1]}: not here"]
    monkeypatch.setattr(device_names, "CPU_ENGINES", ENGINES[1:])
    with pytest.raises(DeviceError, match="no engine for the CPU is installed: device openvino"):
        cpu_engines()


def test_an_engine_that_a_platform_lacks_needs_no_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "edgespec.runtime.engines.cpu.openvino", None)
    assert [found.name for found in cpu_engines()] == [ENGINES[0]]
    assert caplog.records == []


def refuse(self, stage, threads):
    raise DeviceError(f"{self.name} refused it")


def test_an_engine_that_refuses_in_the_end_is_passed_over_with_a_warning(
    measured, small, monkeypatch, caplog
):
    monkeypatch.setattr(OpenVinoCpu, "compile", refuse)
    with caplog.at_level(logging.WARNING):
        loaded = load_models(small, {"target": CPU})["target"]
    assert loaded.model.device == ENGINES[0]
    assert loaded.curve.seconds(8, 256) == pytest.approx(STEEP[8])
    assert [record.message for record in caplog.records] == [f"{ENGINES[1]} refused it"]
    monkeypatch.setattr(OnnxRuntimeCpu, "compile", refuse)
    with pytest.raises(DeviceError, match=r"target: no engine on this machine can run .*; .*"):
        load_models(small, {"target": CPU})
    with pytest.raises(DeviceError, match=f"^{ENGINES[1]} refused it$"):
        load_models(small, {"target": Placement(ENGINES[1], 1, ((1,),))})


@pytest.mark.parametrize(
    "device", ["", "cpu:0", "onnxruntime", "onnxruntime:gpu", "gpu:0", "cuda:one", "webgpu:-1"]
)
def test_devices_that_are_not_known(measured, small, device):
    with pytest.raises(DeviceError, match=f"device '{device}' is not known: use cpu, gpu, onnx"):
        load_models(small, {"target": CPU, "draft": Placement(device, 1, ((1,),))})
    assert measured.asked == []


# With real processes


def test_what_no_engine_takes_is_found_out_once(small, own_cache, monkeypatch, tmp_path, caplog):
    broken = tmp_path / "broken"
    copytree(small.path, broken)
    for stage in (*small.target.stages, *small.target.stages_of_texts):
        (broken / stage.graph).write_bytes(b"no graph at all")
    files = bundles.describe_files(broken)
    bundles.save_manifest(broken, replace(small.manifest, files=files))
    bundle = bundles.load(broken)
    refusal = r"target: no engine .* model: .*ONNX Runtime .* refused it .*; .*OpenVINO .* refused"
    with pytest.raises(DeviceError, match=refusal):
        load_models(bundle, {"target": CPU, "draft": CPU})
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    for name in ENGINES:  # the draft, which came behind it, has been measured
        assert profiles.recall(bundle, "draft", (engine(name),), 1).refusal is None
    monkeypatch.setattr(selection, "measure_apart", None)
    with pytest.raises(DeviceError, match=refusal):
        load_models(bundle, {"target": CPU})


@pytest.mark.slow
def test_a_choice_and_a_curve_from_beginning_to_end(small, own_cache, monkeypatch):
    loaded = load_models(small, {"target": CPU})["target"]
    assert loaded.model.device in ENGINES
    assert 0 < loaded.curve.seconds(1, 256) <= loaded.curve.seconds(8, 256) < 10
    alone = load_models(small, {"draft": Placement(ENGINES[0], 1, ((1,),))}, costs=True)["draft"]
    assert 0 < alone.curve.seconds(1, 256) < 10
    monkeypatch.setattr(selection, "measure_apart", None)
    assert load_models(small, {"target": CPU})["target"].model.device == loaded.model.device
