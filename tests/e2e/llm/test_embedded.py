"""The pair that ships: one representative of a real, quantized model, end to end."""

from __future__ import annotations

import pytest
from checkout import ROOT

from edgespec import LLM
from edgespec.models.embedded import BUNDLE

PROMPT = '''def fibonacci(n):
    """Return the n-th Fibonacci number."""
'''
EQUAL = "self.assertEqual(add({}, {}), {})"


def test_the_first_command_needs_no_options():
    with LLM() as llm:
        assert (llm.bundle.path, llm.draft) == (BUNDLE, "auto")
        result = llm.generate(PROMPT, max_new_tokens=96)
        assert result.mean_accepted_length > 1.2
        assert result.finish_reason in ("length", "stop")
        assert "".join(llm.stream(PROMPT, max_new_tokens=96)) == result.text
        llm.bundle.verify()


def test_the_readmes_first_command_is_right_and_shows_what_drafting_brings():
    prompt = f"def test_add(self): {EQUAL.format(1, 2, 3)}; {EQUAL.format(2, 3, 5)};"
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f'edgespec run -n 72 "{prompt}"\n' in readme
    with LLM(threads=1) as llm:
        results = [llm.generate(prompt, max_new_tokens=72) for _ in range(3)]
    lines = [line.strip() for line in results[0].text.split("\n") if line]
    assert lines == [EQUAL.format(1, 2, 3), "def test_add(self):", *4 * [EQUAL.format(1, 2, 3)]]
    assert max(result.mean_accepted_length for result in results) >= 2.5


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
