"""Measuring calls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from cuts import EMBEDDED
from pairs import ENGINES

from edgespec.runtime.costs import timing as profiling
from edgespec.runtime.costs.profiles import Profile
from edgespec.runtime.costs.timing import measure, shapes

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


class Made(list):
    """A model that remembers its runners."""

    role = SimpleNamespace(vocab_size=331)


def fake_measure(monkeypatch, rows, capacities):
    made = Made()
    monkeypatch.setattr(profiling, "Runner", FakeRunner)
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: made[0].clock if made else 0.0)
    points = {}
    for capacity, turn in measure(made, dict.fromkeys(capacities, rows), range(max(rows))):
        for n, seconds in turn.items():
            points.setdefault(capacity, {}).setdefault(n, []).extend(seconds)
    return Profile.measured(False, points).seconds, made[0]


def test_only_calls_that_repeat_a_shape_count(monkeypatch):
    points, runner = fake_measure(monkeypatch, (1, 8, 32), (256, 1024))
    for capacity, by_rows in points.items():
        for n, seconds in by_rows.items():
            assert seconds == pytest.approx(n * capacity * 1e-6)
    assert list(points) == [256, 1024]
    assert runner.calls[0] == (1, 256)


@pytest.mark.parametrize("more", [0.001, -2e-4])
def test_what_few_turns_meet_does_not_count(monkeypatch, more):
    """Neither what else the machine does, nor luck."""
    verify = FakeRunner.verify

    def now_and_then(runner, rows):
        verify(runner, rows)
        runner.clock += more if 30 <= len(runner.calls) < 60 else 0

    monkeypatch.setattr(FakeRunner, "verify", now_and_then)
    points, _ = fake_measure(monkeypatch, (1, 8, 32), (256,))
    assert points[256] == pytest.approx({n: n * 256e-6 for n in (1, 8, 32)})


def test_numbers_of_rows_take_turns(monkeypatch):
    _, runner = fake_measure(monkeypatch, (1, 8, 32), (256,))
    timed = runner.calls[3:]
    changes = [call for call, before in zip(timed, [None, *timed], strict=False) if call != before]
    assert [n for n, _ in changes[:6]] == [1, 8, 32, 1, 8, 32]
    assert len(changes) // 3 >= 2


def test_long_calls_are_not_repeated(monkeypatch):
    monkeypatch.setattr(profiling, "_LONG_CALL", 32 * 256e-6)
    points, runner = fake_measure(monkeypatch, (1, 32), (256,))
    assert points[256][1] == pytest.approx(256e-6)
    assert points[256][32] == pytest.approx(32 * 256e-6 + CHANGE)
    assert runner.calls[2:7] == [(1, 256)] * 3 + [(32, 256), (1, 256)]


def test_one_long_turn_is_enough(monkeypatch):
    monkeypatch.setattr(profiling, "_LONG_CALL", 0.0)
    monkeypatch.setattr(profiling, "_LONG", 33 * 256e-6)
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
    found = shapes(replace(EMBEDDED.target, context_length=context), full)
    if full:
        assert found == dict.fromkeys(capacities, (1, 2, 4, 8, 16, 32))
    else:  # at two capacities, in order to know what further rows of the cache cost
        far = {min(capacities[-1], 2048): (1, 8)} if context > 256 else {}
        assert found == {256: (1, 2, 4, 8, 32), **far}
    assert list(found) == sorted(found)


def test_a_text_is_as_long_as_the_cache_allows(pairs, monkeypatch):
    monkeypatch.setattr(profiling, "_SECONDS", 0.0)
    model = pairs.llm("llama", ENGINES[0], "none").target
    seen = set()
    [executable] = model.executables
    run = executable.run

    def watched(feeds, cache):
        visible = (feeds["attention_bias"] == 0).sum(axis=-1).min() - 1  # and the first row itself
        seen.add((cache.capacity, len(feeds["input_ids"]), int(cache.capacity - visible)))
        return run(feeds, cache)

    monkeypatch.setattr(executable, "run", watched)
    points = dict(measure(model, {256: (1, 4), 384: (1, 4)}, range(4)))
    rows = [model.shapes.row_bucket(n) for n in (1, 4)]
    assert seen == {(capacity, n, 4) for capacity in (256, 384) for n in rows}
    assert all(min(seconds) > 0 for by_rows in points.values() for seconds in by_rows.values())
