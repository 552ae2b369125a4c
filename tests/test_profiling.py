"""Measuring calls, in this process and in one of its own."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import weakref
from dataclasses import replace

import pytest
from cuts import EMBEDDED
from pairs import ENGINES

from edgespec import records
from edgespec.models.embedded import BUNDLE
from edgespec.runtime import profiles, profiling
from edgespec.runtime.engines import engine
from edgespec.runtime.profiles import Profile
from edgespec.runtime.profiling import Job, measure, measure_apart, shapes

QUICK = Profile.measured(False, {256: {1: 0.01, 8: 0.02}})

pytestmark = pytest.mark.usefixtures("own_cache")


# Timing


CHANGE = 0.002  # seconds by which another shape than before is slower


class FakeRunner:
    """Calls that take a known time on a clock of their own, and tell what was called."""

    def __init__(self, model):
        self.length, self.calls, self.shapes = 0, [], set()
        model.append(self)
        self.clock = 0.0

    def skip(self, rows):
        self.length += rows

    def verify(self, rows):
        n = len(rows.tokens)
        capacity = self.length + 32
        seconds = n * capacity * 1e-6
        if (n, capacity) not in self.shapes:
            seconds += 5.0
        elif self.calls[-1] != (n, capacity):
            seconds += CHANGE
        self.shapes.add((n, capacity))
        self.calls.append((n, capacity))
        self.clock += seconds


def fake_measure(monkeypatch, rows, capacities):
    made = []
    monkeypatch.setattr(profiling, "Runner", FakeRunner)
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: made[0].clock if made else 0.0)
    return dict(measure(made, rows, capacities)), made[0]


def test_only_calls_that_repeat_a_shape_count(monkeypatch):
    points, runner = fake_measure(monkeypatch, (1, 8, 32), (256, 1024))
    for capacity, by_rows in points.items():
        for n, seconds in by_rows.items():
            assert seconds == pytest.approx(n * capacity * 1e-6)
    assert list(points) == [256, 1024]
    assert runner.calls[0] == (1, 256)


def test_what_else_the_machine_does_does_not_count(monkeypatch):
    """It lets one turn in three go by, neither the first nor the last."""
    verify = FakeRunner.verify

    def beside_others(runner, rows):
        verify(runner, rows)
        runner.clock += 0 if 30 <= len(runner.calls) < 60 else 0.001

    monkeypatch.setattr(FakeRunner, "verify", beside_others)
    points, _ = fake_measure(monkeypatch, (1, 8, 32), (256,))
    assert points[256] == pytest.approx({n: n * 256e-6 for n in (1, 8, 32)})


def test_numbers_of_rows_take_turns(monkeypatch):
    _, runner = fake_measure(monkeypatch, (1, 8, 32), (256,))
    timed = runner.calls[3:]
    changes = [call for call, before in zip(timed, [None, *timed], strict=False) if call != before]
    assert [n for n, _ in changes[:6]] == [1, 8, 32, 1, 8, 32]
    assert len(changes) // 3 >= 2


def test_long_calls_are_not_repeated(monkeypatch):
    monkeypatch.setattr(profiling, "_LONG", 32 * 256e-6)
    points, runner = fake_measure(monkeypatch, (1, 32), (256,))
    assert points[256][1] == pytest.approx(256e-6)
    assert points[256][32] == pytest.approx(32 * 256e-6 + CHANGE)
    assert runner.calls[2:7] == [(1, 256)] * 3 + [(32, 256), (1, 256)]


def test_one_long_turn_is_enough(monkeypatch):
    monkeypatch.setattr(profiling, "_LONG", 0.0)
    monkeypatch.setattr(profiling, "_LONG_TURN", 33 * 256e-6)
    points, runner = fake_measure(monkeypatch, (1, 32), (256, 1024))
    assert runner.calls == [(n, c) for c in (256, 1024) for n in (1, 32, 1, 32)]
    assert all(by_rows.keys() == {1, 32} for by_rows in points.values())


CONTEXTS = {
    100: [256],
    256: [256],
    700: [256, 768],
    1024: [256, 1024],
    2048: [256, 1024, 2048],
    5000: [256, 1024, 4096],
    131_072: [256, 1024, 4096],
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("context", "capacities"), CONTEXTS.items())
def test_shapes_go_as_far_as_the_context(full, context, capacities):
    rows, found = shapes(replace(EMBEDDED.target, context_length=context), full)
    assert list(rows) == ([1, 2, 4, 8, 16, 32] if full else [1, 2, 4, 8, 32])
    assert list(found) == (capacities if full else [256])


def test_a_text_is_as_long_as_the_cache_allows(pairs, monkeypatch):
    monkeypatch.setattr(profiling, "_SECONDS", 0.0)
    model = pairs.llm("llama", ENGINES[0], "none").target
    seen = set()
    [executable] = model.executables
    run = executable.run

    def watched(feeds, cache):
        visible = (feeds["attention_bias"] == 0).sum(axis=1).min() - 1  # and the first row itself
        seen.add((cache.capacity, len(feeds["input_ids"]), int(cache.capacity - visible)))
        return run(feeds, cache)

    monkeypatch.setattr(executable, "run", watched)
    points = dict(measure(model, (1, 4), (256, 384)))
    rows = [model.shapes.row_bucket(n) for n in (1, 4)]
    assert seen == {(capacity, n, 4) for capacity in (256, 384) for n in rows}
    assert all(seconds > 0 for by_rows in points.values() for seconds in by_rows.values())


# In a process of its own


def job(bundle, *roles, device=ENGINES[0]):
    return Job(bundle, {role: (engine(device),) for role in roles}, threads=1, full=False)


def test_roles_are_measured_apart_from_any_folder(monkeypatch, tmp_path, caplog):
    for name in ("json", "edgespec", "onnxruntime", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    seen = []
    found = measure_apart(
        job(EMBEDDED, "target", "draft"), lambda role, capacity: seen.append((role, capacity))
    )
    assert seen == [("target", 256), ("draft", 256)]
    assert caplog.records == []
    for role, profile in found.items():
        assert not profile.full
        [(capacity, by_rows)] = profile.seconds.items()
        assert capacity == 256
        # A target's calls may have even numbers of rows alone.
        fewest = [[1]] if role == "draft" else [[1], []]
        assert list(by_rows) in [[*least, 2, 4, 8, 32] for least in fewest]
        assert profiles.recall(EMBEDDED, role, (engine(ENGINES[0]),), 1) == profile


def test_a_role_is_gone_before_the_next_one_is_loaded(monkeypatch):
    """Together they would need more memory than was planned."""
    loaded, load = [], profiling.Model.load

    def watched(*arguments):
        assert all(each() is None for each in loaded)
        model = load(*arguments)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(profiling, "interpreter", lambda: None)
    monkeypatch.setattr(profiling, "_SECONDS", 0.0)
    monkeypatch.setattr(profiling.Model, "load", watched)
    measure_apart(job(EMBEDDED, "target", "draft"))
    assert len(loaded) == 2


def test_a_relative_path_of_a_bundle_is_found(monkeypatch):
    monkeypatch.chdir(BUNDLE.parent)
    relative = replace(EMBEDDED, path=BUNDLE.relative_to(BUNDLE.parent))
    assert measure_apart(job(relative, "draft"))["draft"].refusal is None


def told(**facts):
    """A child that prints a line of JSON."""
    return f"print({json.dumps(facts)!r}, flush=True)"


NOTHING = "with status 0 and without a result$"
FAILURES = {
    "import os; os.kill(os.getpid(), 9)": "with status -9 and without a result$",
    "raise SystemExit('first\\nout of memory')": r"with status 1 .* \(out of memory\)$",
    "raise ValueError('three')": r"with status 1 .* \(ValueError: three\)$",
    "print('rubbish')": NOTHING,
    "print('[' * 99999)": NOTHING,
    r"import os; os.write(1, b'\xff\n\n')": NOTHING,
    r"import os; os.write(2, b'lost \xff'); os._exit(3)": r"with status 3 .* \(lost \ufffd\)$",
    "[print(line) for line in ('null', '3', '[]', '{}', '[1]')]": NOTHING,
    told(role=[], capacity=1): NOTHING,
    told(role="target", capacity=math.inf): NOTHING,
    told(role="target", profile={"full": 1, "points": {}}): NOTHING,
    told(role="target", profile={"full": True, "points": {}}): NOTHING,
    told(role="target", profile={"full": True, "points": {"256": {"1": -1.0}}}): NOTHING,
}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("code", "reason"), FAILURES.items())
def test_a_process_that_fails_is_a_refusal_in_one_line(
    own_cache, monkeypatch, caplog, code, reason
):
    monkeypatch.setattr(profiling, "_CHILD", code)
    refusal = measure_apart(job(EMBEDDED, "target"))["target"].refusal
    assert [record.message for record in caplog.records] == [refusal]
    assert refusal.startswith(f"{ENGINES[0]}: target: measuring ended ")
    assert re.search(reason, refusal)
    assert "\n" not in refusal
    assert not (own_cache / "curves").exists()  # so that the next load tries again


def test_what_was_measured_before_a_crash_is_kept(monkeypatch):
    line = json.dumps({"role": "target", "profile": records.encode(QUICK)})
    code = f"print('hello from a library', {line!r}, 'more', sep='\\n'); raise SystemExit(3)"
    monkeypatch.setattr(profiling, "_CHILD", code)
    found = measure_apart(job(EMBEDDED, "target", "draft"))
    assert found["target"] == QUICK
    assert "draft: measuring ended with status 3" in found["draft"].refusal
    assert profiles.recall(EMBEDDED, "target", (engine(ENGINES[0]),), 1) == QUICK
    assert profiles.recall(EMBEDDED, "draft", (engine(ENGINES[0]),), 1) is None


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory")
def test_measuring_needs_no_folder_for_temporary_files(monkeypatch):
    """As in containers where all is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    line = json.dumps({"role": "target", "profile": records.encode(QUICK)})
    monkeypatch.setattr(profiling, "_CHILD", f"print({line!r}); raise SystemExit('and then')")
    found = measure_apart(job(EMBEDDED, "target", "draft"))
    assert found["target"] == QUICK
    assert found["draft"].refusal.endswith("(and then)")


def test_a_process_that_cannot_start_is_a_refusal(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found = measure_apart(job(EMBEDDED, "target"))["target"]
    assert "no process to measure in could be started" in found.refusal


def test_an_interrupted_measurement_leaves_no_process(monkeypatch):
    monkeypatch.setattr(
        profiling, "_CHILD", told(role="target", capacity=256) + "; import time; time.sleep(600)"
    )
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupt(role, capacity):
        assert started[0].poll() is None
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        measure_apart(job(EMBEDDED, "target"), interrupt)
    assert started[0].returncode is not None
