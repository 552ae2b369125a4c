"""Random checkpoints of models whose rows see all of their text, and what transformers computes."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import randomize
from embeddings import write_modules
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForSequenceClassification

from edgespec.runtime.arrays import Floats

TEXTS = [
    "The quick brown fox jumps over the lazy dog",
    "a tree",
    "one two three four five six seven eight nine ten " * 9,
    "x",
]
SIZES: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = ["the", "quick", "brown", "fox", "over", "lazy", "dog", "tree", "one", "two", "three"]


def write_wordpiece(folder: Path) -> Tokenizer:
    """Write a lower-casing WordPiece tokenizer, as BERT's, into a checkpoint's folder."""
    letters = string.ascii_lowercase + string.digits + ".,?!"
    pieces = [*_SPECIAL, *_WORDS, *letters, *(f"##{each}" for each in letters)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(each, vocabulary[each]) for each in ("[CLS]", "[SEP]")],
    )
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {f"{each}_token": f"[{each.upper()}]" for each in ("cls", "sep", "pad", "unk")}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return tokenizer


def make_encoder(folder: Path, kind: str, pooling: str = "mean_tokens", **options: Any) -> Any:
    """Save a random checkpoint that makes embeddings; returns transformers' model.

    Args:
        folder: folder of the checkpoint.
        kind: its `model_type`.
        pooling: see `write_modules`.
        options: fields of its config.
    """
    config = CONFIG_MAPPING[kind](**{**SIZES, **options})
    model = AutoModel.from_config(config)
    randomize(model)
    model.eval().save_pretrained(folder)
    write_wordpiece(folder)
    write_modules(folder, pooling)
    return model


def make_ranker(folder: Path, kind: str, **options: Any) -> Any:
    """Save a random checkpoint that scores pairs of texts; returns transformers' model."""
    config = CONFIG_MAPPING[kind](**{**SIZES, "num_labels": 1, **options})
    model = AutoModelForSequenceClassification.from_config(config)
    randomize(model)
    model.eval().save_pretrained(folder)
    write_wordpiece(folder)
    return model


@torch.no_grad()
def vector_of(model: Any, ids: list[int], pooling: str = "mean_tokens") -> Floats:
    """Returns the normalized vector of a text."""
    rows = model(torch.tensor([ids])).last_hidden_state[0]
    row = rows.mean(0) if pooling == "mean_tokens" else rows[0]
    return np.asarray(torch.nn.functional.normalize(row, dim=0).numpy(), np.float32)
