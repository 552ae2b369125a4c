"""Tokenizers in files of tiktoken: the tokens of merging by rank, and refusals."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import pairwise

import pytest
from checkpoints import make_checkpoint
from hard_texts import HARD_TEXTS
from test_gguf_tokenizers import KIMI, split
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from edgespec.errors import CheckpointError
from edgespec.models import load_checkpoint
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.tiktoken_file import TIKTOKEN_FILE, read_tiktoken

ADDED = {"[BOS]": True, "<|own_end|>": True, "<|own_tool|>": False}


def trained():
    """Ranks of tokens in bytes, and the words that texts are split into, as letters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split(KIMI))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(HARD_TEXTS * 3, trainer)
    return tokenizer.get_vocab(), tokenizer.pre_tokenizer


def merged(word, ranks):
    """The ids of a word as tiktoken finds them: neighbours of the least rank are merged first."""
    if word in ranks:
        return [ranks[word]]
    parts = list(word)
    while True:
        joined = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        best = min(joined, default=len(ranks))
        if best == len(ranks):
            return [ranks[part] for part in parts]
        place = joined.index(best)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def letters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [each for each in range(256) if each not in plain]
    return {chr(each): each for each in plain} | {chr(256 + n): each for n, each in enumerate(rest)}


def written(path, ranks):
    of = letters()
    lines = [
        f"{b64encode(bytes(of[each] for each in token)).decode()} {rank}"
        for token, rank in sorted(ranks.items(), key=lambda item: item[1])
    ]
    path.write_text("\n".join(lines) + "\n")


def config(first):
    added = {
        str(first + 2 * number): {"content": text, "special": special}
        for number, (text, special) in enumerate(ADDED.items())
    }
    return {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "<|own_end|>"}


def test_tokens_are_those_of_merging_by_rank(tmp_path):
    ranks, splitter = trained()
    path = tmp_path / TIKTOKEN_FILE
    written(path, ranks)
    fields = ConfigFields(config(len(ranks)), "tokenizer_config.json")
    found = Tokenizer.from_str(read_tiktoken(path, fields, "kimi-k2"))
    for text in HARD_TEXTS:
        words = [word for word, _ in splitter.pre_tokenize_str(text)]
        assert found.encode(text).ids == [id_ for word in words for id_ in merged(word, ranks)]
    ids = {text: len(ranks) + 2 * number for number, text in enumerate(ADDED)}
    assert {text: found.token_to_id(text) for text in ADDED} == ids
    assert found.encode("a<|own_end|>").ids[-1] == ids["<|own_end|>"]
    assert found.decode([ids["[BOS]"], ids["<|own_tool|>"]]) == "<|own_tool|>"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("YQ== zero", "line 3 is 'YQ== zero', not a token and its rank"),
        ("Y 2", "line 3 is 'Y 2'"),
        ("Yw== 1", "line 3 is 'Yw== 1'"),
        ("YQ== 5", "lacks tokens or has some twice"),
        ("YQ== 2", "lacks tokens or has some twice"),
    ],
)
def test_damaged_files_are_refused(tmp_path, line, message):
    path = tmp_path / TIKTOKEN_FILE
    path.write_text(f"YQ== 0\nYg== 1\n{line}\n")
    with pytest.raises(CheckpointError, match=message):
        read_tiktoken(path, ConfigFields({}, "tokenizer_config.json"), "kimi-k2")


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"2": {"content": 7}}, r"added_tokens_decoder=.* must have texts of tokens"),
        ({"9" * 5000: {"content": "a"}}, r"added_tokens_decoder=.* must have texts of tokens"),
        ({"2": {"content": "a", "lstrip": True}}, "lstrip=True"),
    ],
)
def test_added_tokens_that_cannot_be_read_are_refused(tmp_path, added, message):
    path = tmp_path / TIKTOKEN_FILE
    path.write_text("YQ== 0\nYg== 1\n")
    fields = ConfigFields({"added_tokens_decoder": added}, "tokenizer_config.json")
    with pytest.raises(CheckpointError, match=message):
        read_tiktoken(path, fields, "kimi-k2")


def test_a_folder_of_kimi_linear_is_opened_with_it(tmp_path):
    make_checkpoint(tmp_path, "kimi_linear", vocab_size=1000, tokens=0)
    ranks, _ = trained()
    written(tmp_path / TIKTOKEN_FILE, ranks)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config(len(ranks))))
    checkpoint = load_checkpoint(tmp_path)
    found = Tokenizer.from_str(checkpoint.tokenizer_files["tokenizer.json"])
    assert found.encode("def").ids
    assert checkpoint.eos_token == "<|own_end|>"
