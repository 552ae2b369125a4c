"""`LLM.infill`: the text at a cursor, what ends it, and what of its prompt is computed again."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from fillers import make_filler

from edgespec import LLM
from edgespec.errors import ContextLengthError, InputError
from edgespec.llm.llm import inside

PLACE = {"threads": 1}
BEFORE = "".join(f"def twice_{n}(x):\n    return x * 2\n\n\n" for n in range(6))
BEHIND = "\n\n\nprint(add(2, 3))\n"


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    return make_filler(tmp_path_factory.mktemp("filler"))


@pytest.fixture(scope="module")
def plain(filler):
    return LLM(filler, draft="none", **PLACE)


@pytest.fixture
def llm(filler):
    """As a server has it, with room for one text of full length."""
    with LLM(filler, draft="none", **PLACE) as llm:
        yield llm


def test_it_is_the_models_own_text_behind_its_prompt(filler, plain):
    around = BEFORE, BEHIND, [("a.py", "x = 1\n")]
    prompt = plain.infill_prompt(*around)
    expected = plain.generate(
        prompt.tokens, max_new_tokens=40, stop_token_ids=prompt.stop_ids, temperature=2.0, seed=1
    )
    for draft in ("none", "lookup"):
        with LLM(filler, draft=draft, **PLACE) as llm:
            found = llm.infill(*around, max_new_tokens=40, temperature=2.0, seed=1)
            assert found.tokens == expected.tokens
            assert found.prompt_tokens == len(prompt.tokens)


def test_it_ends_at_tokens_of_the_form_which_are_not_shown(plain):
    """Here the model is so hot that it soon writes one."""
    stop_ids = plain.infill_prompt("", "").stop_ids
    ended = [
        plain.infill(BEFORE, BEHIND, temperature=50.0, seed=seed, max_new_tokens=400)
        for seed in range(4)
    ]
    for result in ended:
        assert result.finish_reason == "stop"
        assert result.tokens[-1] in stop_ids
        assert not set(result.tokens[:-1]) & set(stop_ids)
        assert "<|" not in result.text
    without = plain.generate(
        plain.infill_prompt(BEFORE, BEHIND).tokens, temperature=50.0, seed=0, max_new_tokens=200
    )
    assert without.finish_reason == "length"  # nothing else ends it
    assert without.tokens[: len(ended[0].tokens)] == ended[0].tokens


def test_further_tokens_may_end_it(plain):
    whole = plain.infill(BEFORE, BEHIND, max_new_tokens=20)
    third = whole.tokens[2]
    found = plain.infill(BEFORE, BEHIND, max_new_tokens=20, stop_token_ids=(third,))
    assert found.tokens == whole.tokens[: whole.tokens.index(third) + 1]
    assert found.finish_reason == "stop"
    # The end is not shown, as no end of a text is.
    shown = plain.tokenizer.decode(found.tokens[:-1])
    assert found.text == shown


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_it_ends_with_the_line_before_one_that_is_indented_too_little(filler, draft):
    with LLM(filler, draft=draft, **PLACE) as llm:
        asked = {"temperature": 1.5, "max_new_tokens": 120}
        texts = (llm.infill(BEFORE, BEHIND, seed=seed, **asked) for seed in range(20))
        whole = next(text for text in texts if re.search(r"\n[^\n]*\S", text.text))
        found = llm.infill(BEFORE, BEHIND, seed=whole.seed, min_indent=40, **asked)
    assert found.finish_reason == "stop"
    assert found.text == whole.text.split("\n")[0]
    assert found.tokens == whole.tokens[: len(found.tokens)]
    assert len(found.tokens) < len(whole.tokens)


def test_after_its_time_it_ends_with_its_line(plain):
    asked = {"temperature": 1.5, "max_new_tokens": 200}
    texts = (plain.infill(BEFORE, BEHIND, seed=seed, **asked) for seed in range(20))
    whole = next(text for text in texts if "\n" in text.text)
    asked["seed"] = whole.seed
    found = plain.infill(BEFORE, BEHIND, max_time=1e-9, **asked)
    assert found.text == whole.text.split("\n")[0]
    assert found.finish_reason == "stop"
    assert plain.infill(BEFORE, BEHIND, max_time=600.0, **asked).text == whole.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_indent": -1}, "min_indent is -1"),
        ({"max_time": 0}, "max_time is 0"),
        ({"max_time": "1s"}, "max_time is '1s'"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids is"),
    ],
)
def test_wrong_options_are_refused(plain, options, reason):
    with pytest.raises(InputError, match=reason):
        plain.infill(BEFORE, BEHIND, **options)


@pytest.mark.parametrize("around", [(b"x", ""), ("x", None), ("x", "", [("a.py", 5)])])
def test_what_is_no_text_is_refused(plain, around):
    with pytest.raises(InputError, match="is no text"):
        plain.infill(*around)


@pytest.mark.parametrize("files", [["abc"], [("a.py",)], [5], 5])
def test_files_that_are_no_pairs_are_refused(plain, files):
    with pytest.raises(InputError, match="give pairs of a name and a text"):
        plain.infill("x", "", files)


def test_numbers_of_numpy_are_numbers(plain):
    found = plain.infill(BEFORE, BEHIND, max_new_tokens=4, stop_token_ids=np.array([5]))
    assert found.new_tokens <= 4


def test_a_model_that_cannot_fill_in_says_so():
    with (
        LLM(draft="none", **PLACE) as llm,
        pytest.raises(InputError, match="cannot fill in text"),
    ):
        llm.infill("def add(a, b):\n", "")


def test_a_text_that_is_too_long_is_cut_and_room_is_left(filler):
    with LLM(filler, draft="none", context=128, **PLACE) as llm:
        found = llm.infill(BEFORE * 9, BEHIND * 9, max_new_tokens=1000)
        assert 80 < found.prompt_tokens <= 96
        assert found.finish_reason in ("context", "stop")
    with (
        LLM(filler, draft="none", context=3, **PLACE) as llm,
        pytest.raises(ContextLengthError),
    ):
        llm.infill(BEFORE, BEHIND)


# What is computed again


@pytest.fixture
def rows(llm, monkeypatch):
    """The rows of each pass from now on."""
    rows = []
    graph = inside(llm).engine.target.graph

    def counted(feeds):
        rows.append(feeds["input_ids"].size)
        return graph(feeds)

    monkeypatch.setattr(inside(llm).engine.target, "graph", counted)
    return rows


def length_until_cursor(llm, typed):
    """Tokens of the prompt before what follows the cursor."""
    return len(llm.infill_prompt(BEFORE + typed, "").tokens) - 2


TYPED = ["", "def ", "def add(a, b):\n", "def add(a, b):\n    return "]


@pytest.mark.parametrize("behind", [BEHIND, BEHIND * 10], ids=["short", "long"])
def test_what_is_before_an_edit_is_not_computed_again(llm, plain, rows, behind):
    """Also where the suffix, which is new, is most of the prompt, and memory is for one text."""
    for before, typed in pairwise([None, *TYPED]):
        prompt = llm.infill_prompt(BEFORE + typed, behind)
        rows.clear()
        found = llm.infill(BEFORE + typed, behind, max_new_tokens=1)
        assert found.tokens == plain.generate(prompt.tokens, max_new_tokens=1).tokens
        # The last words before the cursor may become other tokens; chunks have some idle rows.
        same = 0 if before is None else length_until_cursor(llm, before) - 3
        assert found.reused >= same
        assert sum(rows) <= len(prompt.tokens) - same + 64


def test_a_warmed_prompt_is_not_computed_again(llm, rows):
    """As editors send it: the files alone, before anything is typed."""
    files = [("a.py", BEFORE)]
    llm.infill("", "", files, max_new_tokens=1)
    rows.clear()
    found = llm.infill("def add(a, b):\n", BEHIND, files, max_new_tokens=1)
    assert found.reused >= len(llm.infill_prompt("", "", files).tokens) - 2
    assert sum(rows) <= 64
