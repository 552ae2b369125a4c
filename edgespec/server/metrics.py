"""Prometheus metrics: texts, tokens, times, the queue, memory."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from edgespec.api.result import GenerationResult

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TPOT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_ROUNDS = (0, 1, 2, 4)
# Fields of a result that are summed up in counters, with the counters' help texts.
_COUNTED = {
    "prompt_tokens": "prompt tokens",
    "reused": "prompt tokens that were in the caches already",
    "new_tokens": "generated tokens",
    "rounds": "passes of the target after the prompts'",
    "drafted": "drafted tokens",
    "accepted": "drafted tokens that became text",
}


class Metrics:
    """Metrics of one server since its start.

    Args:
        running: returns the number of texts that are being made.
        waiting: returns the number of requests that wait.
    """

    def __init__(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        registry = self._registry = CollectorRegistry()
        self._texts = Counter(
            "edgespec_texts", "texts by finish reason", ["finish_reason"], registry=registry
        )
        self._embeddings = Counter("edgespec_embeddings", "vectors of texts", registry=registry)
        self._refusals = Counter(
            "edgespec_refusals", "requests without a complete text, by status", ["status"],
            registry=registry,
        )  # fmt: skip
        self._sums = {
            name: Counter(f"edgespec_{name}", text, registry=registry)
            for name, text in _COUNTED.items()
        }
        self._ttft = Histogram(
            "edgespec_time_to_first_token_seconds",
            "time from the request to the first token, including waiting",
            buckets=_TTFT_SECONDS, registry=registry,
        )  # fmt: skip
        self._tpot = Histogram(
            "edgespec_time_per_output_token_seconds",
            "mean time per token of a text, without the first token",
            buckets=_TPOT_SECONDS, registry=registry,
        )  # fmt: skip
        self._cancels = Histogram(
            "edgespec_rounds_after_cancel", "rounds that a text made after its client disconnected",
            buckets=_ROUNDS, registry=registry,
        )  # fmt: skip
        for name, text, value in (
            ("texts_running", "texts being generated", running),
            ("texts_waiting", "requests waiting in the queue", waiting),
            (
                "resident_memory_bytes",
                "resident memory of the process, including mapped files",
                _resident,
            ),
        ):
            Gauge(f"edgespec_{name}", text, registry=registry).set_function(value)

    def finished(self, result: GenerationResult, waited: float) -> None:
        """Counts a text, including one that was cancelled.

        Args:
            result: result of the text.
            waited: seconds from the request to the start of the text.
        """
        self._texts.labels(result.finish_reason).inc()
        for name, counter in self._sums.items():
            counter.inc(getattr(result, name))
        if result.new_tokens:
            self._ttft.observe(waited + result.ttft_ms / 1e3)
        if result.new_tokens > 1:
            self._tpot.observe(result.tpot_ms / 1e3)

    def embedded(self, vectors: int, tokens: int) -> None:
        """Counts vectors of texts, and the tokens of these."""
        self._embeddings.inc(vectors)
        self._sums["prompt_tokens"].inc(tokens)

    def abandoned(self, rounds: int) -> None:
        """Counts the rounds that a text made after its client disconnected."""
        self._cancels.observe(rounds)

    def unbegun(self) -> None:
        """Counts a text whose client disconnected before it started."""
        self._texts.labels("cancelled").inc()
        self.abandoned(0)

    def refused(self, status: int) -> None:
        """Counts a request without a text, or with a text that failed during its stream."""
        self._refusals.labels(str(status)).inc()

    def text(self) -> bytes:
        """Returns the metrics in Prometheus's text format."""
        return generate_latest(self._registry)


def _resident() -> float:
    return float(psutil.Process().memory_info().rss)
