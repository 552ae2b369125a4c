"""Tokenizers that agree with their model not quite, as finetunes have them."""

from __future__ import annotations

import json
import shutil

import pytest
import tokenizers
from checkpoints import edit_json
from commandline import FAST, fails
from exports import refused
from tokenizers import processors

from edgespec import LLM, export
from edgespec import bundle as bundles
from edgespec.errors import BundleError, CheckpointError


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
        ("tokenizer_config.json", ["a"], (0,)),
        ("tokenizer_config.json", None, (0,)),
    ],
)
def test_a_text_ends_where_the_tokenizer_says_too(source, output, place, token, expected):
    (source / "special_tokens_map.json").write_text('{"eos_token": "b"}' if token is None else "{}")
    edit_json(source / place, eos_token=token)
    export.make(source, output)
    assert bundles.load(output).target.eos_ids == expected


def add_token(source, **token):
    """As `save_pretrained` writes it, behind all that the model has rows for."""
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": 331, "special": True, **flags, **token})
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))


def test_a_padding_token_without_a_row_is_left_out(source, output, caplog):
    add_token(source, content="<pad>")
    edit_json(source / "tokenizer_config.json", pad_token="<pad>")
    export.make(source, output, source)
    assert "tokenizer.json: left out '<pad>', whose ids exceed vocab_size 331" in caplog.text
    with LLM(output, draft="none") as llm:
        assert llm.tokenizer.vocab_size == 331
        assert max(llm.tokenizer.encode("a<pad>b")) < 331
        assert llm.generate("a<pad>b", max_new_tokens=2, regex="[a-z]+").new_tokens == 2


def test_a_broken_chat_template_is_exported_with_a_warning(cli, source, output):
    words = "export", source, "-o", output, "--precision", "fp32"
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert cli(*words).err == ""
    (source / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")
    found = cli(*words, "--overwrite")
    assert found.code == 0
    [line] = found.err.splitlines()
    assert "the chat template is broken (it fails on a plain message: Unexpected end of" in line
    assert f"repair it in {source} and export again" in line
    assert cli("run", output, "x", "--raw", "-n", 1, *FAST).code == 0
    fails(cli("run", output, "x", "-n", 1, *FAST), "the model's chat template is not")


def test_a_chat_template_that_shows_no_message_is_refused(cli, source, output):
    (source / "chat_template.jinja").write_text("{{ messages[0].role }}")
    refusal = f"{source}: the chat template shows nothing of what the user says"
    fails(cli("export", source, "-o", output, "--precision", "fp32"), refusal)
    assert not output.exists()
    export.make(source, output)
    with pytest.raises(BundleError, match="shows nothing of what the user says"):
        LLM(output)


@pytest.mark.parametrize("place", ["eos_token", "chat_template"])
def test_a_token_of_conversations_without_a_row_is_refused(source, output, place):
    add_token(source, content="<|im_end|>")
    edit_json(source / "tokenizer_config.json", **{place: "<|im_end|>"})
    refused(CheckpointError, "token id 331 exceeds vocab_size 331", output, source)


def test_a_beginning_of_texts_without_a_row_is_refused(source, output):
    add_token(source, content="<s>")
    begins = processors.TemplateProcessing("<s> $A", None, [("<s>", 331)])
    backend = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
    backend.post_processor = begins
    backend.save(str(source / "tokenizer.json"))
    refused(CheckpointError, "token id 331 exceeds vocab_size 331", output, source)


@pytest.mark.parametrize("place", ["eos_token", "chat_template"])
def test_a_token_of_conversations_that_only_the_settings_know_is_refused(source, output, place):
    settings = source / "tokenizer_config.json"
    known = {
        "0": {"content": "<|endoftext|>"},
        "1": "nothing",
        "330": {"content": "<|im_end|>"},
    }
    edit_json(settings, added_tokens_decoder=known, **{place: "<|endoftext|>"})
    export.make(source, output)
    shutil.rmtree(output)
    edit_json(settings, **{place: "<|im_end|>"})
    match = r"added_tokens_decoder: 330 is '<\|im_end\|>', which is missing in tokenizer\.json"
    refused(CheckpointError, match, output, source)
