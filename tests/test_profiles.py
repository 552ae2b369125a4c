"""Keeping what was measured of calls."""

from __future__ import annotations

import logging
import math
import platform
from dataclasses import replace

import pytest
from pairs import ENGINES

from edgespec.runtime import processors, profiles
from edgespec.runtime.engines import engine
from edgespec.runtime.profiles import Pairing, Profile

QUICK = Profile.measured(False, {256: {1: 0.01, 8: 0.02}})
FULL = Profile.measured(True, {256: {1: 0.01, 8: 0.02}, 1024: {1: 0.02, 8: 0.04}})
FASTER = Profile.measured(True, {256: {1: 0.005, 8: 0.01}})
REFUSED = Profile(False, {}, "it does not take it")

pytestmark = pytest.mark.usefixtures("curves")


def at(bundle, role="target", device=ENGINES[0], threads=1):
    return bundle, role, (engine(device),), threads


def test_profiles_are_kept_by_all_that_times_depend_on(embedded, monkeypatch):
    profiles.remember(*at(embedded), QUICK)
    monkeypatch.setattr(platform, "node", lambda: "4f2a9c")  # each container has a name of its own
    assert profiles.recall(*at(embedded)) == QUICK
    for other in (
        at(embedded, role="draft"),
        at(embedded, threads=2),
        at(embedded, device=ENGINES[1]),
        at(replace(embedded, manifest=replace(embedded.manifest, provenance={"other": "one"}))),
    ):
        assert profiles.recall(*other) is None
    with monkeypatch.context() as patch:
        patch.setattr(processors, "model_name", lambda: "another CPU")
        assert profiles.recall(*at(embedded)) is None
    # Clouds give processors with AMX and without it one name.
    monkeypatch.setattr(profiles, "extensions", lambda: ("avx2", "amx_int8"))
    assert profiles.recall(*at(embedded)) is None


def test_a_library_of_another_version_is_measured_anew(embedded, monkeypatch):
    profiles.remember(*at(embedded), QUICK)
    found = engine(ENGINES[0])
    monkeypatch.setattr(type(found), "version", "99")
    assert profiles.recall(embedded, "target", (found,), 1) is None


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
def test_a_quick_profile_never_replaces_a_full_one(embedded, curves, before, after, kept):
    profiles.remember(*at(embedded), before)
    profiles.remember(*at(embedded), after)
    assert profiles.recall(*at(embedded)) == kept
    assert len(list(curves.iterdir())) == 1


DAMAGE = (
    "", "[]", "{}", "\x00", "[" * 99_999,
    '{"full": true, "points": {}}',
    '{"full": 1, "points": {"256": {"1": 0.1}}}',
    '{"full": true, "points": {"256": [1]}}',
    '{"full": true, "points": {"256": {"1": NaN}}}',
    '{"full": true, "points": {"x": {"1": 0.1}}}',
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_profile_is_none_and_gives_way(embedded, curves, damage):
    profiles.remember(*at(embedded), FULL)
    [file] = curves.iterdir()
    file.write_text(damage)
    assert profiles.recall(*at(embedded)) is None
    profiles.remember(*at(embedded), QUICK)
    assert profiles.recall(*at(embedded)) == QUICK


@pytest.mark.parametrize("slowdown", [0.5, math.inf, math.nan])
def test_a_pairing_that_cannot_be_is_measured_again(embedded, slowdown):
    engines = tuple(map(engine, ENGINES))
    profiles.remember_pairing(embedded, engines, 1, Pairing(1.0))
    assert profiles.recall_pairing(embedded, engines, 1) == Pairing(1.0)
    profiles.remember_pairing(embedded, engines, 1, Pairing(slowdown))
    assert profiles.recall_pairing(embedded, engines, 1) is None


def test_what_cannot_be_stored_is_no_error(embedded, curves, caplog):
    profiles.remember(*at(embedded), QUICK)
    [file] = curves.iterdir()
    file.unlink()
    file.mkdir()
    with caplog.at_level(logging.INFO):
        profiles.remember(*at(embedded), QUICK)
    assert any("nothing is kept in" in record.message for record in caplog.records)
    assert profiles.recall(*at(embedded)) is None
    assert list(curves.iterdir()) == [file]
