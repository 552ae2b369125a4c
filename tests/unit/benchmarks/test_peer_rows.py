"""What a comparison's rows come to: medians, ranges, and how far ahead of the others they are."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

import pytest
from checkout import BENCHMARKS

sys.path.append(str(BENCHMARKS))

peers, rows, turns = map(importlib.import_module, ("peers", "peers.rows", "peers.turns"))
OURS, THEIRS = ("edgespec", "plain"), ("other", "plain")


def made(*seconds, tokens=5, test="code"):
    """Texts whose first token comes after a second, and whose last so much later."""
    return {
        turns.Task(test, number, ((1,),), tokens): peers.Made(
            [[7] * tokens], 1.0, 1.0 + each, 0.5, 0.5 + 2 * each
        )
        for number, each in enumerate(seconds)
    }


def row(test, way, texts):
    return rows.row_of(test, way, texts, texts)


def test_a_row_has_medians_and_ranges_of_texts():
    found = row("code", OURS, made(1.0, 2.0, 4.0))
    assert (found.value, found.least, found.most) == (2.0, 1.0, 4.0)
    assert (found.cpu, found.texts, found.equal, found.joules) == (1000.0, 3, "3 of 3", None)


@pytest.mark.parametrize(("accepted", "a_round"), [(0, 1.0), (6, 4.0), (None, None)])
def test_tokens_a_round_are_told_where_accepted_ones_are(accepted, a_round):
    texts = {task: replace(each, accepted=accepted) for task, each in made(1.0, tokens=9).items()}
    assert row("code", OURS, texts).a_round == a_round


def test_prompts_are_among_the_time_of_texts_at_once():
    assert row("several", OURS, made(4.0)).value == 1.0


def test_waits_are_seconds_and_fewer_are_better():
    ours, theirs = (row("first", way, made(1.0, test="first")) for way in (OURS, THEIRS))
    assert (ours.value, ours.cpu) == (1.0, 0.5)
    assert rows.is_wait("second")
    assert not rows.is_wait("code")
    assert rows.ratio(ours, [theirs], wait=True) == 1.0
    assert rows.ratio(ours, [], wait=True) is None


def test_texts_without_further_tokens_have_no_speed():
    assert row("code", OURS, made(1.0, tokens=1)) is None
    assert row("code", OURS, {}) is None


@pytest.mark.parametrize(("setting", "times"), [("plain", "2.00"), ("auto", "1.00")])
def test_the_overview_tells_ours_to_the_best_of_the_others(setting, times):
    fast = row("code", ("other", "draft"), made(1.0))
    slow = row("code", THEIRS, made(2.0))
    ours = row("code", ("edgespec", setting), made(1.0))
    table = rows.overview({"code": [ours, slow, fast], "chat": []})
    assert table[0] == ["edgespec", setting, 4.0, ""]
    assert table[-1][0].startswith(f"{setting} to the fastest")
    assert table[-1][1:] == ["", times, ""]
    assert rows.peers_of([ours, slow, fast]) == [slow, fast]
    assert rows.peers_of([ours, slow, fast], plain=True) == [slow]
