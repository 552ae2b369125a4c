"""What Prometheus reads: texts, tokens, times, the queue, memory."""

from __future__ import annotations

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
from edgespec.server.queue import Queue

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TPOT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_ROUNDS = (0, 1, 2, 4)
# Counters by the field of a result that they sum up.
_COUNTED = {
    "prompt_tokens": "tokens of prompts",
    "reused": "tokens of prompts that were in the caches already",
    "new_tokens": "tokens that were made",
    "rounds": "passes of the target after the prompts'",
    "drafted": "tokens that were proposed",
    "accepted": "proposed tokens that became text",
}


class Metrics:
    """Numbers of one server since it began.

    Args:
        queue: whose length is told.
    """

    def __init__(self, queue: Queue) -> None:
        registry = self._registry = CollectorRegistry()
        self._texts = Counter(
            "edgespec_texts", "texts by why they ended", ["finish_reason"], registry=registry
        )
        self._refusals = Counter(
            "edgespec_refusals", "requests without a whole text, by status", ["status"],
            registry=registry,
        )  # fmt: skip
        self._sums = {
            name: Counter(f"edgespec_{name}", text, registry=registry)
            for name, text in _COUNTED.items()
        }
        self._ttft = Histogram(
            "edgespec_time_to_first_token_seconds", "from the request, waiting included",
            buckets=_TTFT_SECONDS, registry=registry,
        )  # fmt: skip
        self._tpot = Histogram(
            "edgespec_time_per_output_token_seconds", "a text's mean, the first token left out",
            buckets=_TPOT_SECONDS, registry=registry,
        )  # fmt: skip
        self._cancels = Histogram(
            "edgespec_rounds_after_cancel", "that a text still made when its client had gone",
            buckets=_ROUNDS, registry=registry,
        )  # fmt: skip
        for name, text, value in (
            ("texts_running", "texts being made", lambda: queue.running),
            ("texts_waiting", "requests waiting for their turn", lambda: queue.waiting),
            ("resident_memory_bytes", "of the process, mapped files included", _resident),
        ):
            Gauge(f"edgespec_{name}", text, registry=registry).set_function(value)

    def finished(self, result: GenerationResult, waited: float) -> None:
        """Count a text, one that was cut short too.

        Args:
            result: of it.
            waited: seconds from the request until it was begun.
        """
        self._texts.labels(result.finish_reason).inc()
        for name, counter in self._sums.items():
            counter.inc(getattr(result, name))
        if result.new_tokens:
            self._ttft.observe(waited + result.ttft_ms / 1e3)
        if result.new_tokens > 1:
            self._tpot.observe(result.tpot_ms / 1e3)

    def abandoned(self, rounds: int) -> None:
        """Count a text whose client went, and the rounds that it still made."""
        self._cancels.observe(rounds)

    def unbegun(self) -> None:
        """Count a text whose client went before it was begun."""
        self._texts.labels("cancelled").inc()
        self.abandoned(0)

    def refused(self, status: int) -> None:
        """Count a request without a text, or with one that failed when its stream had begun."""
        self._refusals.labels(str(status)).inc()

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)


def _resident() -> float:
    return float(psutil.Process().memory_info().rss)
