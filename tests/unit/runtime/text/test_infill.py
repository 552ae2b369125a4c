"""Prompts for the text at a cursor: the form of each family, and what is left out of long ones."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from fillers import QWEN, byte_level, sentence_piece
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import ContextLengthError, InputError
from edgespec.runtime.text.infill import InfillFormat
from edgespec.runtime.text.plain import PlainEncoder
from edgespec.runtime.text.tokenizer import Tokenizer

ROOM = 10_000
FILES = [("a.py", "x = 1\n"), ("b.py", "y = 2\n")]
CODE_LLAMA = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")  # noqa: RUF001 - their names
STARCODER = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>")

FORMS = {
    "Qwen-Coder": (
        QWEN,
        "<|fim_prefix|>PRE<|fim_suffix|>SUF<|fim_middle|>",
        "<|repo_name|>project\n<|file_sep|>a.py\nx = 1\n<|file_sep|>b.py\ny = 2\n"
        "<|file_sep|>filename\n<|fim_prefix|>PRE<|fim_suffix|>SUF<|fim_middle|>",
    ),
    "CodeGemma": (
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>"),
        "<|fim_prefix|>PRE<|fim_suffix|>SUF<|fim_middle|>",
        "a.py\nx = 1\n<|file_separator|>b.py\ny = 2\n<|file_separator|>"
        "<|fim_prefix|>PRE<|fim_suffix|>SUF<|fim_middle|>",
    ),
    "Granite 4": (
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|end_of_text|>"),
        "<|fim_prefix|>PRE<|fim_suffix|>SUF<|fim_middle|>",
        "#a.py\nx = 1\n\n#b.py\ny = 2\n\n<|fim_prefix|>PRE<|fim_suffix|>SUF<|fim_middle|>",
    ),
    "StarCoder2": (
        (*STARCODER, "<repo_name>", "<file_sep>"),
        "<fim_prefix>PRE<fim_suffix>SUF<fim_middle>",
        "<repo_name>project<file_sep>a.py\nx = 1\n<file_sep>b.py\ny = 2\n<file_sep>"
        "<fim_prefix>PRE<fim_suffix>SUF<fim_middle>",
    ),
    "StarCoder, Granite Code": (
        (*STARCODER, "<filename>", "<reponame>"),
        "<fim_prefix>PRE<fim_suffix>SUF<fim_middle>",
        "#a.py\nx = 1\n\n#b.py\ny = 2\n\n<fim_prefix>PRE<fim_suffix>SUF<fim_middle>",
    ),
    "DeepSeek-Coder": (
        DEEPSEEK,
        DEEPSEEK[0] + "PRE" + DEEPSEEK[1] + "SUF" + DEEPSEEK[2],
        "#a.py\nx = 1\n\n#b.py\ny = 2\n\n" + DEEPSEEK[0] + "PRE" + DEEPSEEK[1] + "SUF"
        + DEEPSEEK[2],
    ),
    "Codestral": (
        ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
        "[SUFFIX]SUF[PREFIX]PRE",
        "#a.py\nx = 1\n\n#b.py\ny = 2\n\n[SUFFIX]SUF[PREFIX]PRE",
    ),
}  # fmt: skip


def text(tokenizer, prompt):
    return tokenizer.decode(prompt.tokens, skip_special=False)


@pytest.mark.parametrize("family", FORMS)
def test_the_form_of_a_family(family):
    special, alone, among = FORMS[family]
    tokenizer = byte_level(*special)
    form = InfillFormat(tokenizer)
    assert text(tokenizer, form.prompt("PRE", "SUF", [], ROOM)) == alone
    found = form.prompt("PRE", "SUF", FILES, ROOM)
    assert text(tokenizer, found) == among
    ids = [tokenizer.backend.token_to_id(name) for name in special]
    used = [id_ for id_, name in zip(ids, special, strict=True) if name in among]
    # Each by its own token, and not by its letters.
    assert set(used) == {token for token in found.tokens if token >= 256}
    assert set(used) <= set(found.stop_ids)
    assert found.left_out == 0


def test_code_llama_has_a_space_before_the_prefix_and_none_before_the_suffix():
    """As Meta's `infilling_prompt_tokens` writes it."""
    tokenizer = sentence_piece(*CODE_LLAMA)
    of = tokenizer.backend.token_to_id
    found = InfillFormat(tokenizer).prompt("a", "a a", [], ROOM)
    assert found.tokens == [
        of("<s>"),
        of("▁<PRE>"),
        of("▁a"),
        of("▁<SUF>"),
        of("a"),
        of("▁a"),
        of("▁<MID>"),
    ]
    assert {of("▁<EOT>"), of("</s>")} <= set(found.stop_ids)


def test_the_tokens_that_a_config_names():
    """As those of GGUF files do, whatever the tokens' names are."""
    names = ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")
    tokenizer = byte_level(*names)
    assert not InfillFormat.known(tokenizer)
    config = dict(zip(("prefix_token", "suffix_token", "middle_token"), names, strict=True))
    named = Tokenizer(tokenizer.backend, config)
    assert InfillFormat.known(named)
    found = text(named, InfillFormat(named).prompt("PRE", "SUF", [], ROOM))
    assert found == "<|code_prefix|>PRE<|code_suffix|>SUF<|code_middle|>"
    missing = Tokenizer(tokenizer.backend, {**config, "middle_token": "<|none|>"})
    assert not InfillFormat.known(missing)


def test_a_tokenizer_without_such_tokens_is_refused():
    tokenizer = byte_level("<|im_start|>", "<repo_name>", "<file_sep>")
    assert not InfillFormat.known(tokenizer)
    with pytest.raises(InputError, match=r"cannot fill in text: its tokenizer has no tokens"):
        InfillFormat(tokenizer)


# What is written out


def test_names_of_special_tokens_in_files_are_text():
    tokenizer = byte_level(*QWEN)
    prefix, suffix = 'FIRST = "<|fim_prefix|>', '"\nLAST = "<|fim_middle|>"\n<|file_sep|>'
    files = [("<|repo_name|>.py", "<|fim_suffix|><|fim_suffix|>")]
    found = InfillFormat(tokenizer).prompt(prefix, suffix, files, ROOM)
    for part in (prefix, suffix, *files[0]):
        assert part in text(tokenizer, found)
    special = [token for token in found.tokens if token >= 256]
    assert [tokenizer.backend.id_to_token(token) for token in special] == [
        "<|repo_name|>",
        "<|file_sep|>",
        "<|file_sep|>",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
    ]


PIECES = st.lists(st.sampled_from(["<s>", "▁<PRE>", "<", "s>", " ", "a", "é", "\n"]), max_size=8)


@given(PIECES, st.booleans())
def test_text_is_encoded_as_it_stands(pieces, inside):
    written = "".join(pieces)
    # SentencePiece's mark cannot be told from a space.
    for tokenizer, expected in (
        (byte_level("<s>", "▁<PRE>"), written),
        (sentence_piece("▁<PRE>"), written.replace("▁", " ")),
    ):
        ids = PlainEncoder(tokenizer).encode(written, inside)
        assert not tokenizer.special_ids & set(ids)
        before = tokenizer.encode("a", add_special=False) if inside else []
        assert tokenizer.decode([*before, *ids]) == "a" * inside + expected


# What is left out


def test_what_is_near_the_cursor_is_kept():
    tokenizer = byte_level(*QWEN)
    prefix = "".join(map(str, range(200)))
    suffix = "".join(map(str, range(200, 400)))
    found = InfillFormat(tokenizer).prompt(prefix, suffix, [], 103)
    before, behind = (
        text(tokenizer, found).removeprefix("<|fim_prefix|>").removesuffix("<|fim_middle|>")
    ).split("<|fim_suffix|>")
    assert prefix.endswith(before)
    assert suffix.startswith(behind)
    assert 69 <= len(before) <= 79
    assert 19 <= len(behind) <= 25
    assert len(found.tokens) <= 103
    assert found.left_out == len(prefix) + len(suffix) - len(before) - len(behind)


@pytest.mark.parametrize(("short", "long"), [("prefix", "suffix"), ("suffix", "prefix")])
def test_what_one_side_does_not_need_the_other_may_take(short, long):
    tokenizer = byte_level(*QWEN)
    texts = {short: "Q", long: "Z" * 200}
    found = InfillFormat(tokenizer).prompt(texts["prefix"], texts["suffix"], [], 103)
    assert text(tokenizer, found).count("Q") == 1
    assert 90 <= text(tokenizer, found).count("Z") <= 99


def test_files_give_way_first_and_the_first_of_them_before_the_last():
    tokenizer = byte_level(*QWEN)
    files = [("a.py", "1" * 300), ("b.py", "2" * 40)]
    found = InfillFormat(tokenizer).prompt("Q" * 40, "Z" * 40, files, 250)
    shown = text(tokenizer, found)
    assert (shown.count("Q"), shown.count("Z"), shown.count("2")) == (40, 40, 40)
    assert 50 < shown.count("1") < 120
    assert shown.startswith("<|repo_name|>project\n1")
    # Where there is hardly room for them, the prompt still has its form.
    found = InfillFormat(tokenizer).prompt("Q" * 400, "Z" * 400, files, 250)
    assert re.match(r"<\|repo_name\|>project\n2{0,16}<\|file_sep", text(tokenizer, found))
    assert len(found.tokens) <= 250


@pytest.mark.parametrize("special", [QWEN, ("[PREFIX]", "[SUFFIX]")], ids=["before", "behind"])
@pytest.mark.parametrize("files", [[], [("a.py", "0123456789" * 60)]], ids=["alone", "files"])
@pytest.mark.parametrize("behind", [10, 2000])
def test_the_beginning_of_a_long_prompt_stays_while_text_is_typed(special, files, behind):
    """Or all of it would be computed again at each key."""
    form = InfillFormat(byte_level(*special))
    prefix = "".join(map(str, range(600)))
    suffix = "".join(map(str, range(behind)))
    prompts = [
        form.prompt(prefix + "z" * typed, suffix, files, 1024).tokens for typed in range(100)
    ]
    assert all(800 < len(prompt) <= 1024 for prompt in prompts)
    kept = [
        next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        for one, other in pairwise(prompts)
    ]
    assert sum(length < 500 for length in kept) <= 4  # of 99 keys


def test_too_little_room_is_an_error():
    form = InfillFormat(byte_level(*QWEN))
    assert len(form.prompt("", "", [], 4).tokens) == 3
    with pytest.raises(ContextLengthError, match="room for 3 tokens"):
        form.prompt("x", "y", [], 3)
