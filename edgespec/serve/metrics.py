"""Prometheus metrics: texts, tokens, times, the queue, memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from edgespec.llm.result import Result
from edgespec.serve.models import Models
from edgespec.serve.served_model import ServedModel

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
        models: the models, by whose names texts and tokens are counted.
        running: returns the number of texts that are being made.
        waiting: returns the number of requests that wait.
    """

    def __init__(
        self, models: Models, running: Callable[[], int], waiting: Callable[[], int]
    ) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"edgespec_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"edgespec_{name}", text, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"edgespec_{name}", text, registry=registry).set_function(value)

        self._texts = counter("texts", "texts by finish reason", "finish_reason", "model")
        self._embeddings = counter("embeddings", "vectors of texts", "model")
        self._ranked = counter("ranked_documents", "documents that were ranked", "model")
        self._refusals = counter(
            "refusals", "requests without a complete text, by status", "status"
        )
        self._sums = {name: counter(name, text, "model") for name, text in _COUNTED.items()}
        loaded = Gauge(
            "edgespec_model_loaded", "whether a model is loaded", ["model"], registry=registry
        )
        for model in models.served:
            loaded.labels(model.name).set_function(partial(_is_loaded, model))
            for each in (self._embeddings, self._ranked, *self._sums.values()):
                each.labels(model.name)  # from the start
        self._ttft = histogram(
            "time_to_first_token_seconds",
            "time from the request to the first token, including waiting",
            _TTFT_SECONDS,
        )
        self._tpot = histogram(
            "time_per_output_token_seconds",
            "mean time per token of a text, without the first token",
            _TPOT_SECONDS,
        )
        self._cancels = histogram(
            "rounds_after_cancel", "rounds that a text made after its client disconnected", _ROUNDS
        )
        gauge("texts_running", "texts being generated", running)
        gauge("texts_waiting", "requests waiting in the queue", waiting)
        gauge(
            "resident_memory_bytes",
            "resident memory of the process, including mapped files",
            lambda: psutil.Process().memory_info().rss,
        )

    def finished(self, model: str, result: Result, waited: float) -> None:
        """Counts a text that began after so many seconds, including one that was cancelled."""
        self._texts.labels(result.finish_reason, model).inc()
        for name, counter in self._sums.items():
            counter.labels(model).inc(getattr(result, name))
        if result.new_tokens:
            self._ttft.observe(waited + result.ttft_ms / 1e3)
        if result.new_tokens > 1:
            self._tpot.observe(result.tpot_ms / 1e3)

    def embedded(self, model: str, vectors: int, tokens: int) -> None:
        """Counts vectors of texts, and the tokens of these."""
        self._embeddings.labels(model).inc(vectors)
        self._sums["prompt_tokens"].labels(model).inc(tokens)

    def ranked(self, model: str, documents: int, tokens: int) -> None:
        """Counts ranked documents, and the tokens that were read for them."""
        self._ranked.labels(model).inc(documents)
        self._sums["prompt_tokens"].labels(model).inc(tokens)

    def abandoned(self, rounds: int) -> None:
        """Counts the rounds that a text made after its client disconnected."""
        self._cancels.observe(rounds)

    def unbegun(self, model: str) -> None:
        """Counts a text whose client disconnected before it started."""
        self._texts.labels("cancelled", model).inc()
        self.abandoned(0)

    def refused(self, status: int) -> None:
        """Counts a request without a text, or with a text that failed during its stream."""
        self._refusals.labels(str(status)).inc()

    def text(self) -> bytes:
        """Returns the metrics in Prometheus's text format."""
        return generate_latest(self._registry)


def _is_loaded(model: ServedModel) -> float:
    return float(model.llm is not None)
