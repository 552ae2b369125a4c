"""Texts of a Qwen3.5 drafted by its own head: never changed by it, in chains and in trees."""

from __future__ import annotations

import pytest
from drafts import adds_up, engines
from pairs import ENGINES, LONG_PROMPT, NEW_TOKENS
from sessions import OPTIONS, load, turns

TEXTS = ({}, {"temperature": 2.5, "seed": 3}, {"repetition_penalty": 1.3})


@pytest.mark.slow
@engines
@pytest.mark.parametrize("fields", TEXTS, ids=str)
def test_the_head_never_changes_the_text(pairs, engine, fields):
    options = {**fields, "max_new_tokens": NEW_TOKENS}
    plain = pairs.llm("mtp", engine, "none").generate(LONG_PROMPT, **options)
    if not fields:
        assert plain.tokens == pairs.greedy("mtp")
    for draft in ("head", "auto"):
        for nodes, width in ((3, 1), (7, 4), (16, 4)):
            result = pairs.llm("mtp", engine, draft).generate(
                LONG_PROMPT, num_assistant_tokens=nodes, tree_width=width, **options
            )
            assert result.tokens == plain.tokens, (draft, nodes, width)
            assert adds_up(result)


@engines
def test_the_head_is_often_right(pairs, engine):
    """Otherwise the test above would hardly commit a drafted row; trees are better than chains."""
    llm = pairs.llm("mtp", engine, "head")
    options = {"max_new_tokens": NEW_TOKENS, "num_assistant_tokens": 6}
    chain, tree = (
        llm.generate(LONG_PROMPT, tree_width=width, **options).mean_accepted_length
        for width in (1, 3)
    )
    assert min(chain, tree) > 2


@pytest.mark.slow
def test_texts_of_a_session_are_those_of_its_prompts_alone(pairs):
    plain = pairs.llm("mtp", ENGINES[0], "none")
    with load(pairs, "head", "mtp") as llm, llm.session() as session:
        reused = accepted = 0
        for prompt in turns(llm, 8):
            result = session.generate(prompt, **OPTIONS)
            assert result.tokens == plain.generate(prompt, **OPTIONS).tokens
            reused, accepted = reused + result.reused, accepted + result.accepted
    assert reused > 200
    assert accepted > 20


def test_a_saved_session_goes_on(pairs, tmp_path):
    file = tmp_path / "session"
    with load(pairs, "head", "mtp") as llm, llm.session() as session:
        session.generate(LONG_PROMPT, **OPTIONS)
        held = session.tokens
        session.save(file)
    expected = pairs.llm("mtp", ENGINES[0], "none").generate([*held, 4, 5], **OPTIONS).tokens
    for draft in ("none", "head"):
        with load(pairs, draft, "mtp").load_session(file) as session:
            result = session.generate([*held, 4, 5], **OPTIONS)
            assert result.reused == len(held)
            assert result.tokens == expected
