"""`edgespec eval --suite`: one card of texts and answers."""

from __future__ import annotations

import json

import pytest

from edgespec import LLM
from edgespec.measuring.perplexity import TokenizedText
from edgespec.measuring.suite import ANSWER_TOKENS, QUESTIONS, TEXTS, Suite, overall, read
from edgespec.models.embedded import BUNDLE
from edgespec.tuning.texts import PASSAGES

pytestmark = pytest.mark.slow

ONE_THREAD = "--threads=1"


def loaded():
    return LLM(BUNDLE, draft="none", threads=1)


@pytest.fixture(scope="module")
def llm():
    with loaded() as found:
        yield found


def test_a_card_with_and_without_a_reference(cli):
    result = cli("eval", BUNDLE, "--suite", ONE_THREAD)
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split()[1] for line in lines[2:7]] == [*TEXTS, "all"]
    assert [line[2:] for line in lines if line.startswith("> ")] == list(QUESTIONS)
    assert "KL" not in result.out
    assert "reference" not in result.out
    words = ["eval", BUNDLE, "--suite", "--against", BUNDLE, ONE_THREAD]
    facts = json.loads(cli(*words, "--json").out)
    assert list(facts["suite"]) == list(TEXTS)
    for found in facts["suite"].values():
        assert (found["against"]["mean_kl"], found["against"]["argmax_agreement"]) == (0, 1)
        assert found["against"]["perplexity"] == found["perplexity"]
    assert [answer["question"] for answer in facts["answers"]] == list(QUESTIONS)
    assert facts["against"]["bundle_hash"] == facts["bundle_hash"]
    assert cli(*words).out.count("reference: the same") == len(QUESTIONS)


def test_each_text_is_scored_as_eval_scores_it_and_answers_are_plain_greedy(llm):
    suite = Suite(llm)
    seen = []
    card = suite.run(lambda part, tokens: seen.append((part, tokens)))
    for kind, found in card.texts.items():
        assert found == TokenizedText(llm, read(kind)).evaluate()
    assert sum(tokens for _, tokens in seen) == suite.tokens
    asked = f"Question: {QUESTIONS[0]}\nAnswer:"
    expected = llm.generate(asked, max_new_tokens=ANSWER_TOKENS, stop=["\nQuestion:"])
    assert card.answers[0].text == expected.text
    assert card.answers[0].reference is None


def test_the_overall_means_weigh_every_token_alike(llm):
    with loaded() as reference:
        found = [TokenizedText(llm, read(kind), None, reference).evaluate() for kind in TEXTS]
    nats, kl, agreement = overall(found)
    scored = sum(each.scored for each in found)
    expected = sum(each.nats.value * each.scored for each in found) / scored
    assert (nats, kl, agreement) == (pytest.approx(expected), 0, 1)
    alone = [TokenizedText(llm, read(kind)).evaluate() for kind in TEXTS]
    assert overall(alone) == (pytest.approx(expected), None, None)


def test_no_bundle_is_fitted_to_its_texts():
    fitted = {line for passage in PASSAGES for line in passage.splitlines() if len(line) > 20}
    for kind in TEXTS:
        assert fitted.isdisjoint(read(kind).splitlines())
