"""Tokenizers and bundles of code models that can fill in text at a cursor."""

from __future__ import annotations

from pathlib import Path

from backends import spelled
from checkpoints import edit_json, make_checkpoint, write_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from edgespec import export
from edgespec.export import ExportOptions
from edgespec.runtime.text import tokenizer as runtime

VOCABULARY = 331
QWEN = (
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>",
)  # fmt: skip


def byte_level(*special: str) -> runtime.Tokenizer:
    """Returns a byte-level tokenizer with special tokens, and no beginning of a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({piece: n for n, piece in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    return runtime.Tokenizer(backend, {})


def sentence_piece(*special: str) -> runtime.Tokenizer:
    """Returns a tokenizer as Llama's: a text begins with <s>, and its first word with a space."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    backend = spelled(pieces, [("▁", "a")], *special)
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return runtime.Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


def make_filler(folder: Path, template: str | None = None) -> Path:
    """Makes a bundle of random weights with Qwen-Coder's tokens, whose texts end by these only."""
    checkpoint = folder / "checkpoint"
    make_checkpoint(checkpoint, "llama", eos_token_id=None)
    write_tokenizer(checkpoint, VOCABULARY - len(QWEN))
    backend = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    backend.add_special_tokens(list(QWEN))
    backend.save(str(checkpoint / "tokenizer.json"))
    assert backend.get_vocab_size() == VOCABULARY
    edit_json(checkpoint / "tokenizer_config.json", bos_token=None)
    if template is not None:
        (checkpoint / "chat_template.jinja").write_text(template)
    export.make(checkpoint, folder / "bundle", None, ExportOptions(precision="fp32"))
    return folder / "bundle"
