"""Which tokens a draft may propose: those of a text first, then the lowest ids."""

from __future__ import annotations

import json
import shutil

import pytest

from edgespec import bundle
from edgespec.errors import InputError
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning.draft_vocabulary import choose_draft_vocabulary


@pytest.fixture(scope="module")
def source(saved_checkpoint):
    return saved_checkpoint("llama")


def test_tokens_of_the_text_come_first_and_the_lowest_ids_fill_up(source, tmp_path):
    tokenizer, text = Tokenizer.from_folder(source), tmp_path / "text.txt"
    text.write_text("return x * 2\n" * 20)
    used = set(tokenizer.encode(text.read_text()))
    always = used | set(tokenizer.special_ids)
    found = choose_draft_vocabulary(source, len(always) + 10, text)
    assert always <= set(found.ids)
    assert list(found.ids) == sorted(set(found.ids))
    filled = [id_ for id_ in range(tokenizer.vocab_size) if id_ not in always][:10]
    assert set(found.ids) == {*always, *filled}
    assert found.covered == 1  # both halves are alike
    assert f"{len(found.ids):,} of {tokenizer.vocab_size:,} tokens" in str(found)


def test_coverage_is_of_text_that_was_not_chosen_from(source, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a" * 400 + "~" * 400)
    tokenizer = Tokenizer.from_folder(source)
    found = choose_draft_vocabulary(source, len(tokenizer.special_ids) + 3, text)
    assert found.covered < 0.5


def test_a_size_beyond_the_vocabulary_is_all_of_it(source):
    found = choose_draft_vocabulary(source, 10**6)
    assert found.ids == tuple(range(Tokenizer.from_folder(source).vocab_size))
    assert found.covered == 1


def test_a_token_without_a_row_is_not_proposed(cli, source, output, tmp_path):
    """Many finetunes have a special token for padding behind the model's vocabulary."""
    folder = shutil.copytree(source, tmp_path / "padded")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": 331, "content": "<pad>", "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = cli("export", folder, "--draft", folder, "--draft-vocabulary", 200, "-o", output)
    assert found.code == 0, found.err
    assert "200 of 331 tokens" in found.out


def test_an_empty_text_is_refused(source, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(InputError, match="is empty"):
        choose_draft_vocabulary(source, 100, tmp_path / "empty.txt")


def test_the_command_trims_and_says_what_is_covered(cli, source, output):
    found = cli("export", source, "--draft", source, "--draft-vocabulary", 200, "-o", output)
    assert found.code == 0
    assert "draft vocabulary: 200 of 331 tokens, which cover " in found.out
    assert bundle.load(output).manifest.roles["draft"].output_tokens == 200
    assert (
        json.loads((output / "manifest.json").read_text())["roles"]["target"].get(
            "output_tokens", 0
        )
        == 0
    )
    assert "of 331 scored" in cli("inspect", output).out


@pytest.mark.parametrize("size", ["0", "k", "-5", "32kb", "many", ""])
def test_a_size_that_is_no_number_is_refused(cli, source, output, size):
    found = cli("export", source, "--draft", source, f"--draft-vocabulary={size}", "-o", output)
    assert found.code == 2
    assert "give a number of tokens, such as 32k or 20000" in found.err


def test_without_a_draft_it_is_refused(cli, source, output):
    found = cli("export", source, "--draft-vocabulary", "32k", "-o", output)
    assert found.code == 2
    assert "--draft-vocabulary does nothing without --draft" in found.err
