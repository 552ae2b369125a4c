"""Processes that make texts: as if each were the first, and what is said of those that die."""

from __future__ import annotations

import os
import signal

import pytest
from pairs import ENGINES

from edgespec.api.loading import LoadOptions
from edgespec.errors import DeviceError, InputError
from edgespec.measuring.bench import Request
from edgespec.measuring.worker import Worker
from edgespec.models.embedded import BUNDLE
from edgespec.system import environment


@pytest.fixture(scope="module")
def worker(pairs):
    options = LoadOptions(device=ENGINES[0], draft="lookup", threads=1)
    with Worker("lookup", pairs.pair("llama").path, options) as found:
        yield found


def test_a_process_makes_texts_as_if_each_were_the_first(pairs, worker):
    tokens = tuple(pairs.llm("llama", ENGINES[0], "none").tokenizer.encode("def f(x):\n"))
    for sampling in ({"temperature": 0.0, "seed": 0}, {"temperature": 0.9, "seed": 4}):
        request = Request(tokens, 24, **sampling)
        expected = pairs.llm("llama", ENGINES[0], "none").generate(
            tokens, max_new_tokens=24, **sampling
        )
        one, other = worker.make(request), worker.make(request)
        assert one.result.tokens == other.result.tokens == expected.tokens
        assert one.accepted == other.accepted
        assert worker.plain(request) == expected.tokens
        assert one.verify_seconds > 0
        assert 0 < one.draft_seconds + one.verify_seconds < one.result.tpot_ms * 23 / 1e3 * 1.01
        assert sum(one.accepted) + len(one.accepted) == 23
        wrong = [*expected.tokens[:-1], (expected.tokens[-1] + 1) % 331]
        assert worker.verdict(request, expected.tokens, wrong) == "no"


@pytest.mark.slow
def test_a_process_has_its_own_peak_of_memory(worker):
    mine = bytearray(1 << 30)
    mine[:: 1 << 12] = b"x" * len(mine[:: 1 << 12])
    assert environment.peak_rss_mb() > 1024
    assert worker.make(Request((5,), 4, 0.0, 0)).result.peak_rss_mb < 1024
    options = LoadOptions(device=ENGINES[0], draft="none", threads=1)
    with Worker("plain", BUNDLE, options) as started:
        assert started.make(Request((5,), 4, 0.0, 0)).result.peak_rss_mb < 1024


def test_errors_come_over_the_pipe(pairs):
    options = LoadOptions(device=ENGINES[0], draft="layer-skip", threads=1)
    with pytest.raises(InputError, match="has no skip sets"):
        Worker("layer-skip", pairs.pair("llama").path, options)


def test_a_text_that_fails_is_no_end(worker):
    for _ in range(2):
        with pytest.raises(InputError, match="token id -1 is not in the vocabulary"):
            worker.make(Request((-1,), 4, 0.0, 0))
    assert worker.make(Request((5,), 4, 0.0, 0)).result.new_tokens


def test_a_process_that_dies_is_named(pairs):
    options = LoadOptions(device=ENGINES[0], draft="none", threads=1)
    with Worker("plain", pairs.pair("llama").path, options) as dying:
        os.kill(dying._process.pid, signal.SIGKILL)
        with pytest.raises(DeviceError, match=r"plain: its process ended with status -9: leave it"):
            dying.make(Request((5,), 4, 0.0, 0))
    with Worker("plain", pairs.pair("llama").path, options) as faulty:
        last = r"ended with status 1 \(AttributeError: .* has no attribute 'nonsense'\): leave"
        with pytest.raises(DeviceError, match=last):
            faulty._ask("nonsense")


def test_what_a_process_says_is_read_in_any_code_page(pairs, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    options = LoadOptions(device=ENGINES[0], draft="none", threads=1)
    found = pytest.raises(DeviceError, match="no attribute 'über'")
    with Worker("plain", pairs.pair("llama").path, options) as faulty, found:
        faulty._ask("über")
