"""Log-probabilities: the model's own, whatever drafts, for as many tokens as the text has."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import ENGINES, LONG_PROMPT, logits_of
from sessions import DRAFTS, OPTIONS

from edgespec.errors import InputError


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 1.5, "top_k": 9}], ids=["greedy", "sampled"]
)
def test_logprobs_are_the_models_own_whatever_drafts(pairs, engine, fields):
    for draft in DRAFTS:
        llm = pairs.llm("llama", engine, draft)
        result = llm.generate(LONG_PROMPT, logprobs=5, **OPTIONS, **fields)
        prompt = llm.tokenizer.encode(LONG_PROMPT)
        logits = logits_of(pairs.pair("llama").target, [*prompt, *result.tokens])
        rows = logits[len(prompt) - 1 : -1].astype(np.float64)[:, : llm.tokenizer.vocab_size]
        expected = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
        assert [each.token for each in result.logprobs] == result.tokens
        for each, row in zip(result.logprobs, expected, strict=True):
            assert each.logprob == pytest.approx(row[each.token], abs=2e-3)
            best = np.sort(row)[:-6:-1]
            assert [value for _, value in each.top] == pytest.approx(best, abs=2e-3)
            assert [row[id_] for id_, _ in each.top] == pytest.approx(best, abs=2e-3)


def test_logprobs_end_where_the_text_does(pairs):
    llm = pairs.llm("twin", ENGINES[0], "model")  # whose rounds have many tokens
    whole = llm.generate(LONG_PROMPT, **OPTIONS)
    assert whole.logprobs == ()
    for start in range(8, 24, 3):
        stop = whole.text[start : start + 4]
        cut = llm.generate(LONG_PROMPT, stop=(stop,), logprobs=0, **OPTIONS)
        assert [each.token for each in cut.logprobs] == cut.tokens
        assert len(cut.tokens) < len(whole.tokens)
        assert {each.top for each in cut.logprobs} == {()}
    with pytest.raises(InputError, match="logprobs is -1"):
        llm.generate(LONG_PROMPT, logprobs=-1)
