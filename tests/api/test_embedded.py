"""The pair that ships: one representative of a real, quantized model, end to end."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import ENGINES

from edgespec import LLM
from edgespec.api.loading import DRAFTS
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.noise import gumbel

PROMPT = '''def fibonacci(n):
    """Return the n-th Fibonacci number."""
'''
NEW_TOKENS = 96
# The leads over the second best, in standard deviations of the row's logits, that quantized
# kernels may turn around where they round a row differently when it comes with other rows.
NEAR_TIE = 0.05


# It has no skip sets, no head, and a draft without a mask token.
OFFERED = [draft for draft in DRAFTS if draft not in ("layer-skip", "head", "parallel")]


@pytest.fixture(scope="module", params=ENGINES)
def llms(request):
    place = {"device": request.param, "draft_device": request.param, "threads": 1}
    return {draft: LLM(draft=draft, **place) for draft in OFFERED}


def lead(llm, text, temperature=0.0, seed=0):
    """By how much the token after `text` won, in standard deviations of the logits."""
    row = Runner(llm.target).prefill(text)["logits"][0].astype(np.float64)
    noise = gumbel(seed, len(text), np.arange(row.size))
    second, first = np.sort(row + temperature * noise)[-2:]
    return (first - second) / row.std()


@pytest.mark.slow
@pytest.mark.parametrize("draft", [draft for draft in OFFERED if draft != "none"])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 1}], ids=str)
def test_the_text_is_that_of_plain_decoding(llms, draft, fields):
    """Up to near-ties where kernels are such that rows are not alike in all company."""
    plain = llms["none"].generate(PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    result = llms[draft].generate(PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    same = zip(plain.tokens, result.tokens, strict=False)
    differing = [place for place, (one, other) in enumerate(same) if one != other]
    if differing:
        assert not llms["none"].target.exact
        prompt = llms["none"].tokenizer.encode(PROMPT)
        text = [*prompt, *plain.tokens[: differing[0]]]
        assert lead(llms["none"], text, **fields) < NEAR_TIE
    else:
        assert result.tokens == plain.tokens
    assert draft != "model" or result.accepted > 0


def test_the_first_command_needs_no_options():
    llm = LLM()
    assert llm.bundle.path == BUNDLE
    assert llm.draft == "auto"
    result = llm.generate(PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.mean_accepted_length > 1.2
    assert result.finish_reason in ("length", "stop")
    pieces = llm.stream(PROMPT, max_new_tokens=NEW_TOKENS)
    assert "".join(pieces) == result.text


def test_the_bundle_is_whole():
    LLM(draft="none").bundle.verify()
