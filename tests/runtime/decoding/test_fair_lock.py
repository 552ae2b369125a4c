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
        while len(lock._first) <= number:
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
    line = list(lock._first)
    monkeypatch.setattr("edgespec.runtime.decoding.fair_lock.threading.Lock", Interrupted)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    monkeypatch.undo()
    # Who asked before is not let in beside another, and who gave up no longer waits.
    assert list(lock._first) == ([] if handed_over else line)
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


def asking(lock, needless, found):
    """A thread that waits for the lock unless that is needless; notes whether it was granted."""

    def work():
        with lock.unless(needless) as held:
            found.append(held)

    thread, before = threading.Thread(target=work), len(lock._waiting)
    thread.start()
    while len(lock._waiting) == before:
        time.sleep(0.001)
    return thread


def test_who_needs_the_lock_no_more_goes_on_while_it_is_held():
    lock, found, done = FairLock(), [], threading.Event()
    with lock:
        threads = [asking(lock, needless, found) for needless in (done.is_set, lambda: False)]
        lock.look()
        assert len(lock._waiting) == 2
        done.set()
        lock.look()
        threads[0].join(10)
        assert found == [False]
    threads[1].join(10)
    assert found == [False, True]


def test_a_release_lets_all_go_who_need_the_lock_no_more():
    lock, found, done = FairLock(), [], threading.Event()
    with lock:
        threads = [asking(lock, needless, found) for needless in (lambda: False, done.is_set)]
        done.set()
    for thread in threads:
        thread.join(10)
    assert sorted(found) == [False, True]
    with lock.unless(done.is_set) as held:
        assert not held
    with lock.unless(lambda: False) as held:  # nobody kept it
        assert held


def test_a_plain_request_comes_before_those_that_may_turn_out_needless():
    lock, order = FairLock(), []
    with lock:
        later = asking(lock, lambda: False, order)
        served, threads = in_line(lock, 1)
        both = [*lock._first, *lock._waiting]
        lock._pass_on()  # what a release does, without its look at the threads
        assert [each.granted for each in both] == [True, False]
        threads[0].join(10)
        later.join(10)
        lock._taken = True
    assert (served, order) == ([0], [True])


def test_an_interrupted_wait_that_was_needless_grants_the_lock_to_nobody(monkeypatch):
    """The thread was let go without the lock, and then interrupted: the holder keeps it."""
    lock, done = FairLock(), threading.Event()
    real = threading.Lock

    class Interrupted:
        def __init__(self):
            self._lock = real()

        def acquire(self):
            if not self._lock.acquire(blocking=False):
                done.set()
                lock.look()
                raise KeyboardInterrupt
            return True

        def release(self):
            self._lock.release()

    with lock:
        monkeypatch.setattr("edgespec.runtime.decoding.fair_lock.threading.Lock", Interrupted)
        with pytest.raises(KeyboardInterrupt), lock.unless(done.is_set):
            pass
        monkeypatch.undo()
        assert lock._taken
    assert not lock._taken
