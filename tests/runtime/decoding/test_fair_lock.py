"""Tests of the fair lock: one thread at a time, in the order of asking."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from edgespec.runtime.decoding.fair_lock import FairLock


def in_line(lock, count):
    """Threads that wait for the lock one after the other, and the order in which they got it."""
    served, threads = [], []

    def work(number):
        with lock:
            served.append(number)

    for number in range(count):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
        while len(lock._waiting) <= number:
            time.sleep(0.001)
    return served, threads


def test_who_asked_first_is_served_first():
    lock = FairLock()
    with lock:
        served, threads = in_line(lock, 6)
        assert served == []
    for thread in threads:
        thread.join(10)
    assert served == list(range(6))


def test_whoever_has_had_a_turn_goes_to_the_end_of_the_line():
    lock, order = FairLock(), []

    def work(name):
        for _ in range(50):
            with lock:
                order.append(name)
                time.sleep(0.0002)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(order) == 100
    first = order.index("a"), order.index("b")
    both = order[max(first) : -1 - min(order[::-1].index("a"), order[::-1].index("b"))]
    # While both want it, neither gets it twice in a row, but for what comes between two wishes.
    assert sum(one != other for one, other in pairwise(both)) > len(both) / 2


def test_one_at_a_time():
    lock, inside, worst = FairLock(), [], []

    def work():
        for _ in range(200):
            with lock:
                inside.append(1)
                worst.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(worst) == {1}
    assert len(worst) == 1600


@pytest.mark.parametrize("handed_over", [False, True])
def test_an_interrupted_wait_keeps_nobody_waiting(monkeypatch, handed_over):
    """As by Ctrl-C, before the lock is passed on or just after."""
    lock, outer = FairLock(), threading.Event()

    class Interrupted:
        def __init__(self):
            self._lock = real()

        def acquire(self):
            if not self._lock.acquire(blocking=False):
                if handed_over:
                    outer.set()
                    self._lock.acquire()
                raise KeyboardInterrupt
            return True

        def release(self):
            self._lock.release()

    real = threading.Lock

    def hold():
        with lock:
            held.set()
            outer.wait(10)

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    served, [before] = in_line(lock, 1)
    line = list(lock._waiting)
    monkeypatch.setattr("edgespec.runtime.decoding.fair_lock.threading.Lock", Interrupted)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    monkeypatch.undo()
    # Who asked before is not let in beside another, and who gave up no longer waits.
    assert list(lock._waiting) == ([] if handed_over else line)
    outer.set()
    holder.join(10)
    before.join(10)
    assert served == [0]

    def take():
        with lock:
            pass

    other = threading.Thread(target=take)
    other.start()
    other.join(10)
    assert not other.is_alive()
