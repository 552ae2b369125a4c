"""Which prompt is read next, and what waits for it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.decoding.generate import PROMPT, Pass, Round
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.decoding.rounds import Rounds, TextRounds
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.trees.company import PassCost

CHUNK = 10


class Texts:
    """Texts of prompts alone: each is over with its first token. Notes whose chunks are read."""

    def __init__(self):
        self.rounds = Rounds(SimpleNamespace(shapes=SimpleNamespace(rows=(64,))), FairLock())
        self.order = []

    def add(self, name, prompt, *, known=0, cancelled=lambda: False, read=True):
        target = SimpleNamespace(length=0, known=lambda text: known)
        pipeline = SimpleNamespace(target=target)

        def steps():
            target.length = known
            while target.length < prompt:
                target.length = min(target.length + CHUNK, prompt)
                self.order.append(name)
                while read and text.ready:  # a chunk takes long enough for threads to follow
                    time.sleep(0.0005)
                last = target.length == prompt
                yield Round((1,) if last else (), 0, 0, PROMPT, 0.0)

        text = TextRounds(self.rounds, pipeline, steps(), [], [1] * prompt, cancelled, lambda: None)
        with self.rounds.lock:
            self.rounds.add(text)
        return text


@pytest.fixture
def texts(monkeypatch):
    passes = SimpleNamespace(leave=lambda target: None)
    monkeypatch.setattr("edgespec.runtime.decoding.rounds.JointPasses", lambda target: passes)
    return Texts()


def read(text):
    """Reads a text to its first token, as its thread does."""
    while (made := text.next()) is not None:
        if made[0].tokens:
            text.close()
            return


def read_together(texts, waiting):
    """Reads texts on a thread each, which all wait before the first chunk is read."""
    threads = [threading.Thread(target=read, args=(text,)) for text in waiting]
    with texts.rounds.lock:
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(texts.rounds.lock._waiting) < number:
                pass
    for thread in threads:
        thread.join(30)


def test_prompts_are_read_one_after_the_other_the_shortest_first(texts):
    asked = [texts.add("a", 30), texts.add("b", 10), texts.add("c", 20)]
    read_together(texts, asked)
    assert sorted(texts.order) == list("aaabcc")
    assert "".join(texts.order[:3]) == "bcc"  # and then the fourth chunk, which is of the oldest


def test_tokens_that_are_known_need_no_reading(texts):
    read_together(texts, [texts.add("a", 20), texts.add("b", 100, known=90)])
    assert "".join(texts.order) == "baa"


def test_every_fourth_chunk_is_of_the_oldest_prompt(texts):
    asked = [texts.add("long", 70), *(texts.add(str(number), 20) for number in range(6))]
    read_together(texts, asked)
    assert [texts.order[n] for n in (3, 7, 11)] == ["long"] * 3
    assert texts.order[:3] == ["0", "0", "1"]


def test_a_prompt_that_is_cancelled_is_not_read(texts):
    stop = threading.Event()
    short, long = texts.add("short", 10, cancelled=stop.is_set), texts.add("long", 30)
    stop.set()
    assert short.next() is None
    read(long)
    assert texts.order == ["long"] * 3


def test_a_prompt_that_nobody_reads_keeps_nobody_waiting_for_more_than_two_chunks(texts):
    texts.add("left", 50, read=False)
    read(texts.add("other", 60))
    assert sorted(texts.order) == ["left"] * 2 + ["other"] * 6


def test_what_is_ready_is_fetched_while_the_lock_is_held(texts):
    text = texts.add("text", 10)
    with texts.rounds.lock:
        texts.rounds.make(text)
        thread = threading.Thread(target=read, args=(text,))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
        assert not text.ready


def test_a_tree_is_planned_for_the_texts_of_its_pass_and_others_passes_take_time(monkeypatch):
    class Passes:
        def __init__(self, target):
            pass

        def tables(self, targets):
            return [each.table for each in targets]

        def timed(self, asked):
            for number, (target, rows) in enumerate(asked):
                cost = PassCost(target.texts, len(rows.tokens), target.texts * target.seconds)
                yield cost, [(number, {})]

    monkeypatch.setattr("edgespec.runtime.decoding.rounds.JointPasses", Passes)
    rounds, told = Rounds(SimpleNamespace(shapes=SimpleNamespace(rows=(64,))), FairLock()), {}

    def add(name, table, texts, rows, seconds):
        def steps():
            company = yield Round((1,), 0, 0, PROMPT, 0.0)
            while True:
                told[name] = company
                yield Pass(Rows.chain([5] * rows))
                company = yield Round((1, 2), 0, 0, "none", 0.0)

        target = SimpleNamespace(length=1, table=table, texts=texts, seconds=seconds)
        target.known = lambda text: 0
        pipeline = object.__new__(Serial)
        pipeline.target = target
        text = TextRounds(rounds, pipeline, steps(), [], [1], lambda: False, lambda: None)
        rounds.add(text)
        return text

    with rounds.lock:
        texts = [
            add("a", 1024, 2, 3, 0.1), add("b", 1024, 2, 5, 0.1),
            add("long", 8192, 1, 1, 0.4), add("own", None, 1, 2, 0.2),
        ]  # fmt: skip
        for text in texts:
            rounds.make(text)  # reads its prompt
        for _ in range(60):
            for text in texts:
                text.ready.clear()
            rounds.make(texts[0])
    assert [told[name].texts for name in ("a", "b", "long", "own")] == [1, 1, 0, 0]
    assert [told[name].rows for name in ("a", "b", "long", "own")] == [5, 3, 0, 0]
    assert told["a"].seconds == pytest.approx(0.4 + 0.2, rel=0.01)
    assert told["long"].seconds == pytest.approx(0.1 + 0.1 + 0.2, rel=0.01)
    assert told["own"].tokens == pytest.approx(3 * 2, rel=0.01)
    assert told["a"].room == 64 - 5
