"""Jobs in another process: what they return, what ends them, and what goes on afterwards."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from edgespec.errors import InputError
from edgespec.system.jobs import JobError, JobLimits, Worker
from edgespec.system.waiting import NOBODY_WAITS

LIMITS = JobLimits(seconds=0.5, megabytes=200, patience=4)
MODULE = f"""
import ctypes, os, sys, time
{{before}}
from edgespec.errors import InputError
from edgespec.system.jobs import JobLimits, serve

def do(job):
    name, _, rest = job.partition(b" ")
    if name == b"echo": return rest
    if name == b"refuse": raise InputError("no such thing")
    if name == b"pid": return str(os.getppid()).encode()
    if name == b"fail": raise LookupError
    if name == b"spin":
        while True: pass
    if name == b"sleep": time.sleep(60)
    if name == b"large": return bytes(300 << 20)[:1]
    if name == b"exit": os._exit(0)
    if name == b"crash": ctypes.string_at(0)

def main():
    serve(do, {LIMITS})
"""
WINDOWS = "sys.platform = 'win32'; import subprocess"


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(before=""):
        (tmp_path / "strange_jobs.py").write_text(MODULE.format(before=before))
        return Worker("strange_jobs", LIMITS)

    return make


@pytest.fixture
def worker(made):
    return made()


def ends(worker, job, why):
    with pytest.raises(JobError) as caught:
        worker.run(job)
    assert caught.value.why == why


def test_what_a_job_returns_and_refuses(worker):
    large = os.urandom(5_000_000)
    assert worker.run(b"echo " + large) == large
    with pytest.raises(InputError, match=r"^no such thing$"):
        worker.run(b"refuse")
    assert worker.run(b"echo ") == b""


def test_limits(worker):
    """The child is the same one afterwards."""
    before = worker.run(b"pid")
    begun = time.monotonic()
    ends(worker, b"spin", "time")
    ends(worker, b"sleep", "time")
    ends(worker, b"large", "memory")
    ends(worker, b"crash", "crash")
    ends(worker, b"fail", "crash")
    ends(worker, b"exit", "crash")
    assert worker.run(b"pid") == before
    assert time.monotonic() - begun < 20


def test_a_job_that_nobody_waits_for_ends(worker):
    child = worker.run(b"pid")
    gone = threading.Event()
    told = NOBODY_WAITS.set(gone.is_set)
    try:
        timer = threading.Timer(0.2, gone.set)
        timer.start()
        begun = time.monotonic()
        with pytest.raises(InputError, match="nobody waits"):
            worker.run(b"sleep")
        assert time.monotonic() - begun < 1.5
    finally:
        NOBODY_WAITS.reset(told)
    assert worker.run(b"pid") == child


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timer of signals")
def test_an_interruption_leaves_no_answer_behind(worker):
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    worker.run(b"echo 1")
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Interrupted):
            worker.run(b"spin")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert worker.run(b"echo 2") == b"2"


def test_a_child_that_has_ended_is_replaced(worker):
    os.kill(int(worker.run(b"pid")), signal.SIGTERM)
    assert worker.run(b"echo 1") == b"1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_has_a_child_of_its_own(worker):
    before = worker.run(b"pid")
    if not (process := os.fork()):
        os._exit(0 if worker.run(b"pid") != before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert worker.run(b"pid") == before


def test_without_forks_the_child_is_ended(made):
    worker = made(WINDOWS)
    assert worker.run(b"echo 1") == b"1"
    with pytest.raises(InputError, match=r"^no such thing$"):
        worker.run(b"refuse")
    ends(worker, b"crash", "time")
    ends(worker, b"sleep", "time")
    assert worker.run(b"echo 2") == b"2"


def test_a_module_that_does_not_begin_is_named():
    with pytest.raises(InputError, match=r"edgespec\.nothing cannot be run"):
        Worker("edgespec.nothing", LIMITS).run(b"")
