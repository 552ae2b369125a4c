"""`edgespec profile`: what is measured, kept and shown."""

from __future__ import annotations

import json

import pytest
from commandline import fails
from cuts import cut
from links import linked
from pairs import ENGINES

from edgespec import bundle as bundles
from edgespec.api.loading import LoadOptions
from edgespec.cli import plots
from edgespec.cli.plots import text_plot
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.costs import isolated as apart
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.profiles import Profile
from edgespec.runtime.deployment import selection
from edgespec.runtime.deployment.deployment import deploy, load, with_costs
from edgespec.runtime.engines import engine
from edgespec.system.machine import default_threads

ROWS = (1, 2, 4, 8, 16, 32)
MS = {256: {n: 10.0 + n for n in ROWS}, 2048: {n: 200.0 + n for n in ROWS}}


@pytest.fixture
def measured(monkeypatch, own_cache):
    """Profiles as told, by engine and role; each is 11 ms for a row unless something else is."""
    jobs, told = [], {}

    def measure_apart(asked, report):
        jobs.extend(asked)
        seconds = {c: {n: [ms / 1e3] for n, ms in by_rows.items()} for c, by_rows in MS.items()}
        usual = Profile.measured(True, seconds)
        return [
            {role: told.get((first.name, role), usual) for role, [first, *_] in job.roles.items()}
            for job in asked
        ]

    monkeypatch.setattr(apart, "measure_apart", measure_apart)
    measure_apart.jobs, measure_apart.told = jobs, told
    return measure_apart


def engines_of(jobs):
    return [job.roles["target"][0].name for job in jobs]


@pytest.mark.slow
def test_everything_is_measured_and_remembered(cli, own_cache, monkeypatch):
    result = cli("profile", "--device", ENGINES[0], "--threads", 1, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    curves = json.loads(result.out)["curves"]
    assert [(c["role"], c["context"]) for c in curves] == [
        *(("target", context) for context in (256, 1024, 2048)),
        *(("draft", context) for context in (256, 512)),
    ]
    bundle = bundles.load(BUNDLE)
    for curve in curves:
        ms = curve.pop("ms")
        assert list(ms) == [str(n) for n in ROWS]
        assert 0 < ms["1"] < 1000
        role, context = curve.pop("role"), curve.pop("context")
        assert curve == {
            "engine": "onnxruntime", "device": "cpu", "place": None, "precision": "int8",
            "threads": 1,
        }  # fmt: skip
        profile = profiles.recall(bundle, role, (engine(ENGINES[0]),), 1)
        assert profile.full
        assert profile.seconds[context][1] * 1e3 == pytest.approx(ms["1"], abs=1e-4)


def test_cpu_is_all_its_engines_once(cli, measured):
    assert cli("profile", "--json").code == 0
    assert engines_of(measured.jobs) == list(ENGINES)
    for job in measured.jobs:
        assert list(job.roles) == ["target", "draft"]
        assert (job.threads, job.full) == (default_threads(), True)
    measured.jobs.clear()
    words = ["--device=openvino:cpu", "--device=cpu", "--device=onnxruntime:cpu"]
    curves = json.loads(cli("profile", BUNDLE, *words, "--json").out)["curves"]
    assert engines_of(measured.jobs) == [ENGINES[1], ENGINES[0]]
    assert {(curve["engine"], curve["device"]) for curve in curves} == {
        ("onnxruntime", "cpu"), ("openvino", "cpu"),
    }  # fmt: skip


def test_a_placed_target_is_measured_where_it_is(cli, measured, monkeypatch):
    """Every choice that the device cpu leaves open, and no draft model."""
    monkeypatch.setattr(bundles, "load", lambda path: cut(4, 9, 12))
    words = ["profile", "--place", f"0-1=cpu,2-5={ENGINES[1]},6-=cpu"]
    curves = json.loads(cli(*words, "--json").out)["curves"]
    names = [[each.name for each in job.roles["target"]] for job in measured.jobs]
    first, second = ENGINES
    assert names == [[first, second, second, first], [second] * 4]
    assert all(list(job.roles) == ["target"] and job.full for job in measured.jobs)
    places = [f"0-1={first},2-5={second},6-={first}", f"0-={second}"]
    assert [curve["place"] for curve in curves] == [place for place in places for _ in MS]
    assert {(curve["engine"], curve["device"]) for curve in curves} == {
        ("onnxruntime+openvino", "cpu"), ("openvino", "cpu"),
    }  # fmt: skip
    lines = cli(*words).out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines]
    top = rows.index([f"0-1={first}", "256", *(f"{10 + n}" for n in ROWS)])
    assert [row[0] for row in rows[top + 1 : top + 3]] == [f"2-5={second}", f"6-={first}"]
    assert f"{places[1]} at 2048" in "\n".join(lines)
    measured.jobs.clear()
    fails(cli("profile", "--place", f"0-2={first},3-={second}"), "cannot change before layer 3")
    fails(cli("profile", "--place", "0-=cpu", "--device", "cpu"), "not allowed with")
    assert measured.jobs == []


def test_run_finds_what_was_measured_of_a_placed_target(cli, pairs, own_cache, monkeypatch):
    path, place = pairs.pair("cut").path, f"0={ENGINES[1]},1={ENGINES[0]}"
    assert cli("profile", path, "--place", place, "--threads", 1).code == 0
    monkeypatch.setattr(selection, "measure_apart", None)
    bundle, options = bundles.load(path), LoadOptions(place=place, threads=1, draft="none")
    placed = with_costs(deploy(bundle, options), always=True)
    assert load(placed)["target"].profile.full


def test_every_engine_is_drawn_with_its_smallest_and_largest_context(cli, measured):
    """Fixed shapes have contexts of their own."""
    fixed = "onnxruntime:cpu#8x512"
    some = {512: {1: [0.02]}}
    for role in ("target", "draft"):
        measured.told[fixed, role] = Profile.measured(True, some)
    shown = cli("profile", "--device", "cpu", "--device", fixed).out
    for name, contexts in ((ENGINES[0], (256, 2048)), (ENGINES[1], (256, 2048)), (fixed, (512,))):
        for context in contexts:
            assert shown.count(f"{name} at {context}") == 2
    assert shown.count(" at ") == 10


def test_tables_and_plots_fit_eighty_characters(cli, measured):
    result = cli("profile", "--threads", 2)
    assert result.code == 0
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "target: 7,344,384 parameters, int8, 2 threads" in result.out
    rows = [line.split() for line in lines]
    for name in ENGINES:
        first = rows.index([name, "256", *(f"{10 + n}" for n in ROWS)])
        assert rows[first + 1] == [f"{(10 + n) / 11:.2f}x" for n in ROWS]
        assert [name, "2048", *(f"{200 + n}" for n in ROWS)] in rows
    assert result.out.count("openvino:cpu at 2048") == 2  # a plot for each role


def test_a_plot_puts_each_point_in_its_place():
    lines = text_plot({"one": {1: 10.0, 2: 20.0}, "two": {1: 10.0, 4: 5.0}}).splitlines()
    assert lines[0] == "    20 ms |          o"
    assert lines[5] == "       10 |o"  # where both are, the first one shows
    assert lines[7] == "          |"
    assert lines[8] == "          |                    x"
    assert lines[11].split() == ["rows", "1", "2", "4"]
    assert [line.split() for line in lines[12:]] == [["o", "one"], ["x", "two"]]


def test_an_engine_that_fails_is_left_out(cli, measured):
    measured.told[ENGINES[1], "draft"] = Profile(True, {}, "it does not take it")
    curves = json.loads(cli("profile", "--json").out)["curves"]
    found = {(curve["role"], curve["engine"]) for curve in curves}
    assert ("target", "openvino") in found
    assert ("draft", "openvino") not in found
    assert cli("profile").code == 0
    measured.told[ENGINES[0], "draft"] = Profile(True, {}, "nor does it")
    fails(cli("profile"), "draft could not be measured: nor does it; it does not take it")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--device", "toaster"], "device 'toaster' is not known: use cpu, gpu, onnxruntime:cpu"),
        (["--threads", "0"], "threads is 0"),
        (["--threads", "two"], "invalid int value: 'two'"),
        (["--png", "curves.jpg"], "curves.jpg: give --png a file name that ends in .png"),
        (["--png", "nowhere/curves.png"], "there is no folder nowhere"),
        (["here"], "here is not a bundle: no such folder"),
    ],
)
def test_what_is_refused_before_anything_is_measured(cli, measured, words, part):
    fails(cli("profile", *words), part)
    assert measured.jobs == []


def test_a_png_needs_matplotlib(cli, measured, monkeypatch, tmp_path):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    fails(cli("profile", "--png", tmp_path / "a.png"), "pip install 'edgespec[bench]'")
    (tmp_path / "b.png").mkdir()
    fails(cli("profile", "--png", tmp_path / "b.png"), "b.png is a folder")
    assert measured.jobs == []


def test_a_png_is_drawn(cli, measured, tmp_path):
    pytest.importorskip("matplotlib")
    result = cli("profile", "--png", tmp_path / "curves.PNG", "--json")
    assert result.code == 0
    assert (tmp_path / "curves.PNG").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_is_shown_where_no_picture_can_be_written(cli, measured, tmp_path):
    pytest.importorskip("matplotlib")
    file = linked(tmp_path / "a.png", tmp_path / "nowhere" / "a.png")
    result = cli("profile", "--png", file, "--json")
    assert result.code == 2
    assert json.loads(result.out)["curves"]
    assert f"{file} cannot be written" in result.err
