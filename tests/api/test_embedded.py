"""The pair that ships: one representative of a real, quantized model, end to end."""

from __future__ import annotations

import pytest

from edgespec import LLM
from edgespec.models.embedded import BUNDLE

PROMPT = '''def fibonacci(n):
    """Return the n-th Fibonacci number."""
'''


def test_the_first_command_needs_no_options():
    with LLM() as llm:
        assert (llm.bundle.path, llm.draft) == (BUNDLE, "auto")
        result = llm.generate(PROMPT, max_new_tokens=96)
        assert result.mean_accepted_length > 1.2
        assert result.finish_reason in ("length", "stop")
        assert "".join(llm.stream(PROMPT, max_new_tokens=96)) == result.text
        llm.bundle.verify()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 1}], ids=str)
def test_drafts_change_no_text(fields):
    with LLM(threads=1) as llm:
        assert llm.draft_sources == ("auto", "none", "model", "lookup", "recycling")
        texts = {
            draft: llm.generate(PROMPT, max_new_tokens=96, draft_source=draft, **fields).tokens
            for draft in llm.draft_sources
        }
        assert texts == dict.fromkeys(texts, texts["none"])
