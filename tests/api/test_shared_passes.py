"""Texts that decode at the same time share passes, and each stays what it is alone."""

from __future__ import annotations

import pytest
from pairs import ENGINES
from sessions import check_cancelling_leaves_others, together

from edgespec import LLM
from edgespec.errors import DeviceError
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.execution.feeds import Feeds

PROMPTS = (
    "def fibonacci(n):\n",
    "import os\n\nclass Foo:\n    def __init__(self):\n",
    "# quicksort\ndef sort(a):\n",
    "for i in range(10):\n    print(",
    "class Tree:\n    def left(self):\n        return self.left\n",
    "x = [1, 2, 3]\n",
)


@pytest.fixture
def passes(monkeypatch):
    """Counts the texts of every pass that is not a prompt's."""
    found, fill = [], Feeds.fill_texts

    def count(self, texts):
        found.append(len([rows for rows, _ in texts if len(rows.tokens)]))
        fill(self, texts)

    monkeypatch.setattr(Feeds, "fill_texts", count)
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("draft", ["none", "lookup", "model", "auto"])
def test_texts_are_what_they_are_alone(engine, draft, passes):
    asked = [
        (prompt, {"max_new_tokens": 24 + 3 * n, "temperature": n % 2, "seed": n})
        for n, prompt in enumerate(PROMPTS)
    ]
    with LLM(device=engine, draft=draft, sessions=len(asked)) as llm:
        passes.clear()  # those that try whether rows are alike
        alone = [llm.generate(prompt, **options).tokens for prompt, options in asked]
        assert set(passes) <= {1}
        passes.clear()
        assert [each.tokens for each in together(llm, asked)] == alone
    assert max(passes) > len(asked) // 2


def test_many_texts_take_far_fewer_passes_than_tokens(passes):
    asked = [(prompt, {"max_new_tokens": 40}) for prompt in PROMPTS]
    with LLM(draft="none", sessions=len(asked)) as llm:
        passes.clear()
        results = together(llm, asked)
    assert len(passes) < sum(each.new_tokens for each in results) / 2
    assert [each.rounds for each in results] == [each.new_tokens - 1 for each in results]


def test_a_text_that_fails_takes_no_other_with_it(monkeypatch):
    with LLM(draft="lookup", sessions=4) as llm:
        alone = [llm.generate(prompt, max_new_tokens=30).tokens for prompt in PROMPTS[:4]]
        draft, wrong = LookupDrafter.draft, llm.tokenizer.encode(PROMPTS[2])

        def fail(self, text, budget):
            if [*text[: len(wrong)]] == wrong and len(text) > len(wrong) + 8:
                raise DeviceError("the test's device failed: use another")
            return draft(self, text, budget)

        monkeypatch.setattr(LookupDrafter, "draft", fail)
        found = together(llm, [(prompt, {"max_new_tokens": 30}) for prompt in PROMPTS[:4]])
        assert isinstance(found[2], DeviceError)
        for number in (0, 1, 3):
            assert found[number].tokens == alone[number]
        monkeypatch.undo()
        assert llm.generate(PROMPTS[2], max_new_tokens=30).tokens == alone[2]


def test_a_text_that_is_cancelled_leaves_the_others_and_frees_its_place():
    with LLM(draft="none", sessions=4) as llm:
        alone = [llm.generate(prompt, max_new_tokens=30).tokens for prompt in PROMPTS[:3]]
        check_cancelling_leaves_others(llm, PROMPTS[:3], alone, 30)


def test_a_prompt_holds_others_up_for_a_chunk_at_most(passes):
    """Between two chunks of a long prompt, every text that waits gets a round."""
    with LLM(draft="none", sessions=3, context=1024) as llm:
        others = [llm.stream(prompt, max_new_tokens=60) for prompt in PROMPTS[:2]]
        pieces = [iter(stream) for stream in others]
        for each in pieces:
            next(each)
        long = llm.stream([5, 6, 7] * 250, max_new_tokens=2)
        passes.clear()
        next(iter(long))
        assert sum(texts == 1 for texts in passes) > 8  # its chunks
        ready = [len(each) for each in (llm._texts.shared.rounds._texts[n].ready for n in range(2))]
        assert min(ready) >= 1
        assert passes.index(2) <= 1


def test_sessions_go_on_from_seats(passes):
    with LLM(draft="none", sessions=2) as llm:
        sessions = [llm.session() for _ in range(2)]
        prompts = list(PROMPTS[:2])
        for _ in range(3):
            found = together(
                llm, [(prompt, {"max_new_tokens": 20}) for prompt in prompts], sessions
            )
            fresh = [llm.generate(prompt, max_new_tokens=20).tokens for prompt in prompts]
            assert [each.tokens for each in found] == fresh
            prompts = [p + r.text + "\n" for p, r in zip(prompts, found, strict=True)]
    assert 2 in passes
