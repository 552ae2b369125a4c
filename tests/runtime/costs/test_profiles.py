"""Keeping what was measured of calls."""

from __future__ import annotations

import logging
import math
import platform
from dataclasses import replace

import pytest
from cuts import EMBEDDED
from pairs import ENGINES

from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.profiles import OverlapCost, Profile, Spread
from edgespec.runtime.engines import engine
from edgespec.runtime.execution import measurements
from edgespec.system import processors

QUICK = Profile.measured(False, {256: {1: [0.01], 8: [0.02]}})
FULL = Profile.measured(True, {256: {1: [0.01], 8: [0.02]}, 1024: {1: [0.02], 8: [0.04]}})
FASTER = Profile.measured(True, {256: {1: [0.005], 8: [0.01]}})
REFUSED = Profile(False, {}, "it does not take it")

pytestmark = pytest.mark.usefixtures("own_cache")


def at(bundle, role="target", device=ENGINES[0], threads=1):
    return bundle, role, (engine(device),), threads


def test_profiles_are_kept_by_all_that_times_depend_on(monkeypatch):
    profiles.remember(*at(EMBEDDED), QUICK)
    monkeypatch.setattr(platform, "node", lambda: "4f2a9c")  # each container has a name of its own
    assert profiles.recall(*at(EMBEDDED)) == QUICK
    for other in (
        at(EMBEDDED, role="draft"),
        at(EMBEDDED, threads=2),
        at(EMBEDDED, device=ENGINES[1]),
        at(replace(EMBEDDED, manifest=replace(EMBEDDED.manifest, provenance={"other": "one"}))),
    ):
        assert profiles.recall(*other) is None
    with monkeypatch.context() as patch:
        patch.setattr(processors, "model_name", lambda: "another CPU")
        assert profiles.recall(*at(EMBEDDED)) is None
    # Clouds give processors with AMX and without it one name.
    monkeypatch.setattr(measurements, "extensions", lambda: ("avx2", "amx_int8"))
    assert profiles.recall(*at(EMBEDDED)) is None


def test_a_library_of_another_version_is_measured_anew(monkeypatch):
    profiles.remember(*at(EMBEDDED), QUICK)
    found = engine(ENGINES[0])
    monkeypatch.setattr(type(found), "version", "99")
    assert profiles.recall(EMBEDDED, "target", (found,), 1) is None


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        (QUICK, FULL, FULL),
        (FULL, QUICK, FULL),
        (FULL, FASTER, FASTER),
        (REFUSED, QUICK, QUICK),
        (QUICK, REFUSED, REFUSED),
    ],
)
def test_a_quick_profile_never_replaces_a_full_one(own_cache, before, after, kept):
    profiles.remember(*at(EMBEDDED), before)
    profiles.remember(*at(EMBEDDED), after)
    assert replace(profiles.recall(*at(EMBEDDED)), times=1) == kept
    assert len(list((own_cache / "curves").iterdir())) == 1


def test_how_often_it_was_measured_is_counted():
    for times in (1, 2, 3):
        profiles.remember(*at(EMBEDDED), QUICK)
        assert profiles.recall(*at(EMBEDDED)).times == times


def test_a_spread_leaves_out_what_one_call_in_ten_does():
    spread = Spread.of([0.001, *[0.01] * 4, *[0.011] * 5, 5.0])
    assert (spread.low, spread.median, spread.high) == pytest.approx((0.01, 0.011, 0.011))
    assert Spread.of([0.2]) == Spread(0.2, 0.2, 0.2)


def lived(profile, factor, calls):
    """A curve of which texts saw that calls take longer."""
    curve = profile.curve()
    for _ in range(calls):
        curve.observe(1, 256, factor * profile.seconds[256][1])
    return curve


def test_what_texts_saw_is_kept_beside_what_was_measured():
    profiles.remember(*at(EMBEDDED), QUICK)
    profiles.remember_lived(*at(EMBEDDED), (QUICK, lived(QUICK, 2.0, 100)))
    found = profiles.recall(*at(EMBEDDED))
    assert (found.points, found.lived.calls) == (QUICK.points, 100)
    curve = found.lived_curve()
    assert curve.seconds(1, 256) == pytest.approx(0.02, 0.1)
    assert curve.seconds(8, 256) > 0.025  # the machine may be slower
    profiles.remember_lived(*at(EMBEDDED), (found, lived(QUICK, 4.0, 100)))
    again = profiles.recall(*at(EMBEDDED))
    assert again.lived.calls == 200
    assert again.lived_curve().seconds(1, 256) == pytest.approx(0.01 * 8**0.5, 0.1)


def test_what_texts_saw_of_an_earlier_measuring_is_not_kept():
    for new, calls in ((FASTER, 100), (QUICK, 0)):
        profiles.remember(*at(EMBEDDED), new)
        profiles.remember_lived(*at(EMBEDDED), (QUICK, lived(QUICK, 2.0, calls)))
        assert profiles.recall(*at(EMBEDDED)).lived is None


def test_a_new_profile_begins_without_what_texts_saw():
    profiles.remember(*at(EMBEDDED), QUICK)
    profiles.remember_lived(*at(EMBEDDED), (QUICK, lived(QUICK, 2.0, 100)))
    profiles.remember(*at(EMBEDDED), QUICK)
    assert profiles.recall(*at(EMBEDDED)) == replace(QUICK, times=2)


POINT = '{"low": 0.1, "median": 0.1, "high": 0.1}'
DAMAGE = (
    "", "[]", "{}", "\x00", "[" * 99_999,
    '{"full": true, "points": {}}',
    '{"full": 1, "points": {"256": {"1": 0.1}}}',
    '{"full": true, "points": {"256": [1]}}',
    '{"full": true, "points": {"256": {"1": 0.1}}}',  # as earlier versions stored it
    f'{{"full": true, "points": {{"256": {{"1": {POINT.replace("0.1}", "NaN}")}}}}}}}',
    f'{{"full": true, "points": {{"256": {{"1": {POINT.replace("0.1,", "-1,", 1)}}}}}}}',
    f'{{"full": true, "points": {{"x": {{"1": {POINT}}}}}}}',
    f'{{"full": true, "points": {{"256": {{"1": {POINT}}}}}, "times": 0}}',
    *(
        f'{{"full": true, "points": {{"256": {{"1": {POINT}}}}}, "lived": {lived}}}'
        for lived in (
            '{"calls": 0, "seconds": {"1": 0.1}}', '{"calls": 1, "seconds": {}}',
            '{"calls": 1, "seconds": {"1": -1}}', '{"calls": 1, "seconds": {"x": 0.1}}',
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_profile_is_none_and_gives_way(own_cache, damage):
    profiles.remember(*at(EMBEDDED), FULL)
    [file] = (own_cache / "curves").iterdir()
    file.write_text(damage)
    assert profiles.recall(*at(EMBEDDED)) is None
    profiles.remember(*at(EMBEDDED), QUICK)
    assert profiles.recall(*at(EMBEDDED)) == QUICK


@pytest.mark.parametrize("slowdown", [0.5, math.inf, math.nan])
def test_an_impossible_overlap_cost_is_measured_again(slowdown):
    engines = tuple(map(engine, ENGINES))
    profiles.remember_overlap_cost(EMBEDDED, engines, 1, OverlapCost(1.0))
    assert profiles.recall_overlap_cost(EMBEDDED, engines, 1) == OverlapCost(1.0)
    profiles.remember_overlap_cost(EMBEDDED, engines, 1, OverlapCost(slowdown))
    assert profiles.recall_overlap_cost(EMBEDDED, engines, 1) is None


def test_what_cannot_be_stored_is_no_error(own_cache, caplog):
    profiles.remember(*at(EMBEDDED), QUICK)
    [file] = (own_cache / "curves").iterdir()
    file.unlink()
    file.mkdir()
    with caplog.at_level(logging.INFO):
        profiles.remember(*at(EMBEDDED), QUICK)
    assert any("cannot write to the cache folder" in record.message for record in caplog.records)
    assert profiles.recall(*at(EMBEDDED)) is None
    assert list((own_cache / "curves").iterdir()) == [file]
