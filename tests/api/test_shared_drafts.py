"""Drafts of texts that decode at the same time share calls of the draft model."""

from __future__ import annotations

import pytest
from pairs import ENGINES
from sessions import together

from edgespec import LLM
from edgespec.bundle import DRAFT
from edgespec.errors import DeviceError
from edgespec.runtime.decoding.generate import PROMPT
from edgespec.runtime.execution.joint import JointPasses

PROMPTS = (
    "def fibonacci(n):\n",
    "import os\n\nclass Foo:\n    def __init__(self):\n",
    "# quicksort\ndef sort(a):\n",
    "for i in range(10):\n    print(",
)


class Watched:
    """A model, and the calls of its draft model, those that texts share among them."""

    def __init__(self, llm, monkeypatch):
        self.llm, self.fails, self.shared = llm, False, []
        self._draft, self._together = llm._loaded[DRAFT].model, JointPasses._together
        executables = self._draft.executables
        self.calls, run = 0, [each.run for each in executables]

        def shared_call(passes, table, asked):
            if passes._model is self._draft:
                self.shared.append(len(asked))
                if self.fails:
                    raise DeviceError("device lost")
            return self._together(passes, table, asked)

        def counted(inputs, cache):
            self.calls += 1
            return run[0](inputs, cache)

        monkeypatch.setattr(JointPasses, "_together", shared_call)
        monkeypatch.setattr(executables[0], "run", counted)


@pytest.fixture(params=ENGINES)
def watched(request, monkeypatch):
    places = {"device": request.param, "draft_device": request.param, "threads": 1}
    with LLM(draft="model", sessions=len(PROMPTS), context=1024, **places) as llm:
        yield Watched(llm, monkeypatch)


def test_texts_share_calls_of_the_draft_and_stay_what_they_are(watched):
    asked = [
        (prompt, {"max_new_tokens": 40 + 3 * n, "temperature": n % 2, "seed": n})
        for n, prompt in enumerate(PROMPTS)
    ]
    alone = [watched.llm.generate(prompt, **options) for prompt, options in asked]
    assert not watched.shared
    calls, watched.calls = watched.calls, 0
    found = together(watched.llm, asked)
    assert [each.tokens for each in found] == [each.tokens for each in alone]
    assert max(watched.shared) == len(asked)
    # Texts are not alike in length, so some calls at the end are those of one text.
    assert watched.calls < 0.6 * calls
    # Rounding aside, drafts are as good as alone.
    accepted = sum(each.accepted for each in found)
    assert accepted == pytest.approx(sum(each.accepted for each in alone), rel=0.1)


def test_a_draft_device_that_is_lost_costs_no_text(watched, caplog):
    asked = [(prompt, {"max_new_tokens": 40}) for prompt in PROMPTS]
    alone = [watched.llm.generate(prompt, **options).tokens for prompt, options in asked]
    watched.fails = True
    assert [each.tokens for each in together(watched.llm, asked)] == alone
    lost = "device lost: the text goes on without drafts by model"
    assert {each.message for each in caplog.records} == {lost}
    assert 2 <= len(caplog.records) <= len(asked)
    watched.fails = False
    again = together(watched.llm, asked)
    assert [each.tokens for each in again] == alone
    assert all(each.accepted > 0 for each in again)


def test_a_draft_model_reads_a_prompt_in_chunks_between_which_others_go_on(watched):
    llm = watched.llm
    other = iter(llm.stream(PROMPTS[0], max_new_tokens=60))
    next(other)
    stream = llm.stream([5 + n % 90 for n in range(400)], max_new_tokens=40)
    pieces = iter(stream)
    next(pieces)
    first = stream.generation.clock.first
    text = llm._texts.shared.rounds._texts[-1]
    made = []
    while not made or not made[-1].tokens:
        for each in (llm._texts.shared.rounds._texts[0], text):
            step, seconds = each.next()
        made.append(step)
        stream.generation.clock.round(step, seconds)
    chunk = llm._loaded[DRAFT].model.sizes.prefill_chunk
    assert len(made) > 256 // chunk >= 2  # a window of 512 tokens holds half of them at least
    assert {each.source for each in made[:-1]} == {PROMPT}
    assert stream.generation.clock.first == first  # the time of the first token stays


@pytest.mark.parametrize(("sessions", "joins"), [(1, False), (2, True)])
def test_a_draft_model_for_one_text_at_once_has_the_graph_that_is_fastest_for_it(sessions, joins):
    with LLM(draft="model", sessions=sessions, context=256) as llm:
        assert llm._loaded[DRAFT].model.can_join_texts is joins
        assert llm.target.can_join_texts
