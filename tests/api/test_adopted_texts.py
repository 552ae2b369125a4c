"""Texts of adopted models: every draft source gives chains, and no other text."""

from __future__ import annotations

import pytest
from adopted import FOLDER, make_original
from drafts import adds_up
from pairs import ENGINES, LONG_PROMPT, SHORT_PROMPT, with_eos

from edgespec import LLM
from edgespec.cli import main
from edgespec.runtime.execution.feeds import Rows

NEW_TOKENS = 60
TEXTS = (
    {},
    {"temperature": 2.0, "seed": 3},
    {"repetition_penalty": 1.3},
)
SIZES = ((0, 1), (3, 4), (7, 4), (16, 2))
PLACES = [
    (kind, engine)
    for kind in ("mistral", "gpt2", "genai")
    for engine in ENGINES
    if (kind, engine) != ("genai", "openvino:cpu")  # which has not all of its operators
]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Returns the bundle of a kind, with a draft that is sometimes right."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            draft = folder / "draft"
            make_original(draft, "genai" if kind == "gpt2" else kind, noise=0.05)
            options = ["--draft", draft, "--draft-precision", "fp32", "-o", folder / "bundle"]
            assert main(["export", *map(str, [FOLDER / kind, *options])]) == 0
            made[kind] = folder / "bundle"
        return made[kind]

    return get


@pytest.fixture
def calls(monkeypatch):
    """Collects the rows of all verifications."""
    seen, tree = [], Rows.tree

    def watched(*arguments):
        rows = tree(*arguments)
        seen.append(rows)
        return rows

    monkeypatch.setattr(Rows, "tree", watched)
    return seen


@pytest.mark.parametrize(("kind", "engine"), PLACES)
def test_no_source_changes_the_text(bundles, calls, kind, engine):
    place = {"device": engine, "draft_device": engine, "threads": 1}
    prompt = SHORT_PROMPT * 3
    with LLM(bundles(kind), draft="none", **place) as llm:
        plain = [llm.generate(prompt, max_new_tokens=NEW_TOKENS, **t).tokens for t in TEXTS]
    assert len(plain[0]) == NEW_TOKENS
    for draft in ("auto", "model", "lookup", "recycling"):
        accepted = 0
        with LLM(bundles(kind), draft=draft, **place) as llm:
            for nodes, width in SIZES if engine == ENGINES[0] else SIZES[2:3]:
                for expected, options in zip(plain, TEXTS, strict=True):
                    result = llm.generate(
                        prompt, max_new_tokens=NEW_TOKENS, num_assistant_tokens=nodes,
                        tree_width=width, **options,
                    )  # fmt: skip
                    assert result.tokens == expected, (draft, nodes, width, options)
                    adds_up(result)
                    accepted += result.accepted
        assert accepted, draft
    assert max(len(rows.tokens) for rows in calls) >= 8
    assert all(rows.is_chain for rows in calls)


def test_texts_to_the_end_of_the_context_and_sessions(bundles):
    with LLM(bundles("gpt2"), draft="auto", device=ENGINES[0], draft_device=ENGINES[0]) as llm:
        prompt = llm.tokenizer.encode(LONG_PROMPT)[:120]
        result = llm.generate(prompt, max_new_tokens=500)
        assert len(prompt) + len(result.tokens) == llm.context_length == 256
        with llm.session() as session:
            text = prompt[:60]
            text += [*session.generate(text, max_new_tokens=20).tokens, 5, 6]
            again = session.generate(text, max_new_tokens=20).tokens
            back = session.generate(text[:70], max_new_tokens=20).tokens
        assert again == llm.generate(text, max_new_tokens=20).tokens
        assert back == llm.generate(text[:70], max_new_tokens=20).tokens


def test_forced_tokens_and_drafts_are_one_chain(bundles, calls, tmp_path):
    bundle = with_eos(bundles("mistral"), tmp_path / "ending", 0)
    options = {"temperature": 0.7, "seed": 1, "regex": "(twice|twine|while) [a-z ]{9,20} return"}
    texts = []
    for draft in ("none", "auto", "model", "recycling"):
        with LLM(bundle, draft=draft, device=ENGINES[0], draft_device=ENGINES[0]) as llm:
            texts.append(llm.generate(SHORT_PROMPT, max_new_tokens=NEW_TOKENS, **options).tokens)
    assert texts == texts[:1] * len(texts)
    assert max(len(rows.tokens) for rows in calls) > 3
    assert all(rows.is_chain for rows in calls)
