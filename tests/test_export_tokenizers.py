"""Tokenizers that agree with their model not quite, as finetunes have them."""

from __future__ import annotations

import shutil

import pytest
from checkpoints import edit_json

from edgespec import bundle as bundles
from edgespec.export import export_bundle


@pytest.fixture
def source(saved_checkpoint, tmp_path):
    """A checkpoint whose tokenizer may be changed; text ends at 0 by its configs."""
    return shutil.copytree(saved_checkpoint("llama"), tmp_path / "source")


@pytest.mark.parametrize(
    ("place", "token", "expected"),
    [
        ("tokenizer_config.json", "a", (0, 65)),
        ("tokenizer_config.json", {"content": "a"}, (0, 65)),
        ("special_tokens_map.json", {"content": "a"}, (0, 65)),
        ("tokenizer_config.json", "<|endoftext|>", (0,)),
        ("tokenizer_config.json", "<|nowhere|>", (0,)),
        ("tokenizer_config.json", None, (0,)),
    ],
)
def test_a_text_ends_where_the_tokenizer_says_too(source, output, place, token, expected):
    (source / "special_tokens_map.json").write_text('{"eos_token": "b"}' if token is None else "{}")
    edit_json(source / place, eos_token=token)
    export_bundle(source, output)
    assert bundles.load(output).target.eos_ids == expected
