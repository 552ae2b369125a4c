"""Measuring in processes of their own."""

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

from edgespec.models.embedded import BUNDLE
from edgespec.runtime.costs import isolated as apart
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs import timing as profiling
from edgespec.runtime.costs.isolated import Job, measure_apart
from edgespec.runtime.costs.profiles import Profile
from edgespec.runtime.engines import engine
from edgespec.system import records

QUICK = Profile.measured(False, {256: {1: [0.01], 8: [0.02]}})

pytestmark = pytest.mark.usefixtures("own_cache")


def job(bundle, *roles, device=ENGINES[0]):
    return Job(bundle, {role: (engine(device),) for role in roles}, threads=1, full=False)


def measured(bundle, *roles):
    [found] = measure_apart([job(bundle, *roles)])
    return found


def test_roles_are_measured_apart_from_any_folder(monkeypatch, tmp_path, caplog):
    for name in ("json", "edgespec", "onnxruntime", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    seen = []
    asked = job(EMBEDDED, "target", "draft")
    [found] = measure_apart([asked], lambda *step: seen.append(step))
    far = {"target": 2048, "draft": 512}  # as many rows as its context has, or 2048
    assert seen == [(asked, role, c) for role in far for c in (256, far[role])]
    assert caplog.records == []
    for role, profile in found.items():
        assert not profile.full
        assert {c: list(by_rows) for c, by_rows in profile.seconds.items()} == {
            256: [1, 2, 4, 8, 32],
            far[role]: [1, 8],
        }
        assert profiles.recall(EMBEDDED, role, (engine(ENGINES[0]),), 1) == profile


TURNS = """
import sys
for turn in range(3):
    with open({log!r}, "a") as log:
        print({name!r}, turn, file=log)
    print({line!r}, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("fit", [True, False])
def test_processes_take_turns_where_memory_allows(monkeypatch, tmp_path, fit):
    log, jobs = tmp_path / "log", [job(EMBEDDED, "target", device=each) for each in ENGINES]
    names = iter("AB")
    line = json.dumps({"role": "target", "capacity": None})

    def converse(python, request, found):
        name = next(names)
        code = TURNS.format(log=str(log), name=name, line=line)
        monkeypatch.setattr(apart, "_CHILD", f"import sys; sys.stdin.readline(){code}")
        return (yield from talk(python, request, found))

    talk = apart._converse
    monkeypatch.setattr(apart, "_converse", converse)
    free = 1 << (50 if fit else 20)
    for each in jobs:
        [engines] = each.roles.values()
        monkeypatch.setattr(type(engines[0]), "available_bytes", lambda self: free)
    measure_apart(jobs)
    order = "".join(entry.split()[0] for entry in log.read_text().splitlines())
    assert order == ("ABABAB" if fit else "AAABBB")


def test_a_process_that_nobody_listens_to_ends():
    request = {
        "path": sys.path, "bundle": str(BUNDLE), "roles": {"target": [ENGINES[0]]}, "threads": 1,
        "full": True,
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", apart._CHILD], input=json.dumps(request).encode() + b"\n",
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert [json.loads(line) for line in ended.stdout.split(b"\n") if line] == [
        {"role": "target", "capacity": 256}
    ]


def test_a_role_is_gone_before_the_next_one_is_loaded(monkeypatch):
    """Together they would need more memory than was planned."""
    loaded, load = [], apart.Model.load

    def watched(*arguments):
        assert all(each() is None for each in loaded)
        model = load(*arguments)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(apart, "interpreter", lambda: None)
    monkeypatch.setattr(profiling, "_SECONDS", 0.0)
    monkeypatch.setattr(apart.Model, "load", watched)
    measured(EMBEDDED, "target", "draft")
    assert len(loaded) == 2


def test_a_relative_path_of_a_bundle_is_found(monkeypatch):
    monkeypatch.chdir(BUNDLE.parent)
    relative = replace(EMBEDDED, path=BUNDLE.relative_to(BUNDLE.parent))
    assert measured(relative, "draft")["draft"].refusal is None


def told(**facts):
    """A child that prints a line of JSON."""
    return f"print({json.dumps(facts)!r}, flush=True)"


NOTHING = "with status 0 without a result$"
FAILURES = {
    "import os; os.kill(os.getpid(), 9)": "with status -9 without a result$",
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
    monkeypatch.setattr(apart, "_CHILD", code)
    refusal = measured(EMBEDDED, "target")["target"].refusal
    assert [record.message for record in caplog.records] == [refusal]
    assert refusal.startswith(f"{ENGINES[0]}: target: the measuring process ended ")
    assert re.search(reason, refusal)
    assert "\n" not in refusal
    assert not (own_cache / "curves").exists()  # so that the next load tries again


def test_what_was_measured_before_a_crash_is_kept(monkeypatch):
    line = json.dumps({"role": "target", "profile": records.encode(QUICK)})
    code = f"print('hello from a library', {line!r}, 'more', sep='\\n'); raise SystemExit(3)"
    monkeypatch.setattr(apart, "_CHILD", code)
    found = measured(EMBEDDED, "target", "draft")
    assert found["target"] == QUICK
    assert "draft: the measuring process ended with status 3" in found["draft"].refusal
    assert profiles.recall(EMBEDDED, "target", (engine(ENGINES[0]),), 1) == QUICK
    assert profiles.recall(EMBEDDED, "draft", (engine(ENGINES[0]),), 1) is None


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory")
def test_measuring_needs_no_folder_for_temporary_files(monkeypatch):
    """As in containers where all is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    line = json.dumps({"role": "target", "profile": records.encode(QUICK)})
    monkeypatch.setattr(apart, "_CHILD", f"print({line!r}); raise SystemExit('and then')")
    found = measured(EMBEDDED, "target", "draft")
    assert found["target"] == QUICK
    assert found["draft"].refusal.endswith("(and then)")


def test_a_process_that_cannot_start_is_a_refusal(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found = measured(EMBEDDED, "target")["target"]
    assert "process that measures could not be started" in found.refusal


def test_an_interrupted_measurement_leaves_no_process(monkeypatch):
    monkeypatch.setattr(
        apart, "_CHILD", told(role="target", capacity=256) + "; import time; time.sleep(600)"
    )
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupt(job, role, capacity):
        assert started[0].poll() is None
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        measure_apart([job(EMBEDDED, "target")], interrupt)
    assert started[0].returncode is not None
