"""Small random pairs of target and draft as fp32 bundles, and transformers' text for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from assistants import VOCABULARY, trained_assistant
from blocks import trained_block
from checkpoints import add_noise, make_checkpoint
from heads import trained_head, trained_peagle
from mtp import trained_mtp
from small_configs import ARCHITECTURES, RECURRENT
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from edgespec import LLM, bundle, export
from edgespec.export import ExportOptions

NEW_TOKENS = 128
# Longer than two prefill chunks of 64; with the new tokens the cache grows past its first 256 rows.
LONG_PROMPT = "".join(f"def twice_{n}(x):\n    return x * 2\n\n\n" for n in range(8))
SHORT_PROMPT = "def fibonacci(n):\n"

MASK = 330  # the mask token of drafts that have one

# Random weights give nearly equal probabilities, from which no draft builds a deep tree.
_SHARPNESS = 12.0


Teach = Callable[[Path, PreTrainedModel, list[int]], None]
# Heads by name: the target's architecture, and what makes a head that knows how it goes on.
_HEADS: dict[str, tuple[str, Teach]] = {
    "head": ("llama", trained_head),
    "head-skip": ("llama", trained_head),
    "peagle": ("llama", trained_peagle),
    "mtp": ("qwen3_5_text", trained_mtp),
    "assistant": ("gemma4_text", trained_assistant),
    **{
        form: ("llama", partial(trained_block, form=form))
        for form in ("dflash", "dflash2", "dspark")
    },
}
_SIZES: dict[str, dict[str, int]] = {
    "llama": {"num_hidden_layers": 8},
    "gemma4_text": {"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY},
}


@dataclass(frozen=True)
class Pair:
    """A bundle, and the transformers models that it was made from."""

    path: Path
    target: PreTrainedModel
    draft: PreTrainedModel


class Pairs:
    """Makes each pair below `folder` when it is first asked for.

    An architecture's name: the draft is the target with noise on its weights, so it is sometimes
    right; one in `RECURRENT` has no draft, but for `NAME-draft`. `twin`: the draft is the target.
    `half`: as `llama`, with fp16 caches, and `small-caches` with int8 ones. `stranger`: the draft
    is a one-layer Qwen2 of other sizes that knows 100 positions; `NAME-stranger`: of that
    architecture. All other models that draft have a mask token, although they were not trained to
    read it. `head`: the draft is a head of a target of eight layers. `head-skip`: the same with a
    skip set, so that two sources draft. `mtp`: a Qwen3.5 whose checkpoint holds a head. `dflash`
    and `dspark`: the draft predicts blocks. `assistant`: the draft reads a Gemma 4's keys and
    values. `peagle`: a head with masks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.pair = cache(self._make)
        self.llm = cache(self._load)
        self.greedy = cache(self._greedy)

    def _make(self, name: str) -> Pair:
        if name in _HEADS:
            return self._make_with_head(name, *_HEADS[name])
        architecture = name.partition("-")[0]
        architecture = architecture if architecture in ARCHITECTURES else "llama"
        folder = self._folder / name
        target = _checkpoint(folder / "target", architecture)
        if name in RECURRENT:
            options = ExportOptions(precision="fp32")
            export.make(folder / "target", folder / "bundle", options=options)
            return Pair(folder / "bundle", target, target)
        if name == "twin":
            draft = _checkpoint(folder / "draft", architecture, pard_token=MASK)
        elif name.endswith("stranger"):
            sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
            draft = _checkpoint(folder / "draft", "qwen2", max_position_embeddings=100, **sizes)
        elif architecture in RECURRENT:
            draft = _checkpoint(folder / "draft", architecture, noise=0.03)
        else:
            draft = _checkpoint(folder / "draft", architecture, noise=0.08, pard_token=MASK)
        options = ExportOptions(
            precision="fp32",
            kv_precision={"half": "fp16", "small-caches": "int8"}.get(name, "fp32"),
        )
        export.make(folder / "target", folder / "bundle", folder / "draft", options)
        return Pair(folder / "bundle", target, draft)

    def _make_with_head(self, name: str, architecture: str, teach: Teach) -> Pair:
        folder = self._folder / name
        target = _checkpoint(folder / "target", architecture, **_SIZES.get(architecture, {}))
        prompt = Tokenizer.from_file(str(folder / "target/tokenizer.json")).encode(LONG_PROMPT).ids
        head = folder / ("target" if name == "mtp" else "head")
        teach(head, target, prompt)
        skips = ("5-6",) if name == "head-skip" else ()
        options = ExportOptions(precision="fp32", draft_precision="fp32", skip_sets=skips)
        export.make(folder / "target", folder / "bundle", head, options)
        return Pair(folder / "bundle", target, target)

    def _load(self, name: str, engine: str, draft: str, **options: Any) -> LLM:
        place = {"device": engine, "draft_device": engine, "threads": 1, **options}
        return LLM(self.pair(name).path, draft=draft, **place)

    def _greedy(self, name: str, prompt: str = LONG_PROMPT) -> list[int]:
        """Returns transformers' greedy text of a pair's target."""
        ids = self.llm(name, "cpu", "none").tokenizer.encode(prompt)
        return greedy_by_transformers(self.pair(name).target, ids)


def with_eos(source: Path, output: Path, *ids: int) -> Path:
    """Returns a copy of a bundle whose target ends its text with these tokens."""
    copytree(source, output)
    manifest = bundle.load(output).manifest
    target = replace(manifest.roles[bundle.TARGET], eos_ids=ids)
    roles = {**manifest.roles, bundle.TARGET: target}
    bundle.save_manifest(output, replace(manifest, roles=roles))
    return output


def with_skips(source: Path, output: Path, *skipped: tuple[int, ...]) -> Path:
    """Returns a copy of a bundle with these skip sets; none replaces what it has."""
    copytree(source, output)
    manifest = bundle.load(output).manifest
    sets = tuple(bundle.SkipSet(each) for each in skipped)
    bundle.save_manifest(output, replace(manifest, skip_sets=sets))
    return output


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: list[int]) -> Any:
    """Returns transformers' logits for every token: [n, V] float32."""
    return model(torch.tensor([tokens])).logits[0].numpy()


def greedy_by_transformers(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    """Returns the new tokens of `generate`, after checking that no choice was close."""
    output = model.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    first, second = torch.cat(output.logits).topk(2).values.T
    # A hundred times the difference between engines: with closer choices texts could differ.
    assert (first - second).min() > 1e-2
    return output.sequences[0, len(prompt) :].tolist()


def _checkpoint(
    folder: Path, architecture: str, noise: float = 0.0, **overrides: Any
) -> PreTrainedModel:
    model = make_checkpoint(folder, architecture, seed=1, eos_token_id=None, **overrides)
    add_noise(model, noise, torch.Generator().manual_seed(2))
    with torch.no_grad():
        model.lm_head.weight.mul_(_SHARPNESS)
    model.save_pretrained(folder)
    return model
