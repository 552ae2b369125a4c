"""`edgespec plan --compare`: which ways there are, whether they fit, and what they promise."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest
from commandline import fails
from cuts import EMBEDDED, Gpu, with_gpu, without_gpu

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.runtime.costs import contention, profiles
from edgespec.runtime.costs.profiles import OverlapCost, Profile
from edgespec.runtime.deployment import comparing, device_names, selection
from edgespec.runtime.deployment.comparing import ACCEPTANCES, Strategy, best
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.deployment.throughput import Pair
from edgespec.runtime.engines import engine

# Seconds of calls by their rows.
CPU = {TARGET: {1: 0.020, 4: 0.022, 8: 0.024, 32: 0.048}, DRAFT: {1: 0.006, 32: 0.009}}
GPU = {TARGET: {1: 0.018, 32: 0.019}, DRAFT: {1: 0.002, 32: 0.003}}
ENGINE = "onnxruntime:cpu"
SLOWDOWN = 1.05
SHARES = ("0.6", "0.75", "0.9")
PAIR = ["cpu", "gpu"]


@pytest.fixture
def laptop(own_cache, monkeypatch):
    """A machine with a CPU and a GPU, of which nothing has been measured."""
    monkeypatch.setattr(device_names, "cpu_engines", lambda: [engine(ENGINE)])
    monkeypatch.setattr(Gpu, "available_bytes", lambda _: 1 << 29)
    with_gpu(monkeypatch, Gpu())


def profile(seconds):
    return Profile.measured(False, {256: {n: [each] for n, each in seconds.items()}})


def remember(bundle):
    """As if everything had been measured there, exactly as it is stated."""
    cpu, gpu = engine(ENGINE), Gpu()
    for device, curves in ((cpu, CPU), (gpu, GPU)):
        for role in bundle.manifest.roles:
            profiles.remember(bundle, role, (device,), 1, profile(curves[role]))
    for both in ((cpu, gpu), (gpu, cpu)):
        profiles.remember_overlap_cost(bundle, both, 1, OverlapCost(SLOWDOWN))


@pytest.fixture
def compared(cli, laptop):
    """The ways of the embedded pair on that machine, with nothing to measure."""

    remember(EMBEDDED)

    def run(*words):
        result = cli("plan", "--compare", "--json", *run.words, *words)
        assert (result.code, result.err) == (0, "")
        return json.loads(result.out)["ways"]

    run.words = ["--threads", 1, "--memory", "cpu=8GiB,gpu=512MiB"]
    return run


def called(ways):
    return [(way["way"], way["target"], way["draft"]) for way in ways]


def expected(function):
    return {share: pytest.approx(function(float(share)), abs=1e-3) for share in SHARES}


def test_each_way_promises_what_its_calls_cost(compared):
    plain, offload, serial, other, overlap = ways = compared()
    assert called(ways) == [
        ("plain", "cpu", None), ("offload", "0-=gpu", None), ("serial", "cpu", "cpu"),
        ("serial", "cpu", "gpu"), ("overlap", "cpu", "gpu"),
    ]  # fmt: skip
    assert plain["tokens_per_second"] == dict.fromkeys(SHARES, 50)
    assert offload["tokens_per_second"] == dict.fromkeys(SHARES, pytest.approx(1e3 / 18, abs=1e-3))
    passes = profile(CPU[TARGET]).curve(engine(ENGINE).shapes)
    near, far = (Pair(lambda n: passes.seconds(n, 256), draft, 31) for draft in (0.006, 0.002))
    assert serial["tokens_per_second"] == expected(near.serial)
    assert other["tokens_per_second"] == expected(far.serial)
    assert overlap["tokens_per_second"] == expected(lambda share: far.overlap(share, SLOWDOWN))
    assert [way["slowdown"] for way in ways] == [None, None, None, None, SLOWDOWN]
    assert [way["best"] for way in ways] == [False, False, False, False, True]
    assert [way["engines"] for way in (plain, other)] == [
        {TARGET: ENGINE},
        {TARGET: ENGINE, DRAFT: Gpu.name},
    ]


def test_drafts_are_no_longer_than_memory_has_room_for(compared, monkeypatch):
    def short(bundle, options):
        return replace(deploy(bundle, options), max_tree=3)

    monkeypatch.setattr(comparing, "deploy", short)
    serial, overlap = compared("--draft-device", "gpu")[2:]
    passes = profile(CPU[TARGET]).curve(engine(ENGINE).shapes)
    pair = Pair(lambda n: passes.seconds(n, 256), 0.002, 3)
    assert serial["tokens_per_second"] == expected(pair.serial)
    assert overlap["tokens_per_second"] == expected(lambda share: pair.overlap(share, SLOWDOWN))


def test_the_options_of_a_way_take_the_memory_that_it_shows(cli, compared):
    for way in compared("--context", 512):
        words = shlex.split(re.sub(r"--pipeline \w+", "", way["options"]))
        plan = json.loads(cli("plan", "--json", *compared.words, "--context", 512, *words).out)
        totals = {each["device"]: each["total_mb"] for each in plan["devices"]}
        assert {each["device"]: each["total_mb"] for each in way["devices"]} == totals
        assert [*totals] == (["cpu"] if "gpu" not in f"{way['target']} {way['draft']}" else PAIR)


def test_devices_that_are_named_are_compared_and_no_others(compared):
    named = compared("--device", "gpu", "--draft-device", "gpu")
    assert called(named) == [("plain", "gpu", None), ("serial", "gpu", "gpu")]
    assert [way["options"] for way in named] == [
        "--device gpu --draft none", "--device gpu --draft-device gpu --pipeline serial",
    ]  # fmt: skip
    switched = compared("--device", "gpu")
    assert called(switched)[1:] == [
        ("serial", "gpu", "cpu"), ("overlap", "gpu", "cpu"), ("serial", "gpu", "gpu"),
    ]  # fmt: skip


def test_all_devices_that_are_short_are_named(cli, compared):
    result = cli("plan", "--compare", "--json", *compared.words, "--memory", "cpu=1MiB,gpu=2MiB")
    assert result.code == 3
    both = r"needs [\d,]+ MiB on cpu where 1 may be used and \d+ MiB on gpu where 2 "
    way = json.loads(result.out)["ways"][-1]
    assert re.match(both, way["refusal"])


def test_the_best_way_is_the_first_of_those_that_promise_most_at_the_usual_acceptance():
    rates = [(9, 1, 1), (1, 1, 9), (1, 2, 1), (1, 2, 1), (1, 9, 1)]
    ways = [
        Strategy("serial", None, rates=dict(zip(ACCEPTANCES, each, strict=True))) for each in rates
    ]
    ways[-1] = replace(ways[-1], refusal="too large")
    assert best(ways) is ways[2]
    assert best(ways[-1:]) is None


def test_all_ways_are_compared_whatever_is_to_draft(compared):
    assert compared("--draft", "lookup") == compared()


def test_without_a_gpu_no_draft_is_there(cli, laptop, monkeypatch):
    without_gpu(monkeypatch)
    ways = json.loads(cli("plan", "--compare", "--memory", "1MiB", "--json").out)["ways"]
    assert called(ways) == [("plain", "cpu", None), ("serial", "cpu", "cpu")]


def test_a_way_that_does_not_fit_says_so_and_is_not_measured(cli, compared, monkeypatch):
    monkeypatch.setattr(selection, "measure_apart", None)
    ways = compared("--memory", "cpu=1GiB,gpu=2MiB")
    assert called(ways) == [
        ("plain", "cpu", None), ("serial", "cpu", "cpu"),
        ("serial", "cpu", "gpu"), ("overlap", "cpu", "gpu"),
    ]  # fmt: skip
    for way in ways[2:]:
        assert (way["fits"], way["tokens_per_second"], way["engines"]) == (False, {}, {})
        need = next(each for each in way["devices"] if each["device"] == "gpu")
        assert need["total_mb"] > need["limit_mb"] == 2
        said = r"needs (\d+) MiB on gpu where 2 may be used, with a context of 2,048"
        number = re.fullmatch(said, way["refusal"])[1]
        assert int(number) == pytest.approx(need["total_mb"], abs=0.6)
    assert [way["best"] for way in ways] == [False, True, False, False]
    shown = cli("plan", "--compare", *compared.words, "--memory", "cpu=1GiB,gpu=2MiB").out
    assert f"overlap with the draft on gpu: {ways[3]['refusal']}\n" in shown
    assert (
        "serial with the draft on cpu is fastest at 0.75: run it with --pipeline serial\n" in shown
    )


def test_a_way_that_no_engine_takes_says_so(compared):
    refused = Profile(False, {}, "gpu: not with these operators")
    profiles.remember(EMBEDDED, DRAFT, (Gpu(),), 1, refused)
    ways = compared()
    assert [way["refusal"] is None for way in ways] == [True, True, True, False, False]
    assert ways[3]["fits"]
    assert "gpu: not with these operators" in ways[3]["refusal"]


def test_ways_as_a_table(cli, compared):
    result = cli("plan", "--compare", *compared.words)
    lines = [line.split() for line in result.out.splitlines()]
    assert max(map(len, result.out.splitlines()[2:])) <= 100
    for way in compared():
        memory = {each["device"]: f"{each['total_mb']:,.0f}" for each in way["devices"]}
        assert [
            way["way"], way["target"], way["draft"] or "-", memory["cpu"], memory.get("gpu", "-"),
            *(f"{rate:.1f}" for rate in way["tokens_per_second"].values()),
        ] in lines  # fmt: skip
    best = "overlap with the draft on gpu is fastest at 0.75: run it with"
    assert result.out.endswith(f"{best} --draft-device gpu --pipeline overlap\n")


def test_without_a_draft_model_there_are_fewer_ways(compared, monkeypatch):
    manifest = EMBEDDED.manifest
    alone = replace(EMBEDDED, manifest=replace(manifest, roles={TARGET: EMBEDDED.target}))
    monkeypatch.setattr(bundles, "load", lambda path: alone)
    remember(alone)
    assert called(compared()) == [("plain", "cpu", None), ("offload", "0-=gpu", None)]


def test_what_does_not_fit_as_asked_may_fit_another_way(cli, compared):
    words = ["plan", *compared.words, "--memory", "cpu=40MiB,gpu=100MiB"]
    fails(cli(*words), "MiB on cpu and 40 may be used", code=3)
    result = cli(*words, "--compare")
    assert result.code == 3
    assert result.err == cli(*words).err
    assert result.out.endswith(
        "offload is fastest at 0.75: run it with --place 0-=gpu --draft none\n"
    )
    assert "weights" not in result.out
    found = json.loads(cli(*words, "--compare", "--json").out)
    assert [way["fits"] for way in found["ways"]] == [False, True, False, False, False]
    assert (found["fits"], found["context"]) == (False, 256)


def test_nothing_is_compared_unasked_and_nothing_measured_where_nothing_fits(cli, laptop):
    words = ["plan"]
    assert json.loads(cli(*words, "--json").out)["ways"] is None
    words += ["--compare", "--memory", "cpu=1MiB,gpu=1MiB"]
    fails(cli(*words), "and 1 may be used", code=3)
    ways = json.loads(cli(*words, "--json").out)["ways"]
    assert called(ways) == [
        ("plain", "cpu", None), ("serial", "cpu", "cpu"),
        ("serial", "cpu", "gpu"), ("overlap", "cpu", "gpu"),
    ]  # fmt: skip
    assert not any(way["fits"] or way["best"] for way in ways)


@pytest.mark.parametrize("words", [("--gpu-layers", 8), ("--place", "0-=gpu")])
def test_a_placement_of_the_users_holds_beside_a_draft_model(compared, words):
    ways = compared(*words)
    assert called(ways) == [
        ("plain", "cpu", None), ("offload", "0-=gpu", None), ("serial", "0-=gpu", "cpu"),
        ("overlap", "0-=gpu", "cpu"), ("serial", "0-=gpu", "gpu"),
    ]  # fmt: skip
    assert ways[3]["options"] == "--place 0-=gpu --pipeline overlap"
    assert ways[0]["tokens_per_second"] == dict.fromkeys(SHARES, 50)


def test_what_is_not_known_is_measured_and_that_is_said_before(cli, compared, monkeypatch):
    monkeypatch.setattr(profiles, "recall_overlap_cost", lambda *_: None)
    monkeypatch.setattr(contention, "slowdown", lambda *_: 1.5)
    result = cli("plan", "--compare", "--json", *compared.words)
    assert result.err.count("which takes a while\n") == 1
    assert [way["slowdown"] for way in json.loads(result.out)["ways"]][-1] == 1.5
