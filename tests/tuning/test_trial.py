"""Trying skip sets on real graphs: agreement, the rows a draft sees, and the target's own text."""

from __future__ import annotations

import numpy as np
import pytest
from parity import SAME, distance
from skips import MODEL, PROSE

from edgespec import bundle as bundles
from edgespec.bundle.sublayers import Sublayers, parse
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.feeds import START, Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.paths import StagePath
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning.skip_trials import DRAFTED_ROWS, TIMED_ROWS, Evaluator, measure_stages
from edgespec.tuning.texts import GREEDY, PIECE, SAMPLED, WARM_UP, Piece, openings, pieces_of

SETS = ("1a", "1m,2a", "2", "1-3", "3")


@pytest.fixture(scope="module")
def tried(saved_checkpoint, tmp_path_factory):
    """An evaluator, two pieces of text it has read, and bundles cut for each set."""
    found = {}

    def take(trial, given):
        evaluator = Evaluator(trial.gated, engine(CPU_ENGINES[0]), 1)
        text = Tokenizer.from_folder(trial.gated.path)
        pieces = pieces_of(PROSE, text, 2, "prose")
        found["text"] = evaluator.read(pieces)
        found["evaluator"] = evaluator
        return given

    checkpoint = saved_checkpoint(**MODEL)
    folder = tmp_path_factory.mktemp("tried")
    export_bundle(checkpoint, folder / "gated", skip_search=take, options=ExportOptions("fp32"))
    for number, skipped in enumerate(SETS):
        options = ExportOptions("fp32", skip_sets=(skipped,))
        export_bundle(checkpoint, folder / str(number), options=options)
        found[SETS[number]] = bundles.load(folder / str(number))
    return found


def test_nothing_left_out_agrees_everywhere(tried):
    text = tried["text"]
    agreements = tried["evaluator"].agreements(text, ())
    for kind in (agreements.greedy, agreements.sampled):
        assert [len(agreed) for agreed in kind] == [len(p) - WARM_UP for p in text.pieces]
    assert agreements.share == 1
    found = tried["evaluator"].agreements(text, (2, 3, 4, 5))
    assert 0 < np.concatenate(found.greedy).mean() < 1
    assert 0 < np.concatenate(found.sampled).mean() < 1
    assert found.share == pytest.approx(np.concatenate([*found.greedy, *found.sampled]).mean())


def test_a_piece_is_judged_as_it_was_made(tried):
    """Greedily or under noise, which is that of its own place; what others wrote, in both ways."""
    evaluator, tokens = tried["evaluator"], list(range(5, 60))
    pieces = [Piece(tokens, temperature) for temperature in (GREEDY, SAMPLED, SAMPLED, None)]
    text = evaluator.read(pieces)
    kinds = [list(choices) for choices in text.choices]
    assert kinds == [[GREEDY], [SAMPLED], [SAMPLED], [GREEDY, SAMPLED]]
    greedy, *sampled = [next(iter(choices.values())).tolist() for choices in text.choices[:3]]
    assert greedy == text.choices[3][GREEDY].tolist()
    assert len({tuple(each) for each in (greedy, *sampled)}) == 3
    found = evaluator.agreements(text, (2, 3))
    assert (len(found.greedy), len(found.sampled)) == (2, 3)
    assert (found.greedy[0] == found.greedy[1]).all()


def test_draft_and_target_are_sampled_under_the_same_noise(tried):
    """Under noise of its own, even the target itself would often choose something else."""
    evaluator, [tokens, _] = tried["evaluator"], tried["text"].pieces
    text = evaluator.read([Piece(tokens, SAMPLED), Piece(tokens, SAMPLED)])
    first, second = (choices[SAMPLED] for choices in text.choices)
    assert 0 < (first == second).mean() < 0.9
    found = evaluator.agreements(text, ())
    assert found.greedy == []
    assert all(agreed.all() for agreed in found.sampled)


@pytest.mark.parametrize("name", SETS)
def test_a_trial_computes_what_the_cut_stages_do(tried, name, monkeypatch):
    """At the beginning of a draft, all before it the target's, and if all is the draft's."""
    bundle, text = tried[name], tried["text"]
    skipped = bundle.target.layout.named(parse(name))
    model = Model.load(bundle, bundles.TARGET, engine(CPU_ENGINES[0]), 1)
    path = StagePath.without(bundle.target, skipped)
    monkeypatch.setattr("edgespec.tuning.skip_trials.DRAFTED_ROWS", 0)
    begun = [logits.copy() for logits in tried["evaluator"].drafted(text, skipped)]
    monkeypatch.setattr("edgespec.tuning.skip_trials.DRAFTED_ROWS", PIECE)
    alone = [logits.copy() for logits in tried["evaluator"].drafted(text, skipped)]
    for number, piece in enumerate(text.pieces):
        for end in (40, 101):
            runner = Runner(model)
            runner.prefill(piece[:end].tolist())
            row = Rows([int(piece[end])], [0], np.ones((1, 1), np.bool_), [START])
            drafted = runner.draft(row, path)["logits"][0]
            assert distance(drafted, begun[number][end]) < SAME
        n = model.shapes.rows[-1]  # a draft is no longer than a call
        assert WARM_UP < n <= len(piece)
        drafted = Runner(model).draft(Rows.chain(piece[:n]), path)["logits"][:n]
        assert distance(drafted, alone[number][:n]) < SAME


def test_a_row_sees_some_drafted_rows(tried):
    """What a trial says lies between the beginning of a draft and all of it."""
    text, skipped = tried["text"], Sublayers.pairs(4).named(parse("1m,2a"))
    with pytest.MonkeyPatch.context() as patch:
        found = {}
        for rows in (0, DRAFTED_ROWS, PIECE):
            patch.setattr("edgespec.tuning.skip_trials.DRAFTED_ROWS", rows)
            [found[rows], _] = [each.copy() for each in tried["evaluator"].drafted(text, skipped)]
    assert 0 < DRAFTED_ROWS < PIECE
    for rows, other in ((DRAFTED_ROWS, 0), (DRAFTED_ROWS, PIECE)):
        # The first rows have nothing before them that could differ.
        same = [distance(a, b) < SAME for a, b in zip(found[rows], found[other], strict=True)]
        assert same[0]
        assert not all(same)


def test_choices_and_surprise_are_the_targets(tried):
    text = tried["text"]
    bundle = tried[SETS[0]]
    model = Model.load(bundle, bundles.TARGET, engine(CPU_ENGINES[0]), 1)
    surprises = []
    for piece, choices in zip(text.pieces, text.choices, strict=True):
        scored = Runner(model).score(piece.tolist(), 1)  # one token after the other
        logits = np.vstack([each["logits"][:1].astype(np.float64) for each in scored])
        assert (logits.argmax(1) == choices[GREEDY]).all()
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        surprises += [-logs[row, piece[row + 1]] for row in range(len(piece) - 1)]
    assert text.surprise == pytest.approx(np.mean(surprises), rel=1e-4)


def test_texts_are_continued_as_if_each_were_alone(tried):
    """All in the same calls; at temperature 0 each is the target's own."""
    bundle = tried[SETS[0]]
    tokenizer = Tokenizer.from_folder(bundle.path)
    begun = openings(tokenizer, 20, 8)
    assert [one.temperature for one in begun] == [0.0, 0.0, 0.8, 0.8] * 2
    made = tried["evaluator"].continued(begun, 40, [7], seed=3)
    model = Model.load(bundle, bundles.TARGET, engine(CPU_ENGINES[0]), 1)
    assert [one.temperature for one in made] == [one.temperature for one in begun]
    for opening, text in zip(begun, [one.tokens for one in made], strict=True):
        assert len(text) == 40
        assert text[:20] == opening.tokens
        assert 7 not in text[20:]
        runner, expected = Runner(model), list(opening.tokens)
        while len(expected) < 40:
            logits = runner.prefill(expected[runner.length :])["logits"][0].copy()
            logits[7] = -np.inf
            expected.append(int(logits.argmax()))
        assert (text == expected) == (opening.temperature == 0)
    assert made == tried["evaluator"].continued(begun, 40, [7], seed=3)


def test_no_two_openings_are_alike(tried):
    begun = openings(Tokenizer.from_folder(tried[SETS[0]].path), 24, 16)
    assert len({(tuple(one.tokens), one.temperature) for one in begun}) == 16


def test_stages_are_timed(tried):
    times = measure_stages(tried["1m,2a"], engine(CPU_ENGINES[0]), 1)
    assert times.borders == (0, 3, 5, 9)
    assert times.rows == TIMED_ROWS
    assert times.seconds.shape == (len(TIMED_ROWS), 3)
    assert (times.seconds > 0).all()
    assert times.host > 0
