"""Models and other processes: forks work or say what to do, and pickling says it in our words."""

from __future__ import annotations

import copy
import os
import pickle

import pytest
from native_llms import loaded, with_library
from pairs import SHORT_PROMPT
from programs import ended

from edgespec.errors import InputError
from edgespec.models.embedded import BUNDLE

pytestmark = with_library
with_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

BEGIN = """
import asyncio, os, sys, threading, warnings
from edgespec import LLM
from edgespec.errors import InputError

warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
options = {"max_new_tokens": 12, "draft_source": "auto"}

def forked(work):
    sys.stdout.flush()
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
    else:
        work()
        sys.exit()
"""
IDLE = (
    BEGIN
    + """
llm = LLM(sys.argv[1], threads=2)
begun = llm.stream("def f(", **options)
next(iter(begun))
print(repr(asyncio.run(llm.agenerate("def f(", **options)).text))

def work():
    begun.finish()
    print(repr(llm.generate("def f(", **options).text))
    print(repr(asyncio.run(llm.agenerate("def f(", **options)).text))

forked(work)
for _ in range(8):  # right after a pass, when its threads are not asleep yet
    print(repr(llm.generate("def f(", **options).text))
    forked(lambda: print(repr(llm.generate("def f(", **options).text)))
    forked(llm.close)
print(repr(begun.finish().text))
"""
)
BUSY = (
    BEGIN
    + """
from contextlib import contextmanager

llm = LLM(sys.argv[1], threads=2)
inside, left = threading.Event(), threading.Event()
graph = llm._loaded.models["target"].graph

def slow(feeds):
    inside.set()
    left.wait()
    return graph(feeds)

llm._loaded.models["target"].graph = slow
texts = []
other = threading.Thread(target=lambda: texts.append(llm.generate("def f(", **options).text))
other.start()
inside.wait()

def work():
    for use in (lambda: llm.generate("a"), llm.session, llm.forget, lambda: llm.stream("a")):
        try:
            use()
        except InputError as error:
            print(error)
    llm.close()
    with LLM(sys.argv[1]) as own:
        print(repr(own.generate("def f(", **options).text))

forked(work)
left.set()
other.join()
print(repr(texts[0]))
"""
)


@with_fork
@pytest.mark.slow
def test_a_process_that_is_forked_between_texts_makes_the_same_ones():
    texts = ended(IDLE, str(BUNDLE))
    assert len(texts) == 20
    assert len(set(texts)) == 1


@with_fork
@pytest.mark.slow
def test_a_process_that_is_forked_during_a_text_says_what_to_do():
    *refused, own, others = ended(BUSY, str(BUNDLE))
    assert own == others
    assert len(refused) == 4
    assert set(refused) == {
        "this process was forked while another thread made a text: load the model again here, "
        "or start processes by the method spawn of multiprocessing"
    }


def test_what_holds_a_model_is_not_pickled(pairs):
    llm = loaded(pairs, "llama")
    with llm.session() as session:
        for what in (llm, session, llm.stream(SHORT_PROMPT)):
            for take in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(InputError, match="load the model in each process that uses it"):
                    take(what)
    llm.close()


def test_results_are_pickled(pairs):
    with loaded(pairs, "llama") as llm:
        result = llm.generate(SHORT_PROMPT, max_new_tokens=4)
    assert pickle.loads(pickle.dumps(result)) == result
