"""Programs that end while daemon threads work: they neither crash nor hang."""

from __future__ import annotations

import os

import pytest
from programs import ended

from edgespec.models.embedded import BUNDLE

IN_A_CALL = """
import atexit, threading, time

def work():
    with ENGINE_CALLS:
        inside.set()
        time.sleep(0.2)
        print("a pass", flush=True)
    with ENGINE_CALLS:
        print("one more", flush=True)

def last():
    with ENGINE_CALLS:
        print("the end", flush=True)
    time.sleep(0.2)

atexit.register(last)  # heard after what the import registers

from edgespec.system.shutdown import ENGINE_CALLS

inside = threading.Event()
threading.Thread(target=work, daemon=True).start()
inside.wait()
"""
FORKED = """
import os, threading, time, warnings
from edgespec.system.shutdown import ENGINE_CALLS

inside = threading.Event()

def work():
    with ENGINE_CALLS:
        inside.set()
        time.sleep(0.2)

threading.Thread(target=work, daemon=True).start()
inside.wait()
warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
"""
# Threads whose passes draft and verify are in an engine for almost all of their time.
GENERATING = """
import sys, threading
from edgespec import LLM

llm = LLM(sys.argv[1], draft="model", threads=1, sessions=2)
begun = threading.Barrier(3)

def work():
    stream = llm.stream("def f(", max_new_tokens=1000, temperature=1.0)
    next(iter(stream))
    begun.wait()
    stream.finish()

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
LOADING = """
import sys, threading, time
from edgespec import LLM

threading.Thread(target=LLM, args=[sys.argv[1]], kwargs={"threads": 1}, daemon=True).start()
time.sleep(0.8)
"""


def test_the_end_waits_for_the_call_under_way():
    assert ended(IN_A_CALL) == ["a pass", "the end"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not():
    assert ended(FORKED) == ["0"]


@pytest.mark.slow
@pytest.mark.parametrize("program", [GENERATING, LOADING], ids=["generating", "loading"])
def test_the_end_does_not_tear_threads_out_of_engines(program):
    ended(program, str(BUNDLE))
