"""Questions about long texts, and answers to them by two bundles."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from pairs import ENGINES

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
haystacks = importlib.import_module("haystacks")
needle = importlib.import_module("needle")


def words(text):
    return len(text.split())


@pytest.fixture
def answered(capsys, monkeypatch):
    """Runs the benchmark and returns what its last line says."""

    def run(*arguments):
        argv = ["needle.py", *map(str, arguments), "--device", ENGINES[0], "--threads", "1"]
        monkeypatch.setattr(sys, "argv", argv)
        assert needle.exit_code(needle.main) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_each_answer_is_in_its_text_once():
    for made in haystacks.haystacks(3, 400, words, 4):
        assert 400 <= words(made.text) < 440
        assert [each.kind for each in made.questions] == ["needle"] * 4 + ["copy"] * 4
        assert len({each.text for each in made.questions}) == 8
        for question in made.questions:
            assert all(made.text.count(part) == 1 for part in question.wanted)
            assert question.holds(f"Of course:\n{made.text}")


def test_texts_are_others_and_always_the_same():
    first, second = (haystacks.haystacks(2, 300, words, 2) for _ in range(2))
    assert first == second
    assert first[0].text != first[1].text


def test_copied_notes_are_those_of_the_numbers():
    (made,) = haystacks.haystacks(1, 400, words, 3)
    lines = made.text.splitlines()
    for question in made.questions[3:]:
        first, last = (int(word) for word in question.text.split() if word.isdigit())
        copied = [line.split(": ", 1)[1] for line in lines[first - 1 : last]]
        assert question.wanted == tuple(copied)
        assert question.holds(" and \n".join(copied).replace(" ", "  "))
        assert not question.holds(" ".join(reversed(copied)))
        assert not question.holds(copied[0])


def test_notes_are_sentences_of_given_texts():
    text = (
        "One sentence that has enough words is this one. Too short! Another one that\nhas as many "
    )
    text += "words is this other one. "
    (made,) = haystacks.haystacks(1, 100, words, 1, [text])
    notes = {line.split(": ", 1)[1] for line in made.text.splitlines()}
    assert {note for note in notes if "access code" not in note} == {
        "One sentence that has enough words is this one.",
        "Another one that has as many words is this other one.",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((30, words, 5), "30 tokens have"), ((900, words, 99), "at most"),
     ((99, words, 1, ["a b c"]), "no sentence")],
)  # fmt: skip
def test_what_cannot_be_asked(arguments, message):
    with pytest.raises(ValueError, match=message):
        haystacks.haystacks(1, *arguments)


def test_answers_are_compared_with_those_of_the_first_bundle(pairs, answered):
    paths = [pairs.pair(name).path for name in ("llama", "small-caches", "qwen3")]
    options = ("--tokens", 350, "--asked", 1, "--prompts", 4, "--new-tokens", 8)
    found = answered(*paths, *options)
    own, small, other = found["caches"]
    assert found["prompts"] == 4
    assert min(found["prompt_tokens"]) > 350
    assert (own["cache"], small["cache"]) == ("fp32", "int8")
    assert (own["same"], own["different"], own["exact"]) == (1, [], True)
    assert (other["same"], other["different"]) == (0, [0, 1, 2, 3])
    assert own["needle"] == own["copy"] == 0  # of random weights
    assert 0 < own["new_tokens"] <= 4 * 8


def test_a_session_does_not_change_an_answer(pairs, monkeypatch):
    path = pairs.pair("small-caches").path
    argv = ["needle.py", str(path), "--tokens", "350", "--asked", "2", "--prompts", "4",
            "--new-tokens", "8", "--device", ENGINES[0], "--threads", "1"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", argv)
    arguments = needle._parse_arguments()
    prompts = needle._prompts(path, needle._haystacks(arguments))
    found = needle._answers(path, prompts, arguments)
    llm = pairs.llm("small-caches", ENGINES[0], "none")
    alone = [llm.generate(each.tokens, max_new_tokens=8).tokens for each in prompts[0]]
    assert found.tokens == alone
    assert found.texts[0] == llm.tokenizer.decode(alone[0])
