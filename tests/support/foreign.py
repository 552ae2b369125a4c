"""Pairs whose draft has another tokenizer than the target."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from backends import spelled
from checkpoints import add_noise, make_checkpoint, write_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from edgespec import LLM, export
from edgespec.export import ExportOptions
from edgespec.tuning.texts import PASSAGES

TEXTS = (
    "def twice(x):\n    return x * 2\n\n\ndef thrice(x):\n",
    "Größe: naïve café — 東京の天気 🙂🚀 e\u0301",
    "  a<|endoftext|>b\t\r\n\n\n   c <|end|> d",
    "",
    " ",
    "🙂",
)
"""Texts with characters of several bytes, special tokens and all kinds of white space."""

ENGLISH = "\n".join(PASSAGES)
GREEK = "η γρήγορη καφετιά αλεπού πηδά πάνω από το τεμπέλικο σκυλί, και το σκυλί κοιμάται. " * 3
_SHARPNESS = 12.0  # as of the models in `pairs`


def byte_level(text: str = ENGLISH, size: int = 400, *specials: str) -> Tokenizer:
    """Returns a tokenizer as GPT-2 has it, trained on a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=list(specials or ["<|endoftext|>"]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def sentence_piece(text: str = GREEK, size: int = 120) -> Tokenizer:
    """Returns a tokenizer as Llama has it: `▁` for spaces, one before texts, and spelled bytes."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=["<unk>"])
    trained.train_from_iterator(text.split("\n"), trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [piece for piece in model["vocab"] if piece not in pieces]
    merges = [tuple(merge) for merge in model["merges"]]
    return spelled(pieces, merges, "<unk>")


def renumbered(tokenizer: Tokenizer, ids: list[int], without: int = 0) -> Tokenizer:
    """Returns a tokenizer whose tokens have other ids, without those of its last merges.

    Args:
        tokenizer: a byte-level tokenizer.
        ids: new id of each token.
        without: number of last merges to leave out.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    merges = model["merges"]
    gone = {"".join(merge) for merge in merges[len(merges) - without :]}
    model["merges"] = merges[: len(merges) - without]
    model["vocab"] = {piece: ids[id_] for piece, id_ in model["vocab"].items() if piece not in gone}
    for token in content["added_tokens"]:
        token["id"] = ids[token["id"]]
    return Tokenizer.from_str(json.dumps(content))


class ForeignPairs:
    """Makes each pair below `folder` when it is first asked for.

    `same`: the draft is the target. `permuted`: so too, with its tokens in another order.
    `poorer`: as `permuted`, with noise on its weights, without some of the target's tokens, and
    with a context of 100.
    `greek`: a small random draft with a SentencePiece tokenizer. `letters`: both models have a
    token for each byte and none besides, in another order, and are the same otherwise; they write
    ASCII only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = cache(self._make)

    def llm(self, name: str, draft: str, **options: Any) -> LLM:
        """Returns a loaded pair."""
        place = {"threads": 1}
        return LLM(self.path(name), draft=draft, **{**place, **options})

    def _make(self, name: str) -> Path:
        folder = self._folder / name
        size = 257 if name == "letters" else 331
        model = make_checkpoint(
            folder / "target", "llama", seed=1, eos_token_id=None, vocab_size=size
        )
        tokenizer = write_tokenizer(folder / "target", size)
        with torch.no_grad():
            model.lm_head.weight.mul_(_SHARPNESS)
            if name == "letters":
                for id_ in range(size):
                    letter = tokenizer.decode([id_])
                    if not (letter.isascii() and letter.isprintable() and letter):
                        model.lm_head.weight[id_] = 0
        model.save_pretrained(folder / "target")
        if name == "greek":
            draft = sentence_piece()
            rows = draft.get_vocab_size()
            sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
            make_checkpoint(folder / "draft", "qwen2", eos_token_id=None, vocab_size=rows, **sizes)
            draft.save(str(folder / "draft" / "tokenizer.json"))
        else:
            generator = torch.Generator().manual_seed(3)
            order = torch.randperm(size, generator=generator)
            if name == "same":
                order = torch.arange(size)
            if name == "poorer":
                add_noise(model, 0.08, generator)
            with torch.no_grad():
                for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
                    weight[order] = weight.clone()
            if name == "poorer":
                model.config.max_position_embeddings = 100
            model.save_pretrained(folder / "draft")
            without = 12 if name == "poorer" else 0
            renumbered(tokenizer, order.tolist(), without).save(
                str(folder / "draft" / "tokenizer.json")
            )
        export.make(
            folder / "target", folder / "bundle", folder / "draft", ExportOptions(precision="fp32")
        )
        return folder / "bundle"


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the tokens of a text alone."""
    return tokenizer.encode(text, add_special_tokens=False).ids
