"""Programs that end while daemon threads work: they neither crash nor hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pairs import ENGINES

import edgespec
from edgespec.models.embedded import BUNDLE

IN_TURN = """
import atexit, threading, time

def work():
    with lock:
        inside.set()
        time.sleep(0.2)
        print("a round", flush=True)
    with lock:
        print("one more", flush=True)

def last():
    with lock:
        print("the end", flush=True)
    time.sleep(0.2)

atexit.register(last)  # heard after what the import registers

from edgespec.runtime.decoding.fair_lock import FairLock

lock, inside = FairLock(), threading.Event()
threading.Thread(target=work, daemon=True).start()
inside.wait()
"""
FORKED = """
import os, threading, time
from edgespec.runtime.decoding.fair_lock import FairLock

lock, inside = FairLock(), threading.Event()

def work():
    with lock:
        inside.set()
        time.sleep(0.2)

threading.Thread(target=work, daemon=True).start()
inside.wait()
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
"""
# Threads that draft and verify at once are in an engine for almost all of their time.
GENERATING = """
import sys, threading
from edgespec import LLM

llm = LLM(sys.argv[1], device=sys.argv[2], draft="model", pipeline="overlap", threads=1)
begun = threading.Barrier(3)

def work():
    stream = llm.stream("def f(", max_new_tokens=1500, temperature=1.0)
    next(iter(stream))
    begun.wait()
    stream.finish()

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
LOADING = """
import sys, threading
from edgespec import LLM
from edgespec.runtime.engines import engine

used, began = engine(sys.argv[2]), threading.Event()
compiles = type(used).compile

def compile(*arguments):
    began.set()
    return compiles(*arguments)

type(used).compile = compile
options = {"device": sys.argv[2], "threads": 1}
threading.Thread(target=LLM, args=[sys.argv[1]], kwargs=options, daemon=True).start()
began.wait()
"""


def ended(program, *arguments):
    path = os.pathsep.join([str(Path(edgespec.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


def test_the_end_waits_for_the_turn_under_way():
    assert ended(IN_TURN) == ["a round", "the end"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not():
    assert ended(FORKED) == ["0"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ENGINES)
@pytest.mark.parametrize("program", [GENERATING, LOADING], ids=["generating", "loading"])
def test_the_end_does_not_tear_threads_out_of_engines(program, device):
    ended(program, str(BUNDLE), device)
