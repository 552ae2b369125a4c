"""Texts of adopted models: every draft source, sessions and several texts at once change none."""

from __future__ import annotations

import pytest
from adopted import FOLDER, KINDS, Original, make_original
from drafts import adds_up
from native_llms import cheapen
from pairs import LONG_PROMPT, SHORT_PROMPT, with_eos

from edgespec import LLM, export
from edgespec.export import ExportOptions, find_onnx
from edgespec.tuning.adopting import adopt

NEW_TOKENS = 60
TEXTS = ({}, {"temperature": 2.0, "seed": 3}, {"repetition_penalty": 1.3})
SIZES = (0, 3, 16)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Returns the bundle of a kind, with a draft that is sometimes right."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            draft, made[kind] = folder / "draft", folder / "bundle"
            make_original(draft, "genai" if kind == "gpt2" else kind, noise=0.05)
            adopted = folder / "adopted"
            adopted.mkdir()
            adopt(find_onnx(str(FOLDER / kind)), kind, adopted)
            export.make(adopted, made[kind], draft, ExportOptions(draft_precision="fp32"))
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_no_source_changes_the_text(bundles, kind):
    with LLM(bundles(kind), threads=1) as llm:
        cheapen(llm)
        prompt = llm.tokenizer.encode(SHORT_PROMPT * 3)
        options = [{"max_new_tokens": NEW_TOKENS, **each} for each in TEXTS]
        plain = [llm.generate(prompt, draft_source="none", **each).tokens for each in options]
        assert plain[0] == Original(FOLDER / kind / "model.onnx").greedy(prompt, NEW_TOKENS)
        accepted = 0
        for source in ("auto", "model", "lookup", "recycling"):
            for nodes in SIZES:
                for expected, each in zip(plain, options, strict=True):
                    result = llm.generate(
                        prompt, draft_source=source, num_assistant_tokens=nodes, **each
                    )
                    assert result.tokens == expected, (source, nodes, each)
                    adds_up(result)
                    accepted += result.accepted
        assert accepted


def test_the_end_of_the_context_sessions_and_several_texts(bundles):
    with LLM(bundles("gpt2"), threads=1) as llm:
        prompt = llm.tokenizer.encode(LONG_PROMPT)[:120]
        result = llm.generate(prompt, max_new_tokens=500)
        assert len(prompt) + len(result.tokens) == llm.context_length == 256
        assert result.tokens == Original(FOLDER / "gpt2/model.onnx").greedy(prompt, 136)
        with llm.session() as session:
            text = prompt[:60]
            text += [*session.generate(text, max_new_tokens=20).tokens, 5, 6]
            again = session.generate(text, max_new_tokens=20).tokens
            back = session.generate(text[:70], max_new_tokens=20).tokens
        llm.forget()
        assert again == llm.generate(text, max_new_tokens=20).tokens
        assert back == llm.generate(text[:70], max_new_tokens=20).tokens
        llm.forget()
        several = llm.generate([text, text[:70], prompt[:9]], max_new_tokens=20)
        assert [each.tokens for each in several[:2]] == [again, back]


def test_forced_tokens_and_drafts_go_together(bundles, tmp_path):
    options = {"temperature": 0.7, "seed": 1, "regex": "(twice|twine|while) [a-z ]{9,20} return"}
    with LLM(with_eos(bundles("mistral"), tmp_path / "ending", 0), threads=1) as llm:
        texts = [
            llm.generate(SHORT_PROMPT, draft_source=each, max_new_tokens=NEW_TOKENS, **options)
            for each in ("none", "auto", "model", "recycling")
        ]
    assert [each.tokens for each in texts] == [texts[0].tokens] * len(texts)
    assert sum(each.accepted for each in texts) > 0
