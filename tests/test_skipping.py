"""Trying skip sets on real graphs: agreement, text to try them on, scores, and the command line."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from commandline import fails
from parity import SAME, distance, made

from edgespec import bundle as bundles
from edgespec import sublayers
from edgespec.errors import ExportError, InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.feeds import START, Rows
from edgespec.runtime.model import Model
from edgespec.runtime.paths import Path
from edgespec.runtime.runner import Runner
from edgespec.runtime.text import Tokenizer
from edgespec.skipping import LayerSkipSearch, SearchOptions
from edgespec.trial import DRAFTED_ROWS, TIMED_ROWS, Evaluator, measure_stages
from edgespec.trial_text import (
    GREEDY,
    PIECE,
    SAMPLED,
    WARM_UP,
    Piece,
    openings,
    pieces_of,
    read_text,
)

LAYERS = 4
SETS = ("1a", "1m,2a", "2", "1-3", "3")
QUICK = {"engine": CPU_ENGINES[0], "threads": 1}
PROSE = "The cat sat on the mat and looked at the bird. " * 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Sharp enough that a draft is right now and then."""
    folder = tmp_path_factory.mktemp("skipping") / "checkpoint"
    made(folder, "qwen3", num_hidden_layers=LAYERS, tie_word_embeddings=True)
    return folder


@pytest.fixture(scope="module")
def tried(checkpoint, tmp_path_factory):
    """An evaluator, two pieces of text it has read, and bundles cut for each set."""
    found = {}

    def take(trial, given):
        evaluator = Evaluator(trial.gated, engine(CPU_ENGINES[0]), 1)
        text = Tokenizer.from_folder(trial.gated.path)
        pieces = pieces_of(PROSE, text, 2, "prose")
        found["text"] = evaluator.read(pieces)
        found["evaluator"] = evaluator
        return given

    skip_sets = tuple(map(sublayers.parse, SETS))
    folder = tmp_path_factory.mktemp("tried")
    export_bundle(checkpoint, folder / "gated", skip_search=take, options=ExportOptions("fp32"))
    for number, skipped in enumerate(skip_sets):
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
    bundle, text, skipped = tried[name], tried["text"], sublayers.parse(name)
    model = Model.load(bundle, bundles.TARGET, engine(CPU_ENGINES[0]), 1)
    path = Path.without(bundle.target, skipped)
    monkeypatch.setattr("edgespec.trial.DRAFTED_ROWS", 0)
    begun = [logits.copy() for logits in tried["evaluator"].drafted(text, skipped)]
    monkeypatch.setattr("edgespec.trial.DRAFTED_ROWS", PIECE)
    alone = [logits.copy() for logits in tried["evaluator"].drafted(text, skipped)]
    for number, piece in enumerate(text.pieces):
        for end in (40, 101):
            runner = Runner(model)
            runner.prefill(piece[:end].tolist())
            row = Rows([int(piece[end])], [0], np.ones((1, 1), np.bool_), [START])
            drafted = runner.draft(row, path)["logits"][0]
            assert distance(drafted, begun[number][end]) < SAME
        n = len(piece)
        rows = Rows(piece, range(n), np.tri(n, dtype=np.bool_), range(-1, n - 1))
        drafted = Runner(model).draft(rows, path)["logits"][:n]
        assert distance(drafted, alone[number]) < SAME


def test_a_row_sees_some_drafted_rows(tried):
    """What a trial says lies between the beginning of a draft and all of it."""
    text, skipped = tried["text"], sublayers.parse("1m,2a")
    with pytest.MonkeyPatch.context() as patch:
        found = {}
        for rows in (0, DRAFTED_ROWS, PIECE):
            patch.setattr("edgespec.trial.DRAFTED_ROWS", rows)
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
        rows = Rows(piece, range(len(piece)), np.tri(len(piece), dtype=np.bool_))
        logits = Runner(model).verify(rows)["logits"][: len(piece)].astype(np.float64)
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


# Text to try sets on


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.from_folder(checkpoint)


def test_pieces_come_from_all_over_a_text(tokenizer):
    text = "".join(f"def function_{number}(x):\n    return x + {number}\n" for number in range(300))
    tokens = tokenizer.encode(text)
    pieces = [piece.tokens for piece in pieces_of(text, tokenizer, 4, "text")]
    assert [len(piece) for piece in pieces] == [PIECE] * 4
    places = [
        next(p for p in range(len(tokens)) if tokens[p : p + PIECE] == piece) for piece in pieces
    ]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] > len(tokens) // 2
    assert all(b - a >= PIECE for a, b in pairwise(places))
    # As many as there is room for, and one of a short text.
    assert len(pieces_of(text, tokenizer, 1000, "text")) == len(tokens) // PIECE
    [short] = pieces_of(tokenizer.decode(tokens[:100]), tokenizer, 4, "text")
    assert len(short.tokens) < PIECE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no text in it: give a calibration text"),
        (b" \n\t\n", "no text in it: give a calibration text"),
        (b"caf\xe9", "byte 3 is not UTF-8: give the calibration text as UTF-8"),
    ],
)
def test_files_without_text(tmp_path, content, message):
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"{file}: {message}"):
        read_text(file)


def test_a_text_that_is_too_short(tokenizer):
    with pytest.raises(InputError, match=r"my\.txt: \d+ tokens: 64 are needed"):
        pieces_of("def main():", tokenizer, 4, "my.txt")


def test_a_text_of_another_script_is_warned_of(tokenizer, caplog):
    pieces_of("Привет, мир! " * 40, tokenizer, 2, "russian.txt")
    [record] = caplog.records
    assert record.getMessage().startswith("russian.txt: 1.0")
    assert "tokens a byte" in record.getMessage()
    caplog.clear()
    pieces_of(PROSE, tokenizer, 2, "prose.txt")
    assert not caplog.records


def test_a_text_of_unknown_tokens(tokenizer, monkeypatch, caplog):
    often, rarer = tokenizer.encode("aa b")[0], tokenizer.encode("z")[0]
    monkeypatch.setattr(tokenizer, "unknown_id", often)
    with pytest.raises(InputError, match=r"a\.txt: 100% of its tokens are unknown to the model"):
        pieces_of(tokenizer.decode([often]) * 400, tokenizer, 2, "a.txt")
    monkeypatch.setattr(tokenizer, "unknown_id", rarer)
    pieces_of("the z cat sat z " * 60, tokenizer, 2, "z.txt")
    assert "z.txt: " in caplog.text
    assert "% of its tokens are unknown" in caplog.text


# The search as export runs it


def searched(checkpoint, output, skip_sets=(), **options):
    search = LayerSkipSearch(SearchOptions(**QUICK | {"pieces": 2} | options))
    made = ExportOptions("fp32", skip_sets=skip_sets)
    export_bundle(checkpoint, output, options=made, skip_search=search)
    return bundles.load(output), search


@pytest.fixture(scope="module")
def found(checkpoint, tmp_path_factory):
    output = tmp_path_factory.mktemp("found") / "bundle"
    told = []
    options = SearchOptions(**QUICK, pieces=2, evaluations=12)
    search = LayerSkipSearch(options, lambda done, total: told.append((done, total)))
    export_bundle(checkpoint, output, options=ExportOptions("fp32"), skip_search=search)
    return bundles.load(output), search, told


def test_a_bundle_gets_the_sets_that_were_found(found):
    bundle, search, told = found
    sets = bundle.manifest.skip_sets
    assert told == [(done, 12) for done in range(1, 13)]
    assert 2 <= len(sets) <= 4
    speeds = [each.score.tokens_per_second for each in sets]
    assert speeds == sorted(speeds, reverse=True)
    for each in sets:
        Path.without(bundle.target, each.skipped)  # the stages suit it
        assert 0 <= each.score.sampled.agreement <= 1
        assert 0 <= each.score.greedy.agreement <= 1
        assert each.score.greedy != each.score.sampled
        assert 0 < each.score.draft_cost < 1.1
        assert each.score.engine == CPU_ENGINES[0]
        assert each.score.plain_tokens_per_second == sets[0].score.plain_tokens_per_second
    assert f"{len(sets)} kept" in search.summary
    assert "12 sets tried" in search.summary
    assert sets[0].name in search.summary
    files = {path.name for path in bundle.path.iterdir()} - {"manifest.json"}
    assert files == set(bundle.manifest.files)


def test_a_bundle_with_skip_sets_is_hardly_larger(tmp_path):
    """Of a model that is not tiny: graphs grow with stages, weights don't."""
    made(
        tmp_path / "checkpoint", "llama", num_hidden_layers=6, hidden_size=256,
        intermediate_size=1024, vocab_size=331,
    )  # fmt: skip
    sizes = {}
    for name, skip_sets in (("with", ((2, 3), (5, 6, 7), (3, 10, 11))), ("without", ())):
        options = ExportOptions("fp32", skip_sets=skip_sets)
        report = export_bundle(tmp_path / "checkpoint", tmp_path / name, options=options)
        sizes[name] = report.bundle_bytes
    assert sizes["without"] < sizes["with"] <= 1.01 * sizes["without"]


def test_given_sets_are_scored_and_the_best_comes_first(checkpoint, tmp_path):
    given = tuple(map(sublayers.parse, ("1-3", "2m", "1m,2a")))
    bundle, search = searched(checkpoint, tmp_path / "bundle", given)
    sets = bundle.manifest.skip_sets
    assert {each.skipped for each in sets} == set(given)
    assert all(each.score is not None for each in sets)
    speeds = [each.score.tokens_per_second for each in sets]
    assert speeds == sorted(speeds, reverse=True)
    assert "3 sets tried" in search.summary
    told = re.search(r"against ([\d.]+) of plain decoding, ([\d.]+) with", search.summary)
    uncut, cut = map(float, told.groups())
    assert uncut >= cut == round(sets[0].score.plain_tokens_per_second, 1)
    best = max(sets[0].score.greedy.tokens_per_second, sets[0].score.sampled.tokens_per_second)
    assert "none promises more" in search.summary or best > uncut - 0.1  # it is rounded


def test_scores_are_of_text_that_was_not_searched(checkpoint, tmp_path, monkeypatch):
    texts = []
    agreements = Evaluator.agreements

    def watched(self, text, skipped):
        texts.append((text, skipped))
        return agreements(self, text, skipped)

    monkeypatch.setattr(Evaluator, "agreements", watched)
    bundle, _ = searched(checkpoint, tmp_path / "bundle", evaluations=6)
    sets = [each.skipped for each in bundle.manifest.skip_sets]
    scored = texts[-len(sets) :]
    assert sorted(skipped for _, skipped in scored) == sorted(sets)
    [held_out] = {id(text) for text, _ in scored}
    assert held_out not in {id(text) for text, _ in texts[: -len(sets)]}
    used = [
        tuple(piece) for text in {id(t): t for t, _ in texts[2:]}.values() for piece in text.pieces
    ]
    assert len(used) == len(set(used)) == 4


def test_a_model_of_one_layer_has_nothing_to_leave_out(tmp_path, caplog):
    made(tmp_path / "checkpoint", "llama", num_hidden_layers=1)
    bundle, search = searched(tmp_path / "checkpoint", tmp_path / "bundle")
    assert bundle.manifest.skip_sets == ()
    assert search.summary == ""
    assert "no layer can be left out of a model that has 1" in caplog.text


def test_stages_the_user_wants_are_kept(checkpoint, tmp_path):
    search = LayerSkipSearch(SearchOptions(**QUICK, pieces=2, evaluations=6))
    options = ExportOptions("fp32", cut_layers=(2,))
    export_bundle(checkpoint, tmp_path / "bundle", options=options, skip_search=search)
    starts = {stage.start for stage in bundles.load(tmp_path / "bundle").target.stages}
    assert 4 in starts


def test_a_search_that_fails_leaves_nothing_behind(checkpoint, tmp_path):
    def fail(trial, given):
        trial.cut([3])
        raise ExportError("no more")

    with pytest.raises(ExportError, match="no more"):
        export_bundle(checkpoint, tmp_path / "bundle", skip_search=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_the_model_cannot_read_is_warned_of(checkpoint, tmp_path, caplog):
    """The random model cannot read anything."""
    file = tmp_path / "text.txt"
    file.write_text(PROSE)
    searched(checkpoint, tmp_path / "bundle", calibration=file, evaluations=6)
    assert f"{file}: its tokens surprise the model by" in caplog.text


def test_a_budget_that_is_none():
    for budget in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="layer-skip budget"):
            SearchOptions(budget=budget)


def test_a_piece_alone_has_but_one_kind_of_text():
    with pytest.raises(InputError, match="pieces is 1: give 2 or more"):
        SearchOptions(pieces=1)


# The command line


def test_export_searches_and_inspect_shows(cli, checkpoint, tmp_path, caplog):
    output, text = tmp_path / "bundle", tmp_path / "text.txt"
    text.write_text(PROSE)
    words = ["--layer-skip=auto", "--layer-skip-budget=2", f"--calibration={text}"]
    result = cli("export", checkpoint, "-o", output, "--precision=fp32", *words)
    assert result.code == 0
    assert result.out.splitlines()[1].startswith("layer-skip: ")
    sets = json.loads(cli("inspect", output, "--json").out)["skip_sets"]
    shown = cli("inspect", output).out
    for each in sets:
        assert sublayers.describe(each["skipped"]) in shown
        for kind in ("greedy", "sampled"):
            assert f"{each['score'][kind]['tokens_per_second']:.1f}" in shown
            assert f"{each['score'][kind]['agreement']:.0%}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_export_with_given_sets(cli, checkpoint, tmp_path):
    output = tmp_path / "bundle"
    result = cli(
        "export", checkpoint, "-o", output, "--layer-skip=1m,2a/3", "--layer-skip-budget=1"
    )
    assert result.code == 0
    assert "2 sets tried" in result.out
    sets = json.loads(cli("inspect", output, "--json").out)["skip_sets"]
    assert {tuple(each["skipped"]) for each in sets} == {(3, 4), (6, 7)}
    assert "layer-skip drafts" in cli("inspect", output).out


def test_export_without_layer_skip_shows_none(cli, checkpoint, tmp_path):
    result = cli("export", checkpoint, "-o", tmp_path / "bundle", "--layer-skip=none")
    assert "layer-skip" not in result.out
    assert "layer-skip" not in cli("inspect", tmp_path / "bundle").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layer-skip=all"], "'all' names no sublayers"),
        (["--layer-skip=0"], "skip set 0: layer 0 cannot be left out"),
        (["--layer-skip=1m/4"], "skip set 4: the model has layers 0 to 3"),
        (["--calibration=text.txt"], "--calibration is for layer-skip drafts"),
        (["--layer-skip-budget=5"], "--layer-skip-budget is for layer-skip drafts"),
        (["--layer-skip=auto", "--layer-skip-budget=0"], "budget is 0.0: give seconds above 0"),
        (["--layer-skip=auto", "--calibration=missing.txt"], "missing.txt: No such file"),
    ],
)
def test_export_refuses(cli, checkpoint, tmp_path, words, message):
    fails(cli("export", checkpoint, "-o", tmp_path / "bundle", *words), message)
    assert list(tmp_path.iterdir()) == []


def test_a_calibration_text_that_is_too_short_ends_the_export(cli, checkpoint, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("too short")
    words = ["--layer-skip=auto", f"--calibration={text}", "--layer-skip-budget=1"]
    fails(cli("export", checkpoint, "-o", tmp_path / "bundle", *words), "tokens: 64 are needed")
    assert list(tmp_path.iterdir()) == [text]
