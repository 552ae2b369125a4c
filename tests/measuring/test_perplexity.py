"""`edgespec eval`: perplexity against transformers' own, and the distance of two bundles."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commandline import FAST, fails
from pairs import ENGINES, LONG_PROMPT, logits_of

from edgespec import bundle as bundles
from edgespec.api.loading import LoadOptions
from edgespec.errors import DeviceError, InputError
from edgespec.measuring.perplexity import (
    Mean,
    Reading,
    divergence,
    log_probabilities,
    rows_of_a_pass,
)
from edgespec.measuring.windows import Window, endings, windows
from edgespec.runtime.deployment.demands import Demand
from edgespec.runtime.deployment.deployment import deploy
from edgespec.runtime.execution.model import Model

DEVICE = FAST[0], FAST[2]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("eval") / "text.py"
    path.write_text(LONG_PROMPT * 2, encoding="utf-8")
    return path


def by_transformers(model, tokens, room, stride):
    """Nats of each token that is scored, window by window as its documentation does it."""
    nats, done = [], 0
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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("context", "stride"), [(None, None), (256, 100), (200, 200)])
def test_perplexity_is_that_of_transformers(pairs, engine, context, stride):
    pair = pairs.pair("llama")
    llm = pairs.llm("llama", engine, "none", **({"context": context} if context else {}))
    content = LONG_PROMPT * 2
    tokens = llm.tokenizer.encode(content)
    assert 256 < len(tokens) < 512  # several passes of 128 and several windows
    found = Reading(llm, content, stride).evaluate()
    room = min(context or 512, len(tokens))
    expected = by_transformers(pair.target, tokens, room, stride or room // 2)
    assert found.scored == len(expected)
    assert (found.tokens, found.window) == (len(tokens), room)
    assert found.nats.value == pytest.approx(np.mean(expected), rel=1e-5)
    assert found.nats.perplexity == pytest.approx(math.exp(np.mean(expected)), rel=1e-4)
    assert found.against is None


@pytest.mark.parametrize("border", [70, 150])
def test_passes_that_end_at_the_border_are_scored_like_others(pairs, monkeypatch, border):
    """Calls are shorter there, and the calls of a reference may end elsewhere."""
    llm, other = (pairs.llm(name, ENGINES[0], "none", context=256) for name in ("llama", "twin"))
    content = LONG_PROMPT * 2
    expected = Reading(llm, content, 100, reference=other).evaluate()
    monkeypatch.setattr("edgespec.runtime.execution.runner.BORDER", border)
    monkeypatch.setattr(Model, "ordered", property(lambda model: model is llm.target))
    found = Reading(llm, content, 100, reference=other).evaluate()
    assert found.nats.value == pytest.approx(expected.nats.value, rel=1e-6)
    assert found.against.nats.value == pytest.approx(expected.against.nats.value, rel=1e-6)


def test_a_beginning_of_text_token_is_before_every_window(pairs, monkeypatch):
    llm = pairs.llm("llama", ENGINES[0], "none", context=100)
    tokens = llm.tokenizer.encode(LONG_PROMPT)
    monkeypatch.setattr(llm.tokenizer, "_prepended", [0])
    expected, done = [], 0
    for start in range(0, len(tokens), 50):
        part = [0, *tokens[start : start + 99]]
        logits = logits_of(pairs.pair("llama").target, part)
        nats = [-log_probabilities(row)[t] for row, t in zip(logits, part[1:], strict=False)]
        expected += nats[done - start :]
        done = start + len(part) - 1
        if done == len(tokens):
            break
    found = Reading(llm, LONG_PROMPT, 50).evaluate()
    assert (found.scored, len(expected)) == (len(tokens), len(tokens))
    assert found.nats.value == pytest.approx(np.mean(expected), rel=1e-5)
    assert Reading(llm, "a").scored == 1


def test_windows_fit_both_bundles_and_begin_half_a_window_apart(pairs):
    long, short = (pairs.llm("llama", ENGINES[0], "none", context=size) for size in (256, 100))
    for llm, reference in ((long, short), (short, long)):
        found = Reading(llm, LONG_PROMPT, reference=reference).evaluate()
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
    assert windows(*arguments) == [Window(*each) for each in expected]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((10, 10, 10, 3, True), [(0, 7, 10)]),
        ((10, 4, 4, 2, True), [(0, 2, 4), (4, 6, 8)]),  # two tokens are left behind these
        ((10, 4, 6, 4, True), [(0, 0, 4), (6, 6, 10)]),
        ((10, 4, 6, 4, False), [(0, 1, 4), (6, 7, 10)]),  # nothing comes before their first tokens
    ],
)
def test_endings(arguments, expected):
    assert endings(*arguments) == [Window(*each) for each in expected]


@pytest.mark.parametrize("engine", ENGINES)
def test_ends_of_windows_are_predicted_from_whole_windows(pairs, engine):
    llm = pairs.llm("llama", engine, "none", context=100)
    tokens = llm.tokenizer.encode(LONG_PROMPT * 2)
    starts = range(0, len(tokens) - 99, 120)
    assert len(starts) > 1
    expected = []
    for start in starts:
        part = tokens[start : start + 100]
        logits = logits_of(pairs.pair("llama").target, part)
        expected += [-log_probabilities(logits[at - 1])[part[at]] for at in range(70, 100)]
    found = Reading(llm, LONG_PROMPT * 2, 120, last=30).evaluate()
    assert (found.scored, found.window, found.last) == (30 * len(starts), 100, 30)
    assert found.nats.value == pytest.approx(np.mean(expected), rel=1e-5)


def test_the_command_scores_ends_of_windows(cli, pairs, text):
    path = pairs.pair("llama").path
    words = ["eval", path, "--text", text, "--last", "20", "--context", "80", *DEVICE]
    facts = json.loads(cli(*words, "--json").out)
    tokens = facts["tokens"]
    assert (facts["window"], facts["stride"], facts["last"]) == (80, 80, 20)
    assert facts["scored"] == tokens // 80 * 20
    line = cli(*words).out.splitlines()[0]
    assert line.startswith(f"{facts['scored']} of {tokens} tokens scored, the last 20 of windows")


def test_divergence_of_known_distributions():
    one, other = (log_probabilities(np.log(np.array(p, np.float32))) for p in ([3, 1], [1, 1]))
    assert divergence(one, other) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert divergence(one, one) == 0
    assert np.exp(log_probabilities(np.array([9e4, 9e4], np.float32))).tolist() == [0.5, 0.5]


def test_a_mean_has_an_error():
    found = Mean.of([1.0, 5.0])
    assert (found.value, found.error) == (3.0, pytest.approx(2.0))
    assert found.perplexity_error == pytest.approx(2 * math.exp(3.0))
    assert Mean.of([2.0]).error == 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_logits_that_are_no_numbers_are_the_devices_fault(value):
    with pytest.raises(DeviceError, match=f"the model's logits contain {value}: .*another device"):
        log_probabilities(np.array([1, value], np.float32))


def test_a_perplexity_beyond_what_a_float_holds(cli, pairs, text, monkeypatch):
    def loud(row):
        return log_probabilities(row * 5000)

    monkeypatch.setattr("edgespec.measuring.perplexity.log_probabilities", loud)
    path = pairs.pair("llama").path
    words = ["eval", path, "--text", text, "--against", path, *DEVICE]
    result = cli(*words, "--json")
    assert (result.code, result.err) == (0, "")
    facts = json.loads(result.out, parse_constant=pytest.fail)
    assert facts["perplexity"] is facts["perplexity_error"] is None
    assert facts["against"]["perplexity"] is None
    assert facts["nats_per_token"] == facts["against"]["nats_per_token"] > 1000
    assert cli(*words).out.splitlines()[1:3] == [
        "perplexity inf ± inf",
        "reference inf, the bundle's is +0.00%",
    ]


def test_a_bundle_is_at_no_distance_from_itself(cli, pairs, text):
    path = pairs.pair("llama").path
    result = cli("eval", path, "--text", text, "--against", path, "--json", *DEVICE)
    assert (result.code, result.err) == (0, "")
    facts = json.loads(result.out)
    against = facts["against"]
    assert against["mean_kl"] == against["mean_kl_error"] == 0
    assert against["argmax_agreement"] == 1
    assert against["perplexity"] == facts["perplexity"]
    assert against["bundle_hash"] == facts["bundle_hash"]
    assert {
        "precision", "scored", "tokens", "window", "stride", "engine", "perplexity_error",
        "nats_per_token", "peak_rss_mb", "hardware", "versions", "git_revision",
    } <= facts.keys()  # fmt: skip


def test_another_model_is_at_the_distance_that_transformers_gives(cli, pairs, text):
    pair = pairs.pair("llama")
    other = pairs.pair("qwen3")  # of the same tokenizer
    result = cli("eval", pair.path, "--text", text, "--against", other.path, "--json", *DEVICE)
    against = json.loads(result.out)["against"]
    tokens = pairs.llm("llama", ENGINES[0], "none").tokenizer.encode(LONG_PROMPT * 2)
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


def test_results_are_lines_for_people(cli, pairs, text):
    path = pairs.pair("llama").path
    result = cli("eval", path, "--text", text, "--against", path, *DEVICE)
    first, second, third, fourth, fifth = result.out.splitlines()
    assert first.endswith("on onnxruntime:cpu")
    assert second.startswith("perplexity ")
    assert third.endswith("the bundle's is +0.00%")
    assert fourth == "mean KL 0 ± 0 nats"
    assert fifth == "same likeliest token 100.00%"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--text", "nowhere.txt"], ["nowhere.txt: No such file"]),
        (["--text", "empty"], ["too short to predict"]),
        (["--text", "one"], ["too short to predict"]),
        (["--text", "binary"], ["binary: byte 0 is not UTF-8"]),
        (["--text", "good", "--stride", "0"], ["stride is 0: give 1 to"]),
        (["--text", "good", "--stride", "999"], ["stride is 999: give 1 to"]),
        (["--text", "good", "--last", "0"], ["last is 0: give 1 to"]),
        (["--text", "good", "--last", "999"], ["last is 999: give 1 to"]),
        (["--text", "good", "--last", "4", "--stride", "3"], ["stride is 3: give at least 4"]),
        (["--suite", "--last", "4"], ["--last is only for --text"]),
        (["--text", "good", "--context", "1"], ["context is 1"]),
        ([], ["--text"]),
    ],
)
def test_what_cannot_be_evaluated(cli, pairs, tmp_path, monkeypatch, words, parts):
    monkeypatch.chdir(tmp_path)
    texts = {"empty": b"", "one": b"a", "binary": b"\xff", "good": b"def f(x):\n"}
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    fails(cli("eval", pairs.pair("llama").path, *words, *DEVICE), *parts)


def test_bundles_of_other_tokens_are_not_compared(cli, pairs, text):
    path = pairs.pair("llama").path
    found = cli("eval", "--text", text, "--against", path, *DEVICE)
    fails(found, "has a vocabulary of 331", "4096", "compare bundles of the same model")


def test_bundles_that_read_the_text_otherwise_are_not_compared():
    def reader(beginning, ids):
        def encode(text, add_special=True):
            return [*(beginning if add_special else []), *(ids if text else [])]

        tokenizer = SimpleNamespace(vocab_size=331, encode=encode)
        bundle = SimpleNamespace(path="a bundle")
        return SimpleNamespace(tokenizer=tokenizer, bundle=bundle, context_length=64)

    ours = reader([0], [5, 6])
    assert Reading(ours, "text", reference=reader([0], [5, 6])).scored == 2
    for other in (reader([], [5, 6]), reader([0], [5, 7])):
        with pytest.raises(InputError, match="a bundle splits the text into other tokens than"):
            Reading(ours, "text", reference=other)


def test_two_models_share_what_memory_is_left_for_logits():
    def planned(limit, chunk=128):
        demand = Demand("cpu", 10, 0, 0, 0, 8, 2, limit, 0)
        return SimpleNamespace(prefill_chunk=chunk, devices=(demand,))

    # 8 rows of logits take 8 bytes, and as many are planned for.
    assert rows_of_a_pass([planned(20)]) == 8
    assert rows_of_a_pass([planned(20 + 56)]) == 64
    assert rows_of_a_pass([planned(20 + 56, chunk=32)]) == 32
    left = 20 + 56  # of what the first may use, for the second
    assert rows_of_a_pass([planned(20 + left), planned(left)]) == 32


def test_both_bundles_must_fit_memory(cli, pairs, text):
    path = pairs.pair("llama").path
    options = LoadOptions(device=ENGINES[0], threads=1, draft="none", context=512)
    need = deploy(bundles.load(path), options).devices[0].total
    words = ["eval", path, "--text", text, "--memory", f"{need * 1.2 / 1024:.0f}KiB", *DEVICE]
    assert cli(*words, "--context=512").code == 0
    found = cli(*words, "--context=512", "--against", path)
    fails(found, "needs", "MiB on cpu", code=3)
