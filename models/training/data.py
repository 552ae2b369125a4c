"""Tokenizer, token files and the order in which windows are seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from corpus import Corpus, SourceFile, stable_hash
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

END = "<|endoftext|>"
"""The only special token, id 0; it begins every file and so also a prompt without context."""

PATTERN = r"\n[ \t]*| ?[A-Za-z_]+| ?\d| ?[^\sA-Za-z_\d]+|\s+"
"""Where byte-pair merges stop: a line break with its indentation is one piece, a digit another."""

Ids = NDArray[np.uint16]


def train_tokenizer(files: list[SourceFile], vocab: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer (Sennrich et al. 2016) of ``vocab`` entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((file.text for file in files), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, files: list[SourceFile]) -> Ids:
    """Concatenate the files' tokens, each file begun by ``END``, in an order fixed by hash."""
    ordered = sorted(files, key=lambda file: stable_hash(file.root + "/" + file.path))
    begin = tokenizer.token_to_id(END)
    parts: list[Ids] = []
    for start in range(0, len(ordered), 64):
        encoded = tokenizer.encode_batch([file.text for file in ordered[start : start + 64]])
        parts.extend(np.array([begin, *one.ids], dtype=np.uint16) for one in encoded)
    return np.concatenate(parts)


def write(folder: Path, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, int]:
    """Write tokenizer, token arrays and the list of files of each side to ``folder``.

    Returns:
        Tokens and characters of both sides.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    sizes: dict[str, int] = {}
    for side, files in (("train", corpus.train), ("heldout", corpus.heldout)):
        ids = encode(tokenizer, files)
        np.save(folder / f"{side}.npy", ids)
        sizes[f"{side}_tokens"] = len(ids)
        sizes[f"{side}_chars"] = sum(len(file.text) for file in files)
        sizes[f"{side}_files"] = len(files)
    record = {
        "sizes": sizes,
        "dropped": dict(corpus.dropped),
        "heldout": sorted(f"{file.root}/{file.path}" for file in corpus.heldout),
        "train": sorted(f"{file.root}/{file.path}" for file in corpus.train),
    }
    (folder / "corpus.json").write_text(json.dumps(record, indent=1) + "\n")
    return sizes


def load(folder: Path, side: str) -> Tensor:
    """The tokens of one side ("train" or "heldout"), int64."""
    return torch.from_numpy(np.load(folder / f"{side}.npy").astype(np.int64))


def windows(ids: Tensor, length: int, batch: int, seed: int, skip: int = 0) -> Iterator[Tensor]:
    """Yield batches of windows (batch, length + 1) for ever, reshuffled each epoch.

    Windows of an epoch overlap by the one token that is label in one and input in the next; each
    epoch cuts them at another offset.

    Args:
        ids: Tokens of one side.
        length: Tokens predicted per window.
        batch: Windows per batch.
        seed: Decides the order.
        skip: Batches to leave out first, to resume.
    """
    epoch = 0
    if len(ids) < length * (batch + 1) + 1:
        ids = ids.repeat(-(-(length * (batch + 1) + 1) // len(ids)))
    while True:
        generator = torch.Generator().manual_seed(seed + epoch)
        offset = int(torch.randint(length, (), generator=generator)) if epoch else 0
        count = (len(ids) - 1 - offset) // length
        order = torch.randperm(count, generator=generator)
        for first in range(0, count - batch + 1, batch):
            if skip > 0:
                skip -= 1
                continue
            starts = offset + order[first : first + batch, None] * length
            yield ids[starts + torch.arange(length + 1)]
        epoch += 1
