"""Models that other programs exported as ONNX, and the checkpoints that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from checkout import ROOT
from checkpoints import add_noise, make_checkpoint, write_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from edgespec.bundle import TARGET, Bundle
from edgespec.llm.load.models import load_model
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import Model

FOLDER = ROOT / "tests/unit/export/adopted"
KINDS = ("mistral", "gpt2", "genai")
"""`mistral` has a window of 16 tokens and `gpt2` learned positions; optimum made them. `genai` is a
Qwen2 in 4 bits with ONNX Runtime's own attention, as onnx-community's files have it."""
WINDOW = 16

_VOCABULARY = 331
_SHARPNESS = 12.0  # of logits: random weights give nearly equal ones
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "eos_token_id": None,
}


def adopted_model(bundle: Bundle) -> Model:
    """Load the target of a bundle that was adopted."""
    return load_model(bundle, TARGET, Placement(HOST, native=False), threads=1)


class Original:
    """A file of `FOLDER` in ONNX Runtime alone."""

    def __init__(self, graph: Path) -> None:
        self._session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
        self._inputs = {each.name: each for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]
        self._width = 16 if graph.parent.name == "genai" else 8

    def logits(self, tokens: list[int]) -> Any:
        """The logits of all tokens, [n, V]."""
        return self._run(tokens, {})["logits"][0]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Decode so many tokens, one at a time."""
        tokens = prompt
        past = dict[str, Any]()
        while len(tokens) < len(prompt) + count:
            before = next(iter(past.values())).shape[2] if past else 0
            found = self._run(tokens[before:], past, before)
            tokens = [*tokens, int(found.pop("logits")[0, -1].argmax())]
            past = {name.replace("present", "past_key_values"): v for name, v in found.items()}
        return tokens[len(prompt) :]

    def _run(self, tokens: list[int], past: dict[str, Any], before: int = 0) -> dict[str, Any]:
        end = before + len(tokens)
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(before, end)[None],
            **past,
        }
        for name, each in self._inputs.items():
            if name.startswith("past") and not past:
                feeds[name] = np.zeros((1, each.shape[1], 0, self._width), np.float32)
        results = self._session.run(self._outputs, {name: feeds[name] for name in self._inputs})
        return dict(zip(self._outputs, results, strict=True))


def make_original(path: Path, kind: str, noise: float = 0.0) -> PreTrainedModel:
    """Save the checkpoint that a model was exported from, with its tokenizer.

    Args:
        path: folder to write.
        kind: one of `KINDS`.
        noise: standard deviation of what is added to weights, relative to their own; with some of
            it the checkpoint is a draft of the model.
    """
    generator = torch.Generator().manual_seed(2)
    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
        ends = {"bos_token_id": None, "eos_token_id": None}
        untied = {"tie_word_embeddings": False}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=_VOCABULARY, **sizes, **ends, **untied))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                norm = name.endswith("weight") and ".ln_" in name
                values = torch.randn(parameter.shape, generator=generator) * 0.2
                parameter.copy_(values + float(norm))
    else:
        architecture, more = (
            ("mistral", {"sliding_window": WINDOW})
            if kind == "mistral"
            else ("qwen2", {"head_dim": 16})  # the least that ONNX Runtime's attention takes
        )
        model = make_checkpoint(path, architecture, seed=1, **{**_SIZES, **more})
        add_noise(model, noise, generator)
    with torch.no_grad():
        model.lm_head.weight.mul_(_SHARPNESS)
    model.save_pretrained(path)
    write_tokenizer(path, _VOCABULARY)
    return model.eval()
