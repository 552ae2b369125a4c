"""Tests of forecasts for texts with a grammar."""

from __future__ import annotations

from itertools import count

import pytest
from pairs import ENGINES

from edgespec import LLM
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.profiles import Profile
from edgespec.runtime.curve import Curve
from edgespec.runtime.planning import planned_drafter

PROMPTS = (
    "def fibonacci(n):\n",
    "class Stack:\n    def push(self, item):\n",
    "settings = dict(verbose=True, retries=3)\n",
    "# parse dates\ndates = [",
)
KEYS = (
    "maximum_number_of_items", "is_enabled_by_default", "timeout_in_seconds", "allow_redirects",
    "request_headers_count", "retry_on_failure", "cache_size_in_bytes", "verify_certificates",
)  # fmt: skip
KINDS = [{"type": "integer", "minimum": 0, "maximum": 99}, {"type": "boolean"}]
RECORD = {
    "type": "object",
    "properties": {key: KINDS[place % 2] for place, key in enumerate(KEYS)},
    "required": list(KEYS),
    "additionalProperties": False,
}
STRUCTURES = [
    {"json_schema": RECORD},  # most tokens are forced, and most drafts of others forbidden
    {
        "grammar": r"""start: (NAME " = " NAME "(" NAME (", " NAME)~0..2 ")\n")+
NAME: /[a-z_]{1,12}/"""
    },
]
SECONDS = {"target": {1: 0.030, 8: 0.040, 32: 0.060}, "draft": {1: 0.004, 4: 0.005, 32: 0.012}}


@pytest.fixture
def llm(monkeypatch, own_cache):
    """The embedded pair with given costs of calls, so that plans are always the same."""
    given = {
        role: Profile.measured(True, {256: {rows: [taken] for rows, taken in by_rows.items()}})
        for role, by_rows in SECONDS.items()
    }
    monkeypatch.setattr(profiles, "recall", lambda _bundle, role, *_: given[role])
    monkeypatch.setattr(Curve, "observe", lambda *_: None)
    ticks = count()
    monkeypatch.setattr(planned_drafter.time, "perf_counter", lambda: next(ticks) * 1e-7)
    with LLM(device=ENGINES[0], draft_device=ENGINES[0], threads=1, context=512) as loaded:
        yield loaded


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda fields: next(iter(fields)))
def test_what_is_promised_comes(llm, structure):
    """In rounds with forced tokens, and in others."""
    promised, came = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for seed, prompt in enumerate(PROMPTS):
        for temperature in (0.0, 0.8):
            stream = llm.stream(
                prompt, max_new_tokens=160, temperature=temperature, seed=seed, **structure
            )
            stream.finish()
            for step in stream.rounds:
                if step.forecast is not None:
                    forced = "grammar" in step.source
                    promised[forced] += step.forecast.tokens
                    came[forced] += len(step.tokens)
    assert sum(promised.values()) == pytest.approx(sum(came.values()), rel=0.2)
    for forced in (True, False):
        assert promised[forced] == pytest.approx(came[forced], rel=0.25)
