"""Results of texts with given times, and fake workers that return them."""

from __future__ import annotations

from dataclasses import replace

from edgespec.api.result import GenerationResult
from edgespec.measuring import bench
from edgespec.measuring.bits import Bits
from edgespec.measuring.worker import Made

TEXT = tuple(range(10, 23))


def made(tpot_ms, accepted=(0,) * 12, tokens=TEXT, **facts):
    """A result with as many rounds as `accepted` has; each gives one token, after a first one."""
    result = GenerationResult(
        text="", tokens=list(tokens), prompt_tokens=3, new_tokens=len(tokens),
        finish_reason="length", seed=0, ttft_ms=20.0, tpot_ms=tpot_ms, tokens_per_second=0.0,
        rounds=len(accepted), drafted=0, accepted=sum(accepted), mean_accepted_length=0.0, begun=0,
        draft="", sources={"lookup": len(accepted)}, draft_memory=None,
        predicted_tokens_per_second=None, measured_tokens_per_second=None,
        engine="onnxruntime:cpu", exact=True, draft_engine=None, peak_rss_mb=100.0, engine_ms=0.0,
        reused=0, logprobs=(),
    )  # fmt: skip
    return Made(replace(result, **facts), tuple(accepted), 0.010, 0.030)


def with_told_workers(monkeypatch):
    """Install fake workers that return given results by name; `log` has their calls."""

    class Told:
        context_length = 50
        found = "near-tie"

        def __init__(self, name, path, options):
            self.name = name
            self.log.append((name, "load"))
            self.options[name] = options

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.log.append((self.name, "end"))

        def make(self, request):
            self.log.append((self.name, request.prompt[0]))
            return self.texts[self.name].pop(0)

        def plain(self, request):
            self.log.append((self.name, "plain"))
            return self.plain_tokens

        def bits(self, text, positions):
            self.log.append((self.name, "bits", tuple(text), positions))
            return self.compared

        def verdict(self, request, expected, found):
            self.log.append((self.name, "verdict", tuple(expected), tuple(found)))
            return self.found

    Told.compared = Bits(90, 0, ())
    Told.texts, Told.log, Told.options, Told.plain_tokens = {}, [], {}, list(TEXT)
    monkeypatch.setattr(bench, "Worker", Told)
    return Told
