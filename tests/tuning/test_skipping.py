"""The search for skip sets as export runs it: what a bundle gets, and the command line."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from commandline import fails
from parity import devices, made
from skips import MODEL, PROSE

from edgespec import bundle as bundles
from edgespec.bundle.sublayers import Sublayers
from edgespec.errors import ExportError, InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.export.skipping.costs import StageTimes
from edgespec.runtime.engines import CPU_ENGINES
from edgespec.runtime.execution.paths import StagePath
from edgespec.tuning.skip_trials import TIMED_ROWS, Evaluator, measure_stages
from edgespec.tuning.skipping import _OPENING, LayerSkipSearch, SearchOptions

pytestmark = pytest.mark.slow

QUICK = {"engine": CPU_ENGINES[0], "threads": 1}


@pytest.fixture(scope="module")
def checkpoint(saved_checkpoint):
    return saved_checkpoint(**MODEL)


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


def test_an_engine_that_a_platform_lacks_is_not_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "edgespec.runtime.engines.cpu.openvino", None)
    assert LayerSkipSearch(SearchOptions()).engine.name == CPU_ENGINES[0]


def test_a_bundle_gets_the_sets_that_were_found(found):
    bundle, search, told = found
    sets = bundle.manifest.skip_sets
    assert told == [(done, 12) for done in range(1, 13)]
    assert 2 <= len(sets) <= 4
    speeds = [each.score.tokens_per_second for each in sets]
    assert speeds == sorted(speeds, reverse=True)
    for each in sets:
        StagePath.without(bundle.target, each.skipped)  # the stages suit it
        assert 0 <= each.score.sampled.agreement <= 1
        assert 0 <= each.score.greedy.agreement <= 1
        assert each.score.greedy != each.score.sampled
        assert 0 < each.score.draft_cost < 1.1
        assert each.score.engine == CPU_ENGINES[0]
        assert each.score.plain_tokens_per_second == sets[0].score.plain_tokens_per_second
    assert f"{len(sets)} kept" in search.summary
    assert "12 sets tried" in search.summary
    assert bundle.target.layout.describe(sets[0].skipped) in search.summary
    files = {path.name for path in bundle.path.iterdir()} - {"manifest.json"}
    assert files == set(bundles.used_files(bundle.manifest))


def test_a_bundle_with_skip_sets_is_hardly_larger(tmp_path):
    """Of a model that is not tiny: graphs grow with stages, weights don't."""
    made(
        tmp_path / "checkpoint", "llama", num_hidden_layers=6, hidden_size=256,
        intermediate_size=1024, vocab_size=331,
    )  # fmt: skip
    sizes = {}
    for name, skip_sets in (("with", ("1", "2m,3", "1m,5")), ("without", ())):
        options = ExportOptions("fp32", skip_sets=skip_sets)
        report = export_bundle(tmp_path / "checkpoint", tmp_path / name, options=options)
        sizes[name] = report.bundle_bytes
    assert sizes["without"] < sizes["with"] <= 1.01 * sizes["without"]


def test_given_sets_are_scored_and_the_best_comes_first(checkpoint, tmp_path):
    given = ("1-3", "2m", "1m,2a")
    bundle, search = searched(checkpoint, tmp_path / "bundle", given)
    sets = bundle.manifest.skip_sets
    assert {bundle.target.layout.describe(each.skipped) for each in sets} == set(given)
    assert all(each.score is not None for each in sets)
    speeds = [each.score.tokens_per_second for each in sets]
    assert speeds == sorted(speeds, reverse=True)
    assert "3 sets tried" in search.summary
    told = re.search(r"plain decoding has ([\d.]+), or ([\d.]+) with", search.summary)
    uncut, cut = map(float, told.groups())
    assert uncut >= cut == round(sets[0].score.plain_tokens_per_second, 1)
    best = max(sets[0].score.greedy.tokens_per_second, sets[0].score.sampled.tokens_per_second)
    assert "no set is expected to beat" in search.summary or best > uncut - 0.1  # it is rounded


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


@pytest.mark.parametrize(("budget", "count"), [(60.0, 4), (1e-3, 0)])
def test_the_models_own_text_has_no_ends_and_no_padding(tmp_path, monkeypatch, budget, count):
    """Ours is taken where there is no time for it. Some configs name an end that is no token."""
    pieces, read = [], Evaluator.read

    def watched(self, given):
        pieces.extend(given)
        return read(self, given)

    monkeypatch.setattr(Evaluator, "read", watched)
    ends = (5000, *range(100, 200))
    made(tmp_path / "checkpoint", "llama", vocab_size=384, eos_token_id=list(ends))
    options = {"evaluations": 2, "budget": budget}
    bundle, _ = searched(tmp_path / "checkpoint", tmp_path / "bundle", **options)
    assert bundle.target.eos_ids == ends
    assert bundle.manifest.skip_sets
    own = [piece for piece in pieces if piece.temperature is not None]
    assert len(own) == count
    written = {token for piece in own for token in piece.tokens[_OPENING:]}
    assert not written & {0, *ends, *range(331, 384)}


def test_scores_are_of_the_stages_that_the_bundle_gets(checkpoint, tmp_path, monkeypatch):
    """Those of all sets and of the user; here each sublayer takes a millisecond, and each call."""
    measured = []

    def stated(bundle, engine, threads):
        stages = bundle.target.stages
        measured.append([stage.start for stage in stages])
        borders = (*measured[-1], stages[-1].stop)
        seconds = np.tile(1e-3 * (np.diff(borders) + 1), (len(TIMED_ROWS), 1))
        return StageTimes(borders, TIMED_ROWS, seconds, 0.0)

    monkeypatch.setattr("edgespec.tuning.skipping.measure_stages", stated)
    search = LayerSkipSearch(SearchOptions(**QUICK, pieces=2))
    options = ExportOptions("fp32", cut_layers=(1,), skip_sets=("2m,3a", "1m"))
    export_bundle(checkpoint, tmp_path / "bundle", options=options, skip_search=search)
    bundle = bundles.load(tmp_path / "bundle")
    starts = [stage.start for stage in bundle.target.stages]
    assert measured[-1] == starts == [0, 2, 3, 4, 5, 7]
    for each in bundle.manifest.skip_sets:
        assert each.score.plain_tokens_per_second == pytest.approx(1000 / (9 + 6), abs=1e-3)


@devices
def test_the_faster_engine_is_measured_and_scored(checkpoint, tmp_path, monkeypatch, device):
    def measured(bundle, engine, threads):
        times = measure_stages(bundle, engine, threads)
        return times if engine.name == device else replace(times, seconds=100 * times.seconds)

    monkeypatch.setattr("edgespec.tuning.skipping.measure_stages", measured)
    bundle, _ = searched(checkpoint, tmp_path / "bundle", ("1",), engine="cpu")
    assert bundle.manifest.skip_sets[0].score.engine == device


def test_a_search_that_fails_leaves_nothing_behind(checkpoint, tmp_path):
    def fail(trial, given):
        trial.cut([3])
        raise ExportError("no more")

    with pytest.raises(ExportError, match="no more"):
        export_bundle(checkpoint, tmp_path / "bundle", skip_search=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("known", [False, True])
def test_a_text_that_the_model_cannot_read_is_warned_of(
    checkpoint, tmp_path, monkeypatch, caplog, known
):
    """The random model cannot read anything."""
    read = Evaluator.read
    if known:
        monkeypatch.setattr(
            Evaluator, "read", lambda self, pieces: replace(read(self, pieces), surprise=3.0)
        )
    file = tmp_path / "text.txt"
    file.write_text(PROSE)
    searched(checkpoint, tmp_path / "bundle", calibration=file, evaluations=2)
    assert (f"{file}: the model's loss on it is" in caplog.text) != known


def test_a_budget_that_is_none():
    for budget in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="layer-skip budget"):
            SearchOptions(budget=budget)


def test_a_piece_alone_has_but_one_kind_of_text():
    with pytest.raises(InputError, match="pieces is 1: give at least 2"):
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
        assert Sublayers.pairs(4).describe(each["skipped"]) in shown
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
        (["--layer-skip=all"], "'all' does not name sublayers"),
        (["--layer-skip=0"], "skip set 0: layer 0 cannot be left out"),
        (["--layer-skip=1m/4"], "there is no 4: the model has layers 0 to 3"),
        (["--layer-skip-budget=5"], "--layer-skip-budget needs a search"),
        (["--layer-skip=auto", "--layer-skip-budget=0"], "budget is 0.0: give more than 0 seconds"),
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
    fails(cli("export", checkpoint, "-o", tmp_path / "bundle", *words), "tokens: give at least 64")
    assert list(tmp_path.iterdir()) == [text]
