"""`edgespec eval`: perplexity against transformers' own, and the distance of two bundles."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commandline import fails
from pairs import LONG_PROMPT, logits_of

from edgespec.errors import DeviceError, InputError
from edgespec.llm.llm import inside
from edgespec.measuring.perplexity import (
    Mean,
    ScoredSpan,
    TokenizedText,
    divergence,
    log_probabilities,
    predictions,
    windows,
)

ONE_THREAD = "--threads=1"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "text.py"
    path.write_text(LONG_PROMPT * 2, encoding="utf-8")
    return path


def plain(pairs, name="llama", **options):
    return pairs.llm(name, "cpu", "none", **options)


def by_transformers(model, tokens, room, stride):
    """Nats of each token that is scored, window by window as its documentation does it."""
    nats = []
    done = 0
    for start in range(0, len(tokens), stride):
        part = tokens[start : start + room]
        stop = start + len(part)
        labels = torch.tensor([part])
        labels[:, : done - start] = -100
        with torch.no_grad():
            loss = model(torch.tensor([part]), labels=labels).loss
        scored = int((labels[:, 1:] != -100).sum())
        nats += [float(loss)] * scored
        done = stop
        if stop == len(tokens):
            break
    return nats


@pytest.mark.parametrize(("context", "stride"), [(None, None), (256, 100), (200, 200)])
def test_perplexity_is_that_of_transformers(pairs, context, stride):
    llm = plain(pairs, **({"context": context} if context else {}))
    content = LONG_PROMPT * 2
    tokens = llm.tokenizer.encode(content)
    assert 256 < len(tokens) < 512  # several passes and several windows
    found = TokenizedText(llm, content, stride).evaluate()
    room = min(context or 512, len(tokens))
    expected = by_transformers(pairs.pair("llama").target, tokens, room, stride or room // 2)
    assert found.scored == len(expected)
    assert (found.tokens, found.window) == (len(tokens), room)
    assert found.nats.value == pytest.approx(np.mean(expected), rel=1e-5)
    assert found.nats.perplexity == pytest.approx(math.exp(np.mean(expected)), rel=1e-4)
    assert found.against is None


@pytest.mark.parametrize("name", ["llama", "qwen3_5_text"])
def test_predictions_do_not_depend_on_the_rows_of_a_pass(pairs, name):
    llm = plain(pairs, name)
    llm.forget()
    tokens = llm.tokenizer.encode(LONG_PROMPT)[:50]
    one, other = (
        [logits.copy() for logits in predictions(inside(llm).engine.target, tokens, 20, rows)]
        for rows in (7, 50)
    )
    assert np.array_equal(one, other)
    assert len(one) == 30
    assert inside(llm).engine.target.pool.used == 0


def test_a_beginning_of_text_token_is_before_every_window(pairs, monkeypatch):
    llm = plain(pairs, context=100)
    encode = type(llm.tokenizer).encode

    def encode_after_beginning(self, text, add_special=True):
        return [*([0] if add_special else []), *encode(self, text, False)]

    tokens = llm.tokenizer.encode(LONG_PROMPT)
    monkeypatch.setattr(type(llm.tokenizer), "encode", encode_after_beginning)
    expected = []
    done = 0
    for start in range(0, len(tokens), 50):
        part = [0, *tokens[start : start + 99]]
        logits = logits_of(pairs.pair("llama").target, part)
        nats = [-log_probabilities(row)[t] for row, t in zip(logits, part[1:], strict=False)]
        expected += nats[done - start :]
        done = start + len(part) - 1
        if done == len(tokens):
            break
    found = TokenizedText(llm, LONG_PROMPT, 50).evaluate()
    assert (found.scored, len(expected)) == (len(tokens), len(tokens))
    assert found.nats.value == pytest.approx(np.mean(expected), rel=1e-5)
    assert TokenizedText(llm, "a").scored == 1


def test_windows_fit_both_bundles_and_begin_half_a_window_apart(pairs):
    long, short = (plain(pairs, context=size) for size in (256, 100))
    for llm, reference in ((long, short), (short, long)):
        found = TokenizedText(llm, LONG_PROMPT, reference=reference).evaluate()
        assert (found.window, found.stride) == (100, 50)
        assert found.nats == found.against.nats


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((10, 10, 5, True), [(0, 0, 10)]),
        ((10, 10, 5, False), [(0, 1, 10)]),
        ((10, 4, 2, True), [(0, 0, 4), (2, 4, 6), (4, 6, 8), (6, 8, 10)]),
        ((9, 4, 4, True), [(0, 0, 4), (4, 4, 8), (8, 8, 9)]),
        ((9, 4, 4, False), [(0, 1, 4), (4, 5, 8)]),  # nothing comes before the ninth token
    ],
)
def test_windows(arguments, expected):
    assert windows(*arguments) == [ScoredSpan(*each) for each in expected]


def test_arithmetic():
    one, other = (log_probabilities(np.log(np.array(p, np.float32))) for p in ([3, 1], [1, 1]))
    assert divergence(one, other) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert divergence(one, one) == 0
    assert np.exp(log_probabilities(np.array([9e4, 9e4], np.float32))).tolist() == [0.5, 0.5]
    found = Mean.of([1.0, 5.0])
    assert (found.value, found.error) == (3.0, pytest.approx(2.0))
    assert found.perplexity_error == pytest.approx(2 * math.exp(3.0))
    assert Mean.of([2.0]).error == 0
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(DeviceError, match=f"logits contain {value}: .*another device"):
            log_probabilities(np.array([1, value], np.float32))


def test_a_perplexity_beyond_what_a_float_holds(cli, pairs, text, monkeypatch):
    def loud(row):
        return log_probabilities(row * 5000)

    monkeypatch.setattr("edgespec.measuring.perplexity.log_probabilities", loud)
    path = pairs.pair("llama").path
    words = ["eval", path, "--text", text, "--against", path, ONE_THREAD]
    facts = json.loads(cli(*words, "--json").out, parse_constant=pytest.fail)
    assert facts["perplexity"] is facts["perplexity_error"] is None
    assert facts["against"]["perplexity"] is None
    assert facts["nats_per_token"] == facts["against"]["nats_per_token"] > 1000
    shown = cli(*words).out.splitlines()[1:3]
    assert shown == ["perplexity inf ± inf", "reference inf, the bundle's is +0.00%"]


def test_a_bundle_is_at_no_distance_from_itself(cli, pairs, text):
    path = pairs.pair("llama").path
    words = ["eval", path, "--text", text, "--against", path, ONE_THREAD]
    result = cli(*words, "--json")
    assert (result.code, result.err) == (0, "")
    facts = json.loads(result.out)
    against = facts["against"]
    assert against["mean_kl"] == against["mean_kl_error"] == 0
    assert against["argmax_agreement"] == 1
    assert against["perplexity"] == facts["perplexity"]
    assert against["bundle_hash"] == facts["bundle_hash"]
    assert {
        "precision",
        "scored",
        "tokens",
        "window",
        "stride",
        "engine",
        "perplexity_error",
        "nats_per_token",
        "peak_rss_mb",
        "hardware",
        "versions",
        "git_revision",
    } <= facts.keys()
    first, second, *others = cli(*words).out.splitlines()
    assert first.endswith("on cpu:native")
    assert second.startswith("perplexity ")
    assert others[0].endswith("the bundle's is +0.00%")
    assert others[1:] == ["mean KL 0 ± 0 nats", "same likeliest token 100.00%"]


def test_another_model_is_at_the_distance_that_transformers_gives(cli, pairs, text):
    # of the same tokenizer
    pair = pairs.pair("llama")
    other = pairs.pair("qwen3")
    words = ["--text", text, "--against", other.path, "--json", ONE_THREAD]
    against = json.loads(cli("eval", pair.path, *words).out)["against"]
    tokens = plain(pairs).tokenizer.encode(LONG_PROMPT * 2)
    found, reference = (
        [log_probabilities(row) for row in logits_of(model, tokens)[:-1]]
        for model in (pair.target, other.target)
    )
    both = list(zip(reference, found, strict=True))
    # One window: the text is shorter than the context.
    expected = np.mean([np.sum(np.exp(p) * (p - q)) for p, q in both])
    assert expected > 0.1
    assert against["mean_kl"] == pytest.approx(expected, rel=1e-4)
    agreed = np.mean([p.argmax() == q.argmax() for p, q in both])
    assert against["argmax_agreement"] == pytest.approx(agreed)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--text", "nowhere.txt"], ["nowhere.txt: No such file"]),
        (["--text", "empty"], ["too short to predict"]),
        (["--text", "one"], ["too short to predict"]),
        (["--text", "binary"], ["binary: byte 0 is not UTF-8"]),
        (["--text", "good", "--stride", "0"], ["stride is 0: give 1 to"]),
        (["--text", "good", "--stride", "999"], ["stride is 999: give 1 to"]),
        (["--suite", "--stride", "5"], ["--stride is only for --text"]),
        (["--suite", "--text", "good"], ["not allowed with"]),
        (["--text", "good", "--context", "1"], ["context is 1"]),
        ([], ["--text", "--suite"]),
    ],
)
def test_what_cannot_be_evaluated(cli, pairs, tmp_path, monkeypatch, words, parts):
    monkeypatch.chdir(tmp_path)
    texts = {"empty": b"", "one": b"a", "binary": b"\xff", "good": b"def f(x):\n"}
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    fails(cli("eval", pairs.pair("llama").path, *words, ONE_THREAD), *parts)


def test_bundles_of_other_tokens_are_not_compared(cli, pairs, text):
    path = pairs.pair("llama").path
    found = cli("eval", "--text", text, "--against", path, ONE_THREAD)
    fails(found, "has a vocabulary of 331", "4096", "compare bundles of the same model")

    def reader(beginning, ids):
        def encode(text, add_special=True):
            return [*(beginning if add_special else []), *(ids if text else [])]

        return SimpleNamespace(
            tokenizer=SimpleNamespace(vocab_size=331, encode=encode),
            bundle=SimpleNamespace(path="a bundle"),
            context_length=64,
            _loaded=SimpleNamespace(require_texts=lambda: None),
        )

    ours = reader([0], [5, 6])
    assert TokenizedText(ours, "text", reference=reader([0], [5, 6])).scored == 2
    for other in (reader([], [5, 6]), reader([0], [5, 7])):
        with pytest.raises(InputError, match="a bundle splits the text into other tokens than"):
            TokenizedText(ours, "text", reference=other)


def test_both_bundles_must_fit_memory(cli, pairs, text):
    path = pairs.pair("llama").path
    need = plain(pairs, context=512).plan.demands[0].total
    words = ["eval", path, "--text", text, "--memory", f"{need * 1.2 / 1024:.0f}KiB", ONE_THREAD]
    assert cli(*words, "--context=512").code == 0
    found = cli(*words, "--context=512", "--against", path)
    fails(found, "needs", "MiB of memory on cpu", code=3)
