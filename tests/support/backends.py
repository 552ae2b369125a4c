"""Tokenizers of the kinds that models have, and texts that are hard for them."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "def naïve(x): return x  # été 中文 字 🎉👩‍👩‍👧 e\u0301 \n",
    "the quick brown fox, 中文字\n",
] * 4
HARD = [
    "plain text, two  spaces",
    " leading and trailing ",
    "🎉 and 👩‍👩‍👧 and 🏳️‍🌈",
    "中文字和 English 混ざる",
    "e\u0301te\u0302 combining a\u0300\u0301\u0302",
    "\n\n\tindented\n",
    "a legitimate \ufffd character \ufffd\ufffd x",
    "",
]


def byte_level():
    """GPT-2 style: most emoji and CJK characters take several tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def metaspace():
    """Sentencepiece style: the first word's leading space is not part of the text."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    alphabet = sorted(set("".join(CORPUS + HARD)))
    trainer = trainers.BpeTrainer(
        vocab_size=250,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=alphabet,
        limit_alphabet=200,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_fallback():
    """Llama 2 style: characters outside the vocabulary are written byte by byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyzET,\n"]
    return spelled(pieces)


def spelled(pieces, merges=(), *specials):
    """As Llama has it: `▁` for spaces, one before texts, and bytes that are written as pieces."""
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
    model = models.BPE(
        vocabulary, list(merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>", "</s>", *specials])
    return backend
