"""Trains a small Qwen3-MoE on Python's library for some minutes, so that its routing is learned.

    python benchmarks/small_mixture.py -o mixture --minutes 8

Its four layers have 32 experts of 64, four of which read a row, and it has the tokenizer of the
embedded pair. It writes bad Python; what counts is which experts rows choose.
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from pathlib import Path
from shutil import copy

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from edgespec.models import embedded

TOKENIZER = "tokenizer.json"
_FOLDER = Path(embedded.__file__).parent / "bundle"
_LENGTH, _BATCH, _WARM_UP, _RATE = 256, 8, 50, 3e-3
_FILES, _HELD_OUT = 420, 20  # in a random order that is the same each time


def library_tokens(folder: Path, held_out: bool) -> list[int]:
    """Returns the tokens of files of Python's library.

    Args:
        folder: a model's, with its tokenizer.
        held_out: whether to read the files that are not trained on, instead of those that are.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted({*root.glob("*.py"), *root.glob("[a-l]*/*.py")} - set(root.glob("lib2to3/*")))
    files = [files[place] for place in np.random.default_rng(0).permutation(len(files))][:_FILES]
    files = files[:_HELD_OUT] if held_out else files[_HELD_OUT:]
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    texts = (path.read_text("utf-8", errors="ignore") for path in files)
    return [token for text in texts for token in tokenizer.encode(text).ids]


def main() -> None:
    """Trains the mixture and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    tokens = torch.tensor(library_tokens(_FOLDER, held_out=False))
    config = Qwen3MoeConfig(
        vocab_size=Tokenizer.from_file(str(_FOLDER / TOKENIZER)).get_vocab_size(), hidden_size=128,
        intermediate_size=64, moe_intermediate_size=64, num_hidden_layers=4, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, num_experts=32, num_experts_per_tok=4,
        norm_topk_prob=True, max_position_embeddings=1024, tie_word_embeddings=True,
        output_router_logits=True, router_aux_loss_coef=0.02,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.05)
    begin, step = time.monotonic(), 0
    while (done := (time.monotonic() - begin) / (60 * arguments.minutes)) < 1:
        rate = _RATE * min(1, (step + 1) / _WARM_UP) * (1 - done) ** 0.7
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(0, len(tokens) - _LENGTH, (_BATCH,)).tolist()
        batch = torch.stack([tokens[start : start + _LENGTH] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}, loss {loss.item():.2f}", flush=True)
        step += 1
    model.save_pretrained(arguments.output)
    copy(_FOLDER / TOKENIZER, arguments.output)


if __name__ == "__main__":
    main()
